"""Token-Position Dependence Score: does a head look at the target because of what it is, or of where it stands?

    python -m probes.pds runs/lfa                                        60 competing-noun prompts, threshold 0.075
    python -m probes.pds runs/lfa --reference runs/std-t --out pds.parquet
    python -m probes.pds runs/lfa --suite stories --n 500 --threshold own

PDS of a head = |mean over pairs of α(query → target | target last) − mean of α(query → target | target first)|
(LFA Eq. 7, App. C). A head that looks at the latest noun has 1, a head that looks at the tool wherever it stands 0.
A head that looks at neither, or everywhere alike, has 0 as well: read PDS beside `probes.coreference`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from models.bounds import NotNegative
from models.cli import command, parse
from models.errors import InputError
from probes.report import (
    INTERVAL,
    ProbeOptions,
    check_options,
    estimate,
    heat_map,
    open_session,
    show,
    side_by_side,
    with_holm,
    write,
)

if TYPE_CHECKING:
    import pandas as pd

    from models.capture import Captures, Query
    from probes.align import Aligned
    from probes.suite import Suite

FIXED = 0.075
"""The paper's threshold, μ+σ of its Std-T (LFA §3.2)."""
UNITS = {
    "first": "attention to the target where it stands first",
    "last": "attention to the target where it stands last",
    "difference": "attention, last − first",
    "pds": "attention",
    "sd": "attention, between independent cases",
    "ci_low": "attention, of the difference",
    "ci_high": "attention, of the difference",
    "d": "pooled standard deviations",
    "n": "pairs",
    "clusters": "independent cases: pairs of one text count once; fewest words of a kind where they share words",
    "threshold": "attention",
}


@dataclass(frozen=True, kw_only=True)
class Pds:
    """PDS of every head over the minimal pairs of a suite."""

    per_pair: bool = False
    """Mean over pairs of |last − first| instead of |mean difference|. Opposite pairs do not cancel, and neither does
    noise: it is 0 only for a head that never moves."""
    threshold: float | Literal["own"] = FIXED
    """Heads over it are counted as position-dependent: a number (0.075, or `mean_plus_sd` of a reference run), or
    "own", μ+σ of the heads at hand."""

    def __post_init__(self) -> None:
        if self.threshold != "own" and not 0 <= float(self.threshold) < float("inf"):
            raise InputError(f"threshold {self.threshold} must be a number of at least 0, or own")

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """The patterns of the prompts whose pair is complete; `InputError` without pairs."""
        from probes.align import require_pairs
        from probes.attention import align_once, choose, role_query

        aligned = align_once(prompts, tokenizer)
        pairs = require_pairs(aligned)
        return role_query(choose(aligned, [i for pair in pairs for i in pair]), tokenizer)

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per pair and head: attention `first` and `last`, and `difference` = last − first."""
        import numpy as np

        from probes.attention import RoleQuery, attention_rows, by_layer, prompt_columns, tidy, to

        assert isinstance(query, RoleQuery)
        aligned, pairs = query.aligned, query.aligned.pairs()
        target = np.stack([to(rows, aligned.positions[i]["target"]) for i, rows in attention_rows(captures, query)])
        first, last = target[[i for i, _ in pairs]], target[[j for _, j in pairs]]
        columns = prompt_columns(aligned)
        names = {name: [columns[name][i] for i, _ in pairs] for name in ("pair", "cluster", "category", "relation")}
        values = {"first": first, "last": last, "difference": last - first}
        return tidy(names, list(by_layer(captures, "hook_pattern")), values)

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per head. Interval and p belong to the signed `difference` (pairs are the units), Holm over heads.

        `d` is Cohen's, pooled over the two orders; `over` says whether pds exceeds `threshold`. A part of the table
        (one relation, say) is summarised as such. A head that never moves by more than `attention.RESOLUTION` has
        pds 0 and an undefined test.
        """
        import pandas as pd

        from probes.attention import RESOLUTION
        from probes.effect_sizes import cohens_d
        from probes.undefined import note, reasons

        if table.empty:
            raise InputError("no pairs to summarise: the table is empty")
        rows = []
        for (layer, index, head), one in table.groupby(["layer", "index", "head"]):
            result = estimate(one["difference"], one["cluster"], resolution=RESOLUTION)
            moved = one["difference"].abs()
            why = reasons(result.pop("undefined"))
            d = cohens_d(one["last"], one["first"]) if len(one) > 1 and moved.max() > RESOLUTION else float("nan")
            if d != d:
                why["d"] = "attention without spread, or one pair"
            mean = result.pop("mean")
            rows.append(
                {
                    "head": head,
                    "layer": layer,
                    "index": index,
                    "pds": float(moved.mean()) if self.per_pair else abs(mean),
                    "first": one["first"].mean(),
                    "last": one["last"].mean(),
                    "difference": mean,
                    **{k: result[k] for k in ("sd", "ci_low", "ci_high", "p")},
                    "d": d,
                    "n": result["n"],
                    "clusters": result["clusters"],
                    "undefined": note(why),
                }
            )
        summary = with_holm(pd.DataFrame(rows))
        threshold = mean_plus_sd(summary) if self.threshold == "own" else float(self.threshold)
        summary["threshold"] = threshold
        summary["over"] = summary["pds"] > threshold
        return summary

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Heat map layer × head of PDS, and how PDS is distributed over heads, with the threshold."""
        import plotly.graph_objects as go

        summary = self.summarize(table)
        spread = go.Histogram(x=summary["pds"], nbinsx=24, marker={"color": "#3b6ea5"}, showlegend=False, name="heads")
        figure = side_by_side(
            ("PDS: | last − first | in attention", "heads by PDS, and the threshold"),
            heat_map(summary, "pds", unit="attention"),
            spread,
            title,
        )
        threshold = float(summary["threshold"].iloc[0])
        figure.add_vline(
            threshold, line_dash="dash", annotation_text=f"{threshold:.3f}: {summary['over'].sum()} over", row=1, col=2
        )
        figure.update_xaxes(title="PDS: difference of attention", rangemode="tozero", row=1, col=2)
        figure.update_yaxes(title="number of heads", row=1, col=2)
        return figure


def mean_plus_sd(summary: "pd.DataFrame") -> float:
    """μ+σ of `pds` over heads (σ with n−1): of a reference run, the threshold of LFA App. C."""
    if len(summary) < 2:
        raise InputError(f"μ+σ needs at least two heads, the model has {len(summary)}; give a number as threshold")
    return float(summary["pds"].mean() + summary["pds"].std(ddof=1))


def layers(summary: "pd.DataFrame") -> "pd.DataFrame":
    """Per layer: heads over the threshold, largest and mean PDS (LFA Table 4, Figure 1)."""
    grouped = summary.groupby("layer")
    parts = {"over": grouped["over"].sum(), "heads": grouped.size()}
    pds = grouped["pds"]
    return grouped[[]].sum().assign(**parts, max=pds.max(), mean=pds.mean()).reset_index()


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.pds`."""

    per_pair: bool = False
    """Mean of |last − first| over pairs instead of |mean difference|."""
    threshold: NotNegative | Literal["own"] | None = None
    """Heads over it are counted: a number, or own for μ+σ of this run. Default 0.075."""
    reference: str | None = None
    """Run folder whose μ+σ is the threshold instead."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.reference is not None and options.threshold is not None:
        raise InputError("--reference gives the threshold; leave --threshold out, or --reference")
    probe = Pds(per_pair=options.per_pair, threshold=FIXED if options.threshold is None else options.threshold)

    from dataclasses import replace

    from probes.probe import measure

    session = open_session(options)
    if options.reference is not None:
        other = open_session(options, options.reference)
        reference = probe.summarize(measure(other.model, probe, other.aligned, tokenizer=other.tokenizer))
        probe = replace(probe, threshold=mean_plus_sd(reference))
    table = measure(session.model, probe, session.aligned, tokenizer=session.tokenizer)
    summary = probe.summarize(table)
    rule = "μ+σ of " + (options.reference or "this run")
    rule = rule if options.reference or options.threshold == "own" else "fixed"
    columns = ("head", "pds", "first", "last", "difference", INTERVAL, "p_holm", "over")
    show(summary, f"{session.title}; PDS per head", columns)
    show(layers(summary), f"threshold {summary['threshold'][0]:.4f} ({rule}): {summary['over'].sum()} heads over it")
    title = f"{session.title}, {summary['n'][0]} pairs"
    about = {"per_pair": probe.per_pair, "threshold": rule}
    write(options, session, {"": (summary, UNITS), "rows": (table, UNITS)}, probe.plot(table, title), **about)


if __name__ == "__main__":
    command(main)
