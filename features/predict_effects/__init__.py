"""Do features predict causal effects? Which tokens will suffer from an ablation, said without ablating (PLS §5.4).

    python -m features.extract --out features.parquet
    python -m interventions.token_effects --out effects.parquet
    python -m features.predict_effects features.parquet effects.parquet --out predicted.parquet
    python -m features.predict_effects features.parquet effects.parquet --edits L5H4 L5H5 --model boosting

Rows of the two tables are joined by document and position. Every effect (of each edit: change of the loss, change of
the prediction's log-probability; as they are, and their size |Δ|) is regressed on the features: R² on documents the
regression has not seen, with a 95 % interval over documents, beside what position, unedited loss and confidence say,
what features add to all these (`gain`), and features against shuffled effects. Definitions: `explained`.

Documents that begin alike, with the same token at least, have rows of equal features and effects, also in different
folds: such rows are not unseen. Their number is printed and kept in the table's metadata (`repeated`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Bounds, Count, Seed
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.probes.command import INTERVAL

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.features.predict_effects.matched import Matched

HOW = ("model", "folds", "shuffles", "resamples", "seed")
NAMES = {"delta_loss": "Δ loss of the target", "delta_log_p": "Δ ln p of the prediction"}
SHOWN = 10
"""Edits on the screen."""
Of = Literal["signed", "absolute"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m features.predict_effects`."""

    features: Annotated[Path, tyro.conf.Positional]
    """Table of `features.extract`."""
    effects: Annotated[Path, tyro.conf.Positional]
    """Table of `interventions.token_effects`, of the same model and data."""
    edits: tuple[str, ...] = ()
    """Edits to explain, by name; default: all."""
    of: tuple[Of, ...] = ("signed", "absolute")
    """The effects Δ, their sizes |Δ|, or both."""
    model: Literal["ridge", "boosting"] = "ridge"
    """Ridge with nested choice of the penalty, or boosted trees (slow: choose --edits)."""
    folds: Annotated[int, Bounds(low=2)] = 5
    """Folds of documents."""
    shuffles: Count = 5
    """Controls with shuffled effects."""
    resamples: Count = 2000
    """Resamples of documents for the intervals."""
    seed: Seed = 0
    """Of folds, shuffles, resamples and trees."""
    out: Path | None = None
    """Write the table (.parquet) here and the figure (.html) beside it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, join, regress, print, write."""
    options = parse(Options, argv, __doc__)
    if options.out is not None and options.out.suffix != ".parquet":
        raise InputError(f"--out {options.out}: the table is parquet, name it {options.out.with_suffix('.parquet')}")
    if not options.of:
        raise InputError("give at least one --of")

    import numpy as np
    import pandas as pd

    from streamscope.features.predict_effects.explained import baselines, explain
    from streamscope.features.predict_effects.matched import MEASURES, match_effects
    from streamscope.probes.command import progress_bar

    matched = match_effects(options.features, options.effects)
    if strange := [name for name in options.edits if name not in matched.edits]:
        raise unknown("edit", strange[0], list(matched.edits))
    cases = list(product(dict.fromkeys(options.of), MEASURES, options.edits or matched.edits))
    effects = matched.table[[f"{measure}_{edit}" for _, measure, edit in cases]].to_numpy(float)
    effects = np.where([of == "absolute" for of, _, _ in cases], abs(effects), effects)
    known = baselines(*(matched.table[name].to_numpy(float) for name in ("position", "loss", "log_p")))
    how: dict[str, Any] = {name: getattr(options, name) for name in HOW}
    documents = matched.table["document"].to_numpy()
    found = explain(matched.x, effects, known, documents, progress=progress_bar("trees"), **how)
    found = pd.DataFrame(cases, columns=["of", "measure", "edit"]).join(found)
    _print(matched, found)
    if options.out is not None:
        _write(options.out, matched, found, how)


def _print(matched: "Matched", found: "pd.DataFrame") -> None:
    """What was matched; per kind of effect the edits that features explain best, and how many they explain."""
    from streamscope.features.predict_effects.explained import BASELINES
    from streamscope.probes.command import show
    from streamscope.probes.undefined import legend

    n, documents = len(matched.table), matched.table["document"].nunique()
    print(
        f"{n:,} tokens of {documents} documents, {matched.x.shape[1]} features; not matched: "
        f"{matched.features_only:,} rows of the features, {matched.effects_only:,} of the effects"
    )
    print(
        f"{matched.repeated:,} tokens ({matched.repeated / n:.1%}) not unseen: another document begins with the same "
        "text up to them"
    )
    for (of, measure), rows in found.groupby(["of", "measure"], sort=False):
        above, more = int((rows["ci_low"] > 0).sum()), int((rows["gain_low"] > 0).sum())
        best = rows.sort_values("r2", ascending=False, kind="stable").head(SHOWN).reset_index(drop=True)
        ends = zip(best["gain"], best["gain_low"], best["gain_high"], strict=True)
        best["gain over baselines"] = [
            "undefined" if g != g else f"{g:+.3f} ({low:+.3f} … {high:+.3f})" for g, low, high in ends
        ]
        title = (
            f"{of} {measure}: R² on held-out documents; of {len(rows)} edits {above} above 0, {more} above baselines"
        )
        show(
            best,
            title,
            ("edit", "r2", INTERVAL, *BASELINES, "baselines", "gain over baselines", "shuffled", "spearman"),
        )
    if lines := legend(found):
        print(lines)


def _write(out: Path, matched: "Matched", found: "pd.DataFrame", how: dict[str, Any]) -> None:
    """The table and its figure."""
    from streamscope.features.predict_effects.explained import UNITS
    from streamscope.models.provenance import provenance
    from streamscope.probes.tables import write_atomically, write_table

    counts = {"features_only": matched.features_only, "effects_only": matched.effects_only}
    about = {"kind": "predicted effects", "format": 1, "options": how, "unmatched": counts, **matched.about}
    about["repeated"] = matched.repeated
    write_table(found, out, units=UNITS, about={**about, **provenance("cpu")})
    html = plot(found).to_html(include_plotlyjs=True)
    write_atomically(out.with_suffix(".html"), lambda part: part.write_text(html, encoding="utf-8"))
    print(f"table {out}\nfigure {out.with_suffix('.html')}")


def plot(found: "pd.DataFrame") -> Any:
    """R² of every edit with its interval, what baselines explain, and shuffled effects; a panel per kind of effect."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    kinds = list(found.groupby(["of", "measure"], sort=False))
    titles = [f"{NAMES[measure]}{', size' if of == 'absolute' else ''}" for (of, measure), _ in kinds]
    figure = make_subplots(rows=len(kinds), cols=1, shared_xaxes=True, vertical_spacing=0.06, subplot_titles=titles)
    for i, (_, rows) in enumerate(kinds):
        ends = {"array": rows["ci_high"] - rows["r2"], "arrayminus": rows["r2"] - rows["ci_low"], "thickness": 1}
        for name, column, mode, extra in (
            ("features, 95 % interval", "r2", "markers", {"error_y": ends}),
            ("position, loss and confidence", "baselines", "markers", {"marker_symbol": "line-ew-open"}),
            ("features, shuffled effects", "shuffled", "markers", {"marker_symbol": "x-thin-open"}),
        ):
            colour = {"r2": "#2f6fd0", "baselines": "#c4581b", "shuffled": "#7a828c"}[column]
            marker = {"color": colour, "size": 9}
            figure.add_trace(
                go.Scatter(
                    x=rows["edit"], y=rows[column], name=name, mode=mode, marker=marker, legendgroup=name,
                    showlegend=i == 0, **extra,
                ),
                row=i + 1, col=1,
            )  # fmt: skip
    figure.update_yaxes(title="R²", zeroline=True, zerolinecolor="#b8c0c8").update_xaxes(tickangle=-60)
    height, width = 120 + 250 * len(kinds), max(700, 160 + 24 * found["edit"].nunique())
    legend = {"orientation": "h", "y": 1 + 35 / (height - 190), "yanchor": "bottom", "x": 0}
    text = f"Effects of ablations from features: {found['n'].iloc[0]:,} tokens, {found['documents'].iloc[0]} documents"
    title = {"text": text, "y": 1 - 25 / height, "yanchor": "top"}
    margin = {"t": 110, "b": 80}
    figure.update_layout(title=title, height=height, width=width, legend=legend, margin=margin, template="plotly_white")
    return figure


if __name__ == "__main__":
    command(main)
