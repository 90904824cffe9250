"""Sharpen attention, softmax(α · scores), and see whether the model still works: DST §2.3, §4.2, Table 5, Figs. 2, 4.

    python -m interventions.amplify                                       the bundled LFA at α = 1, 2, 4, 8, 16
    python -m interventions.amplify runs/kron --alpha 0.5 2 32 --out amplify.parquet
    python -m interventions.amplify runs/kron --heads L3.* --text "Leo found a bag and a chisel. He used it"

At large α a head looks at one token. Loss and degradation, 100 (loss(α)/loss(1) − 1) percent, have 95 % intervals over
documents. The area under the curve is given in every reading (`interventions.areas`), because the paper's own numbers
agree with none. `unchanged` is the share of positions whose most attended key is the one at α = 1; in the first
amplified layer it is the same by construction, later layers read what amplified ones wrote. --out also writes areas,
heads, and the attention of one text at each α.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from interventions.amplify_plots import picture, plot
from interventions.amplify_tables import AREA_UNITS, UNITS, by_head, check_alphas, curve, measure_losses
from models.cli import command, parse
from models.errors import InputError
from models.head_spec import Head, parse_heads
from probes.command import INTERVAL, DocumentOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Options(DocumentOptions):
    """Arguments of `python -m interventions.amplify`."""

    alpha: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the scores; 1 is always measured."""
    heads: tuple[str, ...] = ("all",)
    """Heads to amplify: L5.H4, L4.*, L4-5.H0-2, all, random3:7."""
    text: str = "Leo found a bag and a chisel. He used it"
    """The text whose attention is drawn; empty for none."""
    picture: tuple[str, ...] = ()
    """Heads to draw; default: of the middle layer the one that spreads most at α = 1."""
    prompt: str = "Once upon a time"
    """What the samples continue; empty for no samples."""
    sample_tokens: int = 40
    """Tokens of a sample."""
    seed: int = 0
    """Of the samples."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, amplify, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    alphas = check_alphas(options.alpha)

    from html import escape

    from interventions.amplification import amplified, pattern_sums
    from interventions.reference import document_rows
    from interventions.steering import continuations
    from models.checkpoint import run_folder
    from models.text.shards import document_batches
    from models.training.data import evaluation_shards
    from probes.picture_plot import plot as draw

    name, model = open_run(options)
    cfg = model.config
    heads = parse_heads(options.heads or ("all",), cfg.n_layers, cfg.n_heads)
    drawn = parse_heads(options.picture, cfg.n_layers, cfg.n_heads)
    room = cfg.n_ctx - len(model._text().encode(options.prompt))
    if options.prompt and not 0 < options.sample_tokens <= room:
        raise InputError(f"--sample-tokens {options.sample_tokens}: the context leaves room for 1 to {room}")
    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    limits: dict[str, Any] = {"max_documents": options.max_documents, "batch_size": options.batch_size}
    losses = measure_losses(model, shards, alphas, heads, **limits, progress=progress_bar("loss"))
    rows = document_rows(document_batches(shards, cfg.n_ctx, options.batch_size, options.max_documents))
    patterns = pattern_sums(model, rows, alphas, heads, progress=progress_bar("attention"))
    table, of_heads = curve(alphas, losses, patterns, heads), by_head(alphas, patterns, heads)
    which = "all heads" if len(heads) == cfg.n_layers * cfg.n_heads else f"{len(heads)} heads"
    title = f"{name}: softmax(α · scores) in {which}"
    if options.prompt:
        sweep = [amplified(model, alpha, heads) for alpha in alphas]
        texts = continuations(model, options.prompt, sweep, tokens=options.sample_tokens, seed=options.seed)
        table["sample"] = texts
    _print(title, table)
    tables: dict[str, Any] = {"": (table, UNITS), "heads": (of_heads, UNITS)}
    upwards = [i for i, alpha in enumerate(alphas) if alpha >= 1]
    if len(upwards) > 1:
        from interventions.areas import areas

        area = areas([alphas[i] for i in upwards], losses.edited[upwards], losses.tokens)
        show(area, f"area under the curve, α from 1 to {alphas[-1]:g}", ("kind", "axis", "area", INTERVAL), digits=3)
        tables["areas"] = (area, AREA_UNITS)
    figures: dict[str, Any] = {"": plot(table, of_heads, f"{title}; {table['n'].iloc[0]} documents")}
    if options.text:
        drawn = drawn or [_widest(of_heads, cfg.n_layers // 2)]
        seen = picture(model, options.text, drawn, alphas, partial(amplified, model, heads=heads))
        tables["picture"] = (seen, {"attention": "share of the query's attention, 0 to 1"})
        figures["picture"] = draw(seen, f"{escape(name)}: attention across α<br><sub>{escape(options.text)}</sub>")
    write_results(options, tables, figures, data=shards.meta["source"], seed=options.seed, heads=list(options.heads))


def _widest(of_heads: "pd.DataFrame", layer: int) -> Head:
    """The head of the layer with the largest entropy at α = 1."""
    one = of_heads[(of_heads["layer"] == layer) & (of_heads["alpha"] == 1)]
    return Head(layer, int(one.loc[one["entropy"].idxmax(), "index"]))


def _print(title: str, table: "pd.DataFrame") -> None:
    """The curve, intervals beside their means, and the samples."""
    from probes.undefined import legend

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
