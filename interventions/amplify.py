"""Sharpen attention, softmax(α · scores), and see whether the model still works: DST §2.3, §4.2, Table 5, Figs. 2, 4.

    python -m interventions.amplify                                       the bundled LFA at α = 1, 2, 4, 8, 16
    python -m interventions.amplify runs/kron --alpha 0.5 2 32 --out amplify.parquet
    python -m interventions.amplify runs/kron --heads L3.* --text "Leo found a bag and a chisel. He used it"
    python -m interventions.amplify runs/lfa --control runs/std-t

At large α a head looks at one token. Loss and degradation, 100 (loss(α)/loss(1) − 1) percent, have 95 % intervals over
documents. The area under the curve is given in every reading (`interventions.areas`), because the paper's own numbers
agree with none. `unchanged` is the share of positions whose most attended key is the one at α = 1; in the first
amplified layer it is the same by construction, later layers read what amplified ones wrote. --out also writes areas,
heads, and the attention of one text at each α. --control measures a second model on the same documents, and the
difference of the two at every α and of their areas, paired by document; it must have the run's tokenizer and context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamscope.interventions.amplify_plots import picture, plot
from streamscope.interventions.amplify_tables import AREA_UNITS, UNITS, by_head, check_alphas, curve, measure_losses
from streamscope.interventions.control_run import (
    ControlOptions,
    check_tokens,
    named_with_control,
    open_runs,
    show_differences,
)
from streamscope.models.bounds import Positive, Seed, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head, parse_heads
from streamscope.probes.command import INTERVAL, DocumentOptions, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.amplification import Patterns
    from streamscope.interventions.sweep import Losses


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions, ControlOptions):
    """Arguments of `python -m interventions.amplify`."""

    alpha: tuple[Positive, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the scores; 1 is always measured."""
    heads: tuple[str, ...] = ("all",)
    """Heads to amplify: L5.H4, L4.*, L4-5.H0-2, all, random3:7."""
    text: str = "Leo found a bag and a chisel. He used it"
    """The text whose attention is drawn; empty for none."""
    picture: tuple[str, ...] = ()
    """Heads to draw; default: of the middle layer the one that spreads most at α = 1."""
    prompt: str = "Once upon a time"
    """What the samples continue; empty for no samples."""
    sample_tokens: Whole = 40
    """Tokens of a sample."""
    seed: Seed = 0
    """Of the samples."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, amplify, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    alphas = check_alphas(options.alpha)

    from html import escape

    from streamscope.interventions.amplification import amplified
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.picture_plot import plot as draw

    opened = open_runs(options)
    names, model = [name for name, _ in opened], opened[0][1]
    check_tokens(options, opened, context=True)
    cfg = model.config
    heads = parse_heads(options.heads or ("all",), cfg.n_layers, cfg.n_heads)
    drawn = parse_heads(options.picture, cfg.n_layers, cfg.n_heads)
    room = cfg.n_ctx - len(model._text().encode(options.prompt))
    if options.prompt and not 0 < options.sample_tokens <= room:
        raise InputError(f"--sample-tokens {options.sample_tokens}: the context leaves room for 1 to {room}")
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    which = "all heads" if len(heads) == cfg.n_layers * cfg.n_heads else f"{len(heads)} heads"
    found = [_measure(options, name, net, shards, alphas, heads) for name, net in opened]
    parts: dict[str, list[pd.DataFrame]] = {}
    for name, one in zip(names, found, strict=True):
        _print(f"{name}: softmax(α · scores) in {which}", one.tables[""])
        if "areas" in one.tables:
            title = f"area under the curve, α from 1 to {alphas[-1]:g}"
            show(one.tables["areas"], title, ("kind", "axis", "area", INTERVAL), digits=3)
        for part, table in one.tables.items():
            parts.setdefault(part, []).append(table)
    units = {"": UNITS, "heads": UNITS, "areas": AREA_UNITS}
    tables: dict[str, Any] = {part: (named_with_control(names, some), units[part]) for part, some in parts.items()}
    if len(found) > 1:
        tables |= _differences(names, alphas, found, heads)
    both, n = " and ".join(names), found[0].tables[""]["n"].iloc[0]
    title = f"{both}: softmax(α · scores) in {which}; {n} documents"
    figures: dict[str, Any] = {"": plot(tables[""][0], found[0].tables["heads"], title)}
    if options.text:
        drawn = drawn or [_widest(found[0].tables["heads"], cfg.n_layers // 2)]
        seen = [picture(net, options.text, drawn, alphas, partial(amplified, net, heads=heads)) for _, net in opened]
        tables["picture"] = (named_with_control(names, seen), {"attention": "share of the query's attention, 0 to 1"})
        for part, name, one_seen in zip(("picture", "picture-control"), names, seen, strict=False):
            text = f"{escape(name)}: attention across α<br><sub>{escape(options.text)}</sub>"
            figures[part] = draw(one_seen, text)
    about = {"data": shards.meta["source"], "seed": options.seed, "heads": list(options.heads)}
    write_results(options, tables, figures, **about, control=options.control)


@dataclass(frozen=True)
class Measured:
    """A model amplified: its tables by name, and the documents' losses and attention behind them."""

    tables: "dict[str, pd.DataFrame]"
    losses: "Losses"
    patterns: "Patterns"


def _measure(
    options: Options, name: str, model: Any, shards: Any, alphas: Sequence[float], heads: Sequence[Head]
) -> Measured:
    """The curve with its samples, the heads and, from two α of 1 or more, the areas of a model."""
    from streamscope.interventions.amplification import amplified, pattern_sums
    from streamscope.interventions.areas import areas
    from streamscope.interventions.reference import document_rows
    from streamscope.interventions.steering import continuations
    from streamscope.models.text.shards import document_batches

    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    losses = measure_losses(model, shards, alphas, heads, **limits, progress=progress_bar(f"{name}: loss"))
    batches = document_batches(shards, model.config.n_ctx, options.batch_size, options.max_documents)
    bar = progress_bar(f"{name}: attention")
    patterns = pattern_sums(model, document_rows(batches), alphas, heads, progress=bar)
    table = curve(alphas, losses, patterns, heads)
    if options.prompt:
        sweep = [amplified(model, alpha, heads) for alpha in alphas]
        table["sample"] = continuations(model, options.prompt, sweep, tokens=options.sample_tokens, seed=options.seed)
    tables = {"": table, "heads": by_head(alphas, patterns, heads)}
    upwards = [i for i, alpha in enumerate(alphas) if alpha >= 1]
    if len(upwards) > 1:
        tables["areas"] = areas([alphas[i] for i in upwards], losses.edited[upwards], losses.tokens)
    return Measured(tables, losses, patterns)


def _differences(
    names: Sequence[str], alphas: Sequence[float], found: Sequence[Measured], heads: Sequence[Head]
) -> dict[str, Any]:
    """The model minus its control at every α and of every area, printed: name -> (table, units)."""
    from streamscope.interventions.document_differences import AREA_UNITS as READINGS
    from streamscope.interventions.document_differences import CURVE_UNITS, compare_areas, compare_curves

    losses = (found[0].losses, found[1].losses)
    curves = compare_curves(alphas, losses, (found[0].patterns, found[1].patterns), heads)
    show_differences(curves, names, ("alpha",), units="documents")
    tables = {"control": (curves, CURVE_UNITS)}
    if "areas" in found[0].tables:
        tables["areas-control"] = (compare_areas(alphas, losses), READINGS)
        show_differences(tables["areas-control"][0], names, ("kind", "axis"), units="documents")
    return tables


def _widest(of_heads: "pd.DataFrame", layer: int) -> Head:
    """The head of the layer with the largest entropy at α = 1."""
    one = of_heads[(of_heads["layer"] == layer) & (of_heads["alpha"] == 1)]
    return Head(layer, int(one.loc[one["entropy"].idxmax(), "index"]))


def _print(title: str, table: "pd.DataFrame") -> None:
    """The curve, intervals beside their means, and the samples."""
    from streamscope.probes.undefined import legend

    one = table.iloc[0]
    print(f"{title}; loss {one['baseline']:.4f} at α = 1; {one['n']} documents, {one['tokens']:,} tokens")
    shown = table[["alpha", "loss"]].copy()
    columns = {
        "delta": ("change of loss (95 %)", "ci_low", "ci_high", 4),
        "percent": ("degradation, % (95 %)", "percent_low", "percent_high", 2),
        "entropy": ("entropy (95 %)", "entropy_low", "entropy_high", 3),
        "unchanged": ("unchanged (95 %)", "unchanged_low", "unchanged_high", 3),
    }
    for column, (heading, low, high, digits) in columns.items():
        cells = table[[column, low, high]].itertuples(index=False)
        shown[heading] = [
            "undefined" if x != x else f"{x:.{digits}f}" + (f" ({a:.{digits}f} … {b:.{digits}f})" if a == a else "")
            for x, a, b in cells
        ]
    shown["peak"] = table["peak"]
    show(shown, "95 % over documents", digits=4)
    if lines := legend(table):
        print(lines)
    if "sample" in table:
        for alpha, text in zip(table["alpha"], table["sample"], strict=True):
            print(f"α = {alpha:g}: {text!r}")


if __name__ == "__main__":
    command(main)
