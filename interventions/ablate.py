"""Scale heads down, one at a time, and measure what the model loses.

    python -m interventions.ablate runs/lfa --heads
    python -m interventions.ablate runs/lfa --heads L4.* L5.H2 --scale 0 0.5 1 --data valid.txt --out heads.parquet
    python -m interventions.ablate runs/lfa --heads L5.H0-2 top3:pds --together --method mean
    python -m interventions.ablate runs/lfa --heads --measure sps coherence --suite competing

Each row is one head (or, with --together, the group) at one scale g: its output z is multiplied by g, and
`delta` is the change of the loss in nats per token, with a 95 % interval over documents. With --method mean or
resample, z moves to its mean or to another row's z instead of 0: g z + (1−g) z'. SPS and coherence (LFA Eq. 8,
`probes.coherence`) are compared prompt by prompt, with minimal pairs as units. p_holm corrects over heads.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from interventions.ablate_tables import PROMPT_UNITS, UNITS, ablate_heads, ablate_on_prompts, plot
from models.cli import command, parse
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from interventions.ablate_tables import MakeEdits
    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m interventions.ablate`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder."""
    heads: tuple[str, ...] = ("all",)
    """Heads: L5.H4, L4.*, L4-5.H0-2, all, random3:7, top3:pds. --heads alone means all."""
    scale: tuple[float, ...] = (0.0,)
    """Factors g on the heads' outputs."""
    together: bool = False
    """Scale all the heads at once instead of one at a time."""
    method: Literal["zero", "mean", "resample"] = "zero"
    """What the heads are scaled towards: 0, their mean over the measured data, or what they wrote in another row."""
    measure: tuple[Literal["loss", "sps", "coherence"], ...] = ("loss",)
    """What to measure."""
    suite: str = "competing"
    """Prompts of sps, coherence and top3:pds: competing, stories, a JSONL file, or FORMAT:PATH."""
    seed: int = 0
    """Which rows trade places under --method resample."""
    data: str | None = None
    """SOURCE to measure on; default: the run's validation data."""
    max_documents: int | None = 200
    """Use at most this many documents; None for all."""
    batch_size: int = 32
    """Documents per batch."""
    out: Path | None = None
    """Write the table (.parquet) here, the heat map (.html) and the tables of sps and coherence beside it."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if not options.run:
        raise InputError("give a run folder: python -m interventions.ablate RUN --heads")
    if options.out is not None and options.out.suffix != ".parquet":
        raise InputError(f"--out {options.out}: the table is parquet, name it {options.out.with_suffix('.parquet')}")

    from interventions.head_spec import parse_heads, score_names
    from interventions.selection import pds_scores, pds_table
    from models.checkpoint import load, run_folder
    from models.provenance import pick_device
    from probes.prompts import align, check_tokenizer, load_suite

    folder = run_folder(options.run)
    model = load(folder, device=pick_device(options.device))
    specs = options.heads or ("all",)
    prompts = [m for m in dict.fromkeys(options.measure) if m != "loss"]
    scores = {}
    if prompts or "pds" in score_names(specs):
        tokenizer = check_tokenizer(model)
        aligned = align(load_suite(options.suite), tokenizer, model.config.n_ctx)
        if "pds" in score_names(specs):
            scores["pds"] = pds_scores(pds_table(model, aligned, tokenizer))
    heads = parse_heads(specs, model.config.n_layers, model.config.n_heads, scores)
    groups = [heads] if options.together else [[head] for head in heads]
    bar = _bar(f"{len(groups) * len(options.scale)} edits")
    if "loss" in options.measure or not prompts:
        _losses(options, folder, model, groups, bar)
    if prompts:
        make = _maker(options, model, aligned.tokens)
        found = ablate_on_prompts(model, aligned, tokenizer, prompts, groups, options.scale, progress=bar, make=make)
        name = f"{model.config.name} ({folder}) on {options.suite}: {len(aligned.prompts)} prompts"
        for measure, table in found.items():
            _show_prompts(options, f"{name}; {measure}, {options.method} ablation", measure, table)


def _losses(options: Options, folder: Path, model: "StreamTransformer", groups: list, bar: Any) -> None:
    """Measure, print and write the loss."""
    from interventions.reference import document_rows
    from models.text.shards import document_batches, truncated_documents
    from models.training.data import evaluation_shards
    from probes.report import show
    from probes.undefined import legend

    shards = evaluation_shards(folder, model._text(), options.data)
    limit, size = options.max_documents, options.batch_size
    rows = document_rows(document_batches(shards, model.config.n_ctx, size, limit))
    make = _maker(options, model, rows)
    table = ablate_heads(
        model, shards, groups, options.scale, max_documents=limit, batch_size=size, progress=bar, make=make
    )
    cut = truncated_documents(shards, model.config.n_ctx, limit)
    name = f"{model.config.name} ({folder}): loss {table['baseline'][0]:.4f} nats/token"
    detail = f"{table['n'][0]} documents, {table['tokens'][0]:,} tokens, {cut} documents cut at {model.config.n_ctx}"
    detail += f"; {options.method} ablation"
    show(table.drop(columns=["baseline", "tokens", "n", "layer", "index"]), f"{name}; {detail}", digits=4)
    if lines := legend(table):
        print(lines)
    if options.out is not None:
        _write(options.out, table, name, options, shards)


def _maker(options: Options, model: "StreamTransformer", rows: Iterable[Sequence[int]]) -> "MakeEdits":
    """What builds the edits of --method; `rows` are the reference of the mean."""
    from interventions.edits import replace_heads, resample_heads, scale_heads
    from interventions.reference import mean_outputs

    if options.method == "mean":
        means = mean_outputs(model, rows)
        return lambda heads, g: replace_heads(heads, means, g)
    if options.method == "resample":
        return lambda heads, g: resample_heads(heads, g, seed=options.seed)
    return scale_heads


def _show_prompts(options: Options, title: str, measure: str, table: "pd.DataFrame") -> None:
    """Print a table of SPS or coherence with its undefined cells, and write it beside --out."""
    from models.provenance import provenance
    from probes.report import INTERVAL, show
    from probes.tables import write_table
    from probes.undefined import legend

    columns = ("head", "scale", "baseline", "difference", INTERVAL, "d", "d_z", "p", "p_holm")
    show(table, title, columns, digits=4)
    if lines := legend(table):
        print(lines)
    if options.out is not None:
        path = options.out.with_stem(f"{options.out.stem}-{measure}")
        write_table(table, path, units=PROMPT_UNITS, about={**provenance(options.device), "what": title})
        print(f"table {path}")


def _bar(label: str) -> Any:
    from rich.console import Console
    from rich.progress import track

    def bar(batches: Iterable) -> Iterable:
        return track(batches, description=label, console=Console(file=sys.stderr))

    return bar


def _write(out: Path, table: "pd.DataFrame", title: str, options: Options, shards: "TokenShards") -> None:
    from models.provenance import provenance
    from probes.tables import write_atomically, write_table

    about = {**provenance(options.device), "data": shards.meta["source"]}
    write_table(table, out, units=UNITS, about=about)
    print(f"table {out}")
    if (table["layer"] >= 0).any():
        page = out.with_suffix(".html")
        html = plot(table, title).to_html(include_plotlyjs=True)
        write_atomically(page, lambda part: part.write_text(html, encoding="utf-8"))
        print(f"figure {page}")


if __name__ == "__main__":
    command(main)
