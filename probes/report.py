"""From observations to estimates, figures and files: what the commands of the attention probes share."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.bounds import Count, Seed
from streamscope.probes.command import INTERVAL, RunOptions, Tables, check_options, open_run, show, write_results

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.models.text.tokenizer import Tokenizer
    from streamscope.probes.align import Aligned
    from streamscope.probes.suite import Suite

__all__ = [
    "INTERVAL",
    "ProbeOptions",
    "Session",
    "check_options",
    "estimate",
    "heat_map",
    "hits",
    "open_session",
    "show",
    "side_by_side",
    "with_holm",
    "write",
]

NAN = float("nan")


# ---- estimates ---------------------------------------------------------------------------------


def estimate(values: Any, clusters: Any, *, resolution: float = 0.0) -> dict[str, Any]:
    """n, clusters, mean, sd, ci_low, ci_high, p (of mean 0), undefined: `statistics.mean` and `t_tests.clustered_t`.

    sd is between cluster means; units are those of the values. With labels of several kinds (words that cases share),
    `clusters` is the fewest of a kind. Where clusters do not differ by more than
    `resolution` there is no interval and no p, and where there is one cluster no sd either: undefined, with the reason.
    """
    import numpy as np

    from streamscope.probes.statistics import finite, ratio_of_sums, read_clusters
    from streamscope.probes.t_tests import clustered_t, constant
    from streamscope.probes.undefined import note

    x = finite(values, "values")
    within = read_clusters(clusters, len(x))
    totals, counts = within.totals(x)
    row: dict[str, Any] = {"n": len(x), "clusters": within.count, "mean": float(x.mean())}
    why: dict[str, str] = {}
    if within.count < 2:
        row |= dict.fromkeys(("sd", "ci_low", "ci_high", "p"), NAN)
        why = dict.fromkeys(("sd", "ci_low", "ci_high", "p"), "one independent case")
    else:
        result, test = ratio_of_sums(totals, counts, within=within), clustered_t(totals, counts, within.shared)
        row |= {"sd": result.sd, "ci_low": result.ci_low, "ci_high": result.ci_high, "p": float(test.p)}
        if constant(totals / counts, np.abs(x).max()) or np.ptp(totals / counts) <= resolution:
            row |= dict.fromkeys(("ci_low", "ci_high", "p"), NAN)
            why = dict.fromkeys(("ci_low", "ci_high", "p"), "the same in every independent case")
    return {**row, "undefined": note(why)}


def with_holm(summary: "pd.DataFrame", p: str = "p") -> "pd.DataFrame":
    """`<p>_holm` beside the column `p`: Holm's correction over the rows with a p; undefined where p is."""
    from streamscope.probes.corrections import correct
    from streamscope.probes.undefined import note, reasons

    new, corrected = summary.copy(), f"{p}_holm"
    new.insert(new.columns.get_loc(p) + 1, corrected, correct(new[p]).p if new[p].notna().any() else NAN)
    why = [reasons(text) for text in new["undefined"]]
    new["undefined"] = [note(r | ({corrected: r[p]} if p in r else {})) for r in why]
    return new


# ---- figures -----------------------------------------------------------------------------------


def heat_map(summary: "pd.DataFrame", column: str, *, unit: str, diverging: bool = False, digits: int = 3) -> Any:
    """Layer × head heat map (plotly trace) of a column of a table with one row per head."""
    import plotly.graph_objects as go

    grid = summary.pivot(index="layer", columns="index", values=column)
    limit = float(summary[column].abs().max()) or 1.0
    sign = "+" if diverging else ""
    return go.Heatmap(
        z=grid.to_numpy(),
        x=[f"H{h}" for h in grid.columns],
        y=[f"L{layer}" for layer in grid.index],
        texttemplate=f"%{{z:{sign}.{digits}f}}",
        hovertemplate=f"%{{y}}%{{x}}: %{{z:{sign}.4f}} {unit.replace('<br>', ' ')}<extra></extra>",
        colorscale="RdBu_r" if diverging else "Blues",
        zmin=-limit if diverging else 0.0,
        zmax=limit,
        colorbar={"title": unit},
    )


def side_by_side(titles: tuple[str, str], left: Any, right: Any, title: str) -> Any:
    """Two panels, each a heat map layer × head or another trace."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.2)
    for column, trace in ((1, left), (2, right)):
        figure.add_trace(trace, 1, column)
        if trace.type == "heatmap":
            trace = figure.data[-1]
            trace.colorbar.update(x=0.41 if column == 1 else 1.01, thickness=14)
            figure.update_xaxes(title="head", row=1, col=column)
            figure.update_yaxes(title="layer", autorange="reversed", row=1, col=column)
    figure.update_layout(title=title, width=1100, height=520)
    return figure


# ---- commands ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(RunOptions):
    """Arguments that the commands of the attention probes share."""

    suite: str = "competing"
    """coreference, competing, stories, story-cases, story-events, a JSONL file, or FORMAT:PATH of a published set."""
    n: Count | None = None
    """Minimal pairs of stories and story-events, or pronouns of story-cases, to generate (default 1000)."""
    seed: Seed | None = None
    """Which of them to generate (default 2)."""


@dataclass(frozen=True)
class Session:
    """A model with a suite in its tokens."""

    name: str
    model: Any
    tokenizer: "Tokenizer"
    suite: "Suite"
    aligned: "Aligned"

    @property
    def title(self) -> str:
        """What was measured on what, and what was left out."""
        from streamscope.probes.suite import population

        kept, all_of = len(self.aligned.prompts), len(self.suite.prompts)
        out = "".join(f", {n} left out: {why}" for why, n in Counter(why for _, why in self.aligned.filtered).items())
        lost = f", {len(self.suite.skipped)} entries skipped" if self.suite.skipped else ""
        holds = population(self.aligned.prompts)
        return f"{self.name} on {self.suite.name}: {kept} of {all_of} prompts{out}{lost}; {holds}"


def open_session(options: ProbeOptions, run: str | None = None) -> Session:
    """Load a run (default: that of the options) and align the suite with its tokenizer and context."""
    from streamscope.models.checkpoint import run_folder
    from streamscope.probes.prompts import align, check_tokenizer, load_suite

    run_folder(options.run if run is None else run)
    suite = load_suite(options.suite, n=options.n, seed=options.seed)
    name, model = open_run(options, run)
    tokenizer = check_tokenizer(model)
    return Session(name, model, tokenizer, suite, align(suite, tokenizer, model.config.n_ctx))


def write(options: ProbeOptions, session: Session, tables: Tables, figure: Any, **about: Any) -> None:
    """`write_results`, with the suite and what of it was left out."""
    left_out = Counter(why for _, why in session.aligned.filtered)
    about |= {"suite": session.suite.source, "prompts": len(session.aligned.prompts)}
    write_results(options, tables, figure, left_out=left_out, what=session.title, **about)


def hits(values: "np.ndarray", clusters: Any) -> dict[str, Any]:
    """Share, ci_low, ci_high of hits, Wilson's interval over clusters; undefined with one cluster."""
    import numpy as np

    from streamscope.probes.proportions import proportion
    from streamscope.probes.statistics import read_clusters

    if read_clusters(clusters, len(values)).count < 2:
        why = "one independent case"
        return {"share": float(np.mean(values)), "ci_low": NAN, "ci_high": NAN, "why": why}
    result = proportion(values, clusters)
    return {"share": result.mean, "ci_low": result.ci_low, "ci_high": result.ci_high, "why": ""}
