"""From observations to estimates, figures and files: what the commands of the attention probes share."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from models.text.tokenizer import Tokenizer
    from probes.align import Aligned
    from probes.suite import Suite

NAN = float("nan")
INTERVAL = "95 % interval"


# ---- estimates ---------------------------------------------------------------------------------


def estimate(values: Any, clusters: Any, *, resolution: float = 0.0) -> dict[str, Any]:
    """n, clusters, mean, sd, ci_low, ci_high, p (of mean 0), undefined: `statistics.mean` and `t_tests.clustered_t`.

    sd is between cluster means; units are those of the values. Where clusters do not differ by more than
    `resolution` there is no interval and no p, and where there is one cluster no sd either: undefined, with the reason.
    """
    import numpy as np

    from probes.statistics import cluster_codes, cluster_totals, finite, mean
    from probes.t_tests import clustered_t, constant
    from probes.undefined import note

    x = finite(values, "values")
    totals, counts = cluster_totals(x, cluster_codes(clusters, len(x)))
    row: dict[str, Any] = {"n": len(x), "clusters": len(counts), "mean": float(x.mean())}
    why: dict[str, str] = {}
    if len(counts) < 2:
        row |= dict.fromkeys(("sd", "ci_low", "ci_high", "p"), NAN)
        why = dict.fromkeys(("sd", "ci_low", "ci_high", "p"), "one independent case")
    else:
        result, test = mean(x, clusters), clustered_t(totals, counts)
        row |= {"sd": result.sd, "ci_low": result.ci_low, "ci_high": result.ci_high, "p": float(test.p)}
        if constant(totals / counts, np.abs(x).max()) or np.ptp(totals / counts) <= resolution:
            row |= dict.fromkeys(("ci_low", "ci_high", "p"), NAN)
            why = dict.fromkeys(("ci_low", "ci_high", "p"), "the same in every independent case")
    return {**row, "undefined": note(why)}


def with_holm(summary: "pd.DataFrame") -> "pd.DataFrame":
    """`p_holm` beside `p`: Holm's correction over the rows with a p; undefined where p is."""
    from probes.corrections import correct
    from probes.undefined import note, reasons

    new = summary.copy()
    new.insert(new.columns.get_loc("p") + 1, "p_holm", correct(new["p"]).p if new["p"].notna().any() else NAN)
    why = [reasons(text) for text in new["undefined"]]
    new["undefined"] = [note(r | ({"p_holm": r["p"]} if "p" in r else {})) for r in why]
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
        hovertemplate=f"%{{y}}%{{x}}: %{{z:{sign}.4f}} {unit}<extra></extra>",
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
class ProbeOptions:
    """Arguments that the commands of the attention probes share."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder."""
    suite: str = "competing"
    """coreference, competing, stories, a JSONL file of prompts, or FORMAT:PATH of a published set."""
    n: int | None = None
    """Minimal pairs to generate, of stories only (default 1000)."""
    seed: int | None = None
    """Which pairs to generate, of stories only (default 2)."""
    out: Path | None = None
    """Write the table (.parquet) here, the observations and the figure (.html) beside it."""
    device: str = "auto"
    """auto, cpu or cuda."""


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
        kept, all_of = len(self.aligned.prompts), len(self.suite.prompts)
        out = "".join(f", {n} left out: {why}" for why, n in Counter(why for _, why in self.aligned.filtered).items())
        lost = f", {len(self.suite.skipped)} entries skipped" if self.suite.skipped else ""
        return f"{self.name} on {self.suite.name}: {kept} of {all_of} prompts{out}{lost}"


def check_options(options: ProbeOptions, module: str) -> None:
    """Raise `InputError` for a missing run and a table of another format, before anything heavy is imported."""
    if not options.run:
        raise InputError(f"give a run folder: python -m {module} RUN")
    if options.out is not None and options.out.suffix != ".parquet":
        raise InputError(f"--out {options.out}: the table is parquet, name it {options.out.with_suffix('.parquet')}")


def open_session(options: ProbeOptions, run: str | None = None) -> Session:
    """Load a run (default: that of the options) and align the suite with its tokenizer and context."""
    from models.checkpoint import load, run_folder
    from models.provenance import pick_device
    from probes.prompts import align, check_tokenizer, load_suite

    folder = run_folder(run or options.run)
    suite = load_suite(options.suite, n=options.n, seed=options.seed)
    model = load(folder, device=pick_device(options.device))
    tokenizer = check_tokenizer(model)
    aligned = align(suite, tokenizer, model.config.n_ctx)
    return Session(f"{model.config.name} ({folder})", model, tokenizer, suite, aligned)


def show(table: "pd.DataFrame", title: str, columns: tuple[str, ...] = (), digits: int = 3) -> None:
    """Print a table; `INTERVAL` among the columns stands for ci_low and ci_high. No value prints "undefined"."""
    from probes.tables import print_table
    from probes.undefined import printable

    shown = printable(table)
    if INTERVAL in columns:
        both = zip(shown["ci_low"], shown["ci_high"], strict=True)
        shown[INTERVAL] = [a if isinstance(a, str) else f"{a:.{digits}f} … {b:.{digits}f}" for a, b in both]
    print_table(shown[list(columns)] if columns else shown, title, digits=digits)


def write(
    options: ProbeOptions,
    session: Session,
    tables: Mapping[str, tuple["pd.DataFrame", Mapping[str, str]]],
    figure: Any,
    **about: Any,
) -> None:
    """Write OUT ("" in `tables`), OUT-<name> for the others, and the figure; nothing without --out."""
    from models.provenance import provenance
    from probes.tables import write_atomically, write_table

    if options.out is None:
        return
    left_out = Counter(why for _, why in session.aligned.filtered)
    about |= {**provenance(str(session.model.cfg.device)), "suite": session.suite.source}
    about |= {"prompts": len(session.aligned.prompts), "left_out": left_out, "what": session.title}
    for name, (table, units) in tables.items():
        path = options.out.with_stem(f"{options.out.stem}-{name}") if name else options.out
        known = {column: unit for column, unit in units.items() if column in table}
        write_table(table, path, units=known, about=about)
        print(f"table {path}")
    page = options.out.with_suffix(".html")
    html = figure.to_html(include_plotlyjs=True)
    write_atomically(page, lambda part: part.write_text(html, encoding="utf-8"))
    print(f"figure {page}")


def hits(values: "np.ndarray", clusters: Any) -> dict[str, Any]:
    """Share, ci_low, ci_high of hits, Wilson's interval over clusters; undefined with one cluster."""
    import numpy as np

    from probes.proportions import proportion

    if len(np.unique(clusters)) < 2:
        why = "one independent case"
        return {"share": float(np.mean(values)), "ci_low": NAN, "ci_high": NAN, "why": why}
    result = proportion(values, clusters)
    return {"share": result.mean, "ci_low": result.ci_low, "ci_high": result.ci_high, "why": ""}
