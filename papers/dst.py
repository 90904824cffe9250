"""Paper DST: what a model loses without one of its streams (Table 4), and under sharpened attention (Table 5).

    python -m papers.dst runs/tinystories/dst-kron-0 --out results/dst_tinystories
    python -m papers.dst runs/dst-dense-* runs/dst-kron-* runs/dst-ind-* --out results/dst
    python -m papers.dst --tables results/dst_tinystories --out results/dst_tinystories

Takes finished runs of any presets that differ in preset and seed only. Per run, with intervals over documents: the loss
with x_t or x_e at 0, random words', mean or other text's in its place, everywhere, for the head and layer by layer
(models with two streams); the loss at α = 1, 2, 4, 8, 16, its degradation, areas in every reading. Over seeds: means
with intervals, and whether the paper's claims hold. Several presets with dst-dense also give the losses of Table 1.
--tables judges the claims of an earlier comparison again and writes its page, from its tables alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.papers.comparison import PageOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from streamscope.papers.dst_page import DstReport
    from streamscope.papers.runs import Run


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Arguments of `python -m papers.dst`."""

    alpha: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Factors on the scores, at least 1; 1 is always measured."""
    documents: int = 100
    """Validation documents to measure on."""
    draws: int = 3
    """Draws of random words and of other texts."""
    seed: int = 0
    """Of the draws."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    if options.documents < 2 or options.draws < 1 or options.seed < 0:
        raise InputError("--documents: at least 2; --draws: at least 1; --seed: 0 or more")
    options.check_out()

    from streamscope.interventions.amplify import Amplify

    alphas = Amplify(alpha=options.alpha).alphas
    if alphas[0] < 1 or len(alphas) < 2:
        raise InputError(
            f"--alpha {' '.join(f'{a:g}' for a in options.alpha)}: areas go upwards from 1; give more than 1"
        )

    from streamscope.papers.dst_page import show, write

    if options.tables is not None:
        report = again(options.tables)
    else:
        report = measure(options, alphas, open_runs(options.runs))
    show(report)
    if options.out is not None:
        from streamscope.papers.dst_figure import figure

        write(report, figure(report.tables), options.out, options.static, options.html)


def open_runs(folders: Sequence[str]) -> "list[Run]":
    """The runs by preset and seed. Raises `InputError` for doubles and for runs of other data, shape or recipe."""
    from streamscope.models.config.presets import PRESETS
    from streamscope.papers.runs import must_agree, opened, same_models

    if not folders:
        raise InputError("give run folders: python -m papers.dst runs/dst-kron-0 …")
    names = list(PRESETS)
    runs = sorted((opened(f, names) for f in folders), key=lambda r: (names.index(r.preset), r.seed))
    for one, two in pairwise(runs):
        if (one.preset, one.seed) == (two.preset, two.seed):
            raise InputError(f"{one.folder} and {two.folder} are both {one.name}; give one of them")
        must_agree(runs[0], two, runs[0].conditions, two.conditions)
    same_models(runs)
    return runs


def measure(options: Options, alphas: Sequence[float], runs: "list[Run]") -> "DstReport":
    """Every table, of the runs and over seeds."""
    import pandas as pd

    from streamscope.models.provenance import pick_device, provenance
    from streamscope.papers.comparison import each_model, stack
    from streamscope.papers.dst_measure import Settings, measure_run, whole_loss
    from streamscope.papers.dst_page import DstReport
    from streamscope.papers.dst_printed import CONTROL, TABLE1
    from streamscope.papers.losses import against, losses
    from streamscope.papers.runs import typed

    settings = Settings(documents=options.documents, alphas=tuple(alphas), draws=options.draws, seed=options.seed)
    device = pick_device(options.device)
    tables = stack(
        (run.preset, run.seed, measure_run(model, shards, settings, progress))
        for run, model, shards, progress in each_model(runs, device)
    )
    rows = losses(runs)
    tables |= {"runs": pd.concat([tables.pop("quantities"), whole_loss(rows)], ignore_index=True), "losses": rows}
    if CONTROL in set(rows["preset"]) and rows["preset"].nunique() > 1:
        tables["loss"] = against(rows, CONTROL, TABLE1)
    about = {**provenance(device), "argv": typed("papers.dst", options, runs)}
    return DstReport(runs=runs, tables=judged(tables, runs, settings.alphas), settings=settings, about=about)


def judged(tables: "dict[str, pd.DataFrame]", runs: "list[Run]", alphas: Sequence[float]) -> "dict[str, pd.DataFrame]":
    """The tables with what follows from the quantities of the runs: means over seeds, verdicts; and how runs began."""
    from streamscope.papers.dst_measure import INITIAL, initialization
    from streamscope.papers.dst_seeds import claims, presets
    from streamscope.papers.runs import SHAPE

    found = {**tables, "presets": presets(tables["runs"]), "claims": claims(tables["runs"], alphas)}
    if any(run.preset in INITIAL for run in runs):
        shape = {name: runs[0].config["model"][name] for name in SHAPE}
        seeds = [run.seed for run in runs]
        found["initialization"] = initialization(shape, runs[0].manifest["scale"], seeds)
    return found


def again(folder: "Path") -> "DstReport":
    """The report of an earlier comparison, judged anew from its tables."""
    from streamscope.papers.comparison import reopen
    from streamscope.papers.dst_measure import Settings
    from streamscope.papers.dst_page import DstReport

    runs, tables, about = reopen(folder, "papers.dst")
    settings = Settings(**{**about["settings"], "alphas": tuple(about["settings"]["alphas"])})
    tables = dict(sorted(judged(tables, runs, settings.alphas).items()))
    return DstReport(runs=runs, tables=tables, settings=settings, about=about)


if __name__ == "__main__":
    command(main)
