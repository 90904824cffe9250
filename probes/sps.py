"""Semantic Preference Score: how much more attention the right noun gets than its competitor.

    python -m probes.sps runs/lfa                         averaged over all heads, 60 competing-noun prompts
    python -m probes.sps runs/lfa --level head --out sps.parquet
    python -m probes.sps runs/pls --attention gated --level layer

SPS = mean over prompts of α(query → semantic) − α(query → distractor) (LFA Eq. 8), from −1 to 1, averaged over heads.
In a minimal pair each noun stands last once, so a head that only looks at positions has 0, and so has a head that
looks everywhere alike if the nouns have equally many tokens. They often have not: `even` is what such a head would
have, (tokens of the target − tokens of the competitor) / keys, and belongs beside every SPS near 0. Prompts whose text
up to the query is asked with either answer are left out and counted: their SPS is 0 by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.probes.report import (
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

    from streamscope.models.capture import Captures, Query
    from streamscope.probes.align import Aligned
    from streamscope.probes.suite import Suite

LEVELS: dict[str, list[str]] = {"all": [], "layer": ["layer"], "head": ["layer", "index", "head"]}
UNITS = {
    "semantic": "attention to the target",
    "distractor": "attention to the competitor",
    "sps": "attention, target − competitor",
    "even": "attention, target − competitor, of a head that looks everywhere alike",
    "sd": "attention, between independent cases",
    "ci_low": "attention",
    "ci_high": "attention",
    "d": "pooled standard deviations, target against competitor",
    "n": "prompts",
    "clusters": "independent cases: a pair counts once; fewest words of a kind where they share words",
}


@dataclass(frozen=True, kw_only=True)
class Sps:
    """SPS over the prompts that name a target and a distractor; the competitor is the role "distractor"."""

    level: Literal["all", "layer", "head"] = "all"
    """Average over all heads, over the heads of each layer, or none."""
    attention: Literal["raw", "gated"] = "raw"
    """α, or Ã = ḡ α with ḡ the mean of the head's gate over d_h at the query (SPEC §7.3); models without gates
    raise."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise unknown("level", str(self.level), list(LEVELS))
        if self.attention not in ("raw", "gated"):
            raise unknown("attention", str(self.attention), ["raw", "gated"])

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Patterns, and gates where they count, at the query."""
        from streamscope.probes.attention import role_query

        return role_query(prompts, tokenizer, needs=("target", "distractor"), gated=self.attention == "gated")

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per prompt and head: attention to `semantic` and `distractor`, and `sps`, their difference.

        `even` is the SPS of a head that looks everywhere alike.
        """
        import numpy as np

        from streamscope.probes.attention import RoleQuery, attention_rows, by_layer, prompt_columns, tidy, to

        assert isinstance(query, RoleQuery)
        found: dict[str, list[np.ndarray]] = {"target": [], "distractor": []}
        for i, rows in attention_rows(captures, query, gated=self.attention == "gated"):
            for role, weights in found.items():
                weights.append(to(rows, query.aligned.positions[i][role]))
        semantic, distractor = np.stack(found["target"]), np.stack(found["distractor"])
        values = {"semantic": semantic, "distractor": distractor, "sps": semantic - distractor}
        sizes = [len(at["target"]) - len(at["distractor"]) for at in query.aligned.positions]
        even = [size / (q + 1) for size, q in zip(sizes, query.aligned.queries, strict=True)]
        columns: dict[str, list[Any]] = {**prompt_columns(query.aligned), "even": even}
        return tidy(columns, list(by_layer(captures, "hook_pattern")), values)

    def summarize(self, table: "pd.DataFrame", level: str | None = None) -> "pd.DataFrame":
        """One row for all heads, or per layer, or per head: SPS with its interval over independent cases.

        Heads are averaged within a prompt first, so prompts stay the observations. p is that of SPS = 0, with Holm
        over the rows; d is Cohen's, pooled. A part of the table (one relation, say) is summarised as such.
        """
        import pandas as pd

        from streamscope.probes.attention import RESOLUTION
        from streamscope.probes.effect_sizes import cohens_d
        from streamscope.probes.undefined import note, reasons

        if table.empty:
            raise InputError("no prompts to summarise: the table is empty")
        keys = LEVELS[self.level if level is None else level]
        values = (
            table.groupby([*keys, "id"], sort=False)[["semantic", "distractor", "sps", "even"]].mean().reset_index()
        )
        values["cluster"] = values["id"].map(table.drop_duplicates("id").set_index("id")["cluster"])
        rows = []
        for key, one in values.groupby(keys, sort=False) if keys else [((), values)]:
            result = estimate(one["sps"], one["cluster"], resolution=RESOLUTION)
            why = reasons(result.pop("undefined"))
            spread = len(one) > 1 and one["sps"].abs().max() > RESOLUTION
            d = cohens_d(one["semantic"], one["distractor"]) if spread else float("nan")
            if d != d:
                why["d"] = "attention without spread, or one prompt"
            rows.append(
                {
                    **dict(zip(keys, key, strict=True)),
                    "semantic": one["semantic"].mean(),
                    "distractor": one["distractor"].mean(),
                    "sps": result["mean"],
                    "even": one["even"].mean(),
                    **{k: result[k] for k in ("sd", "ci_low", "ci_high", "p")},
                    "d": d,
                    "n": result["n"],
                    "clusters": result["clusters"],
                    "undefined": note(why),
                }
            )
        return with_holm(pd.DataFrame(rows))

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Heat map layer × head, and SPS by layer with 95 % intervals."""
        import plotly.graph_objects as go

        heads, layers = self.summarize(table, "head"), self.summarize(table, "layer")
        bars = go.Bar(
            x=[f"L{layer}" for layer in layers["layer"]],
            y=layers["sps"],
            error_y={
                "array": (layers["ci_high"] - layers["sps"]).fillna(0),
                "arrayminus": (layers["sps"] - layers["ci_low"]).fillna(0),
            },
            marker={"color": "#3b6ea5"},
            showlegend=False,
        )
        heat = heat_map(heads, "sps", unit="attention,<br>target −<br>competitor", diverging=True)
        figure = side_by_side(("SPS by head", "SPS by layer, 95 % interval"), heat, bars, title)
        figure.update_xaxes(title="layer", row=1, col=2)
        figure.update_yaxes(title="SPS: attention, target − competitor", row=1, col=2)
        return figure


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.sps`."""

    level: Literal["all", "layer", "head"] = "all"
    """Average over all heads, over the heads of each layer, or none."""
    attention: Literal["raw", "gated"] = "raw"
    """Attention weights as they are, or times the head's mean gate at the query."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    probe = Sps(level=options.level, attention=options.attention)

    from streamscope.probes.attention import left_out
    from streamscope.probes.probe import measure

    session = open_session(options)
    if probe.attention == "gated" and not any(name.endswith("attn.hook_gate") for name in session.model.hook_dict):
        raise InputError(f"{session.name} has no head gates, so its attention is raw; leave --attention gated out")
    table = measure(session.model, probe, session.aligned, tokenizer=session.tokenizer)
    summary = probe.summarize(table)
    lost = left_out(probe.plan(session.aligned, session.tokenizer), "target and distractor")
    title = f"{session.title}{lost}; {probe.attention} attention"
    columns = ("semantic", "distractor", "sps", INTERVAL, "even", "p_holm")
    show(summary, f"{title}; SPS", (*LEVELS[probe.level][-1:], *columns))
    about = {"level": probe.level, "attention": probe.attention}
    write(options, session, {"": (summary, UNITS), "rows": (table, UNITS)}, probe.plot(table, title), **about)


if __name__ == "__main__":
    command(main)
