"""KROM's comparisons over trained runs: Canon and hyper-connections against GPT-2, and what freezes mixing at bias −8.

    python -m papers.krom runs/textbooks/* --out results/krom_textbooks

Two questions. Losses: vanilla, Canon, KromHC and KromCanon, trained alike, beside the blog's. Mixing:
runs of kromhc or kromcanon that differ in the initial bias, the storage of the hyper-connections' parameters, their
optimiser and decay; how much of a logit's way was the loss's and how much decay's (`papers.krom_mixing`). Runs of a
recipe of their own (other steps, other rates of the hyper-connections) are in the mixing table and not in the losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.cli import command, parse
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from papers.runs import Run

PRESETS = ("gpt2", "canon", "kromhc", "kromcanon")
CONTROL = "gpt2"
OWN = {"training.hc_optimizer", "training.hc_lr", "training.hc_decay", "steps"}
"""What runs of the mixing table may have of their own."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders of gpt2, canon, kromhc and kromcanon."""
    out: Path | None = None
    """Folder for README.md, tables (.parquet) and the figure."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""


@dataclass(frozen=True)
class Found:
    """The runs and their tables."""

    runs: "list[Run]"
    losses: "pd.DataFrame"
    comparison: "pd.DataFrame"
    factors: "pd.DataFrame"
    mixing: "pd.DataFrame"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, print, write."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give run folders: python -m papers.krom runs/gpt2-0 runs/kromhc-0 …")
    found = read(open_runs(options.runs))

    from papers.krom_page import show, write

    show(found)
    if options.out is not None:
        write(found, options.out, options.html)


def open_runs(folders: Sequence[str]) -> "list[Run]":
    """The runs by preset, arm and seed. Raises `InputError` for what differs in more than the arm, and for doubles."""
    from papers.krom_mixing import ARM_OF_THE_MODEL, arm
    from papers.runs import must_agree, opened, same_models

    runs = [opened(folder, PRESETS) for folder in folders]
    for run in runs:
        residual = run.config["model"]["residual"]
        if residual["kind"] not in ("single", "kromhc") or residual.get("freeze_res"):
            raise InputError(
                f"{run.folder} has residual {residual['kind']}{', frozen' * bool(residual.get('freeze_res'))}: this "
                "comparison is of single streams and of Kronecker factors that train (kromhc)"
            )
    hyper = {id(run): tuple(arm(run).values()) if "hc_dtype" in run.config["model"]["residual"] else () for run in runs}
    runs.sort(key=lambda r: (PRESETS.index(r.preset), str(hyper[id(r)]), r.seed))
    seen: dict[Any, Path] = {}
    for run in runs:
        key = (run.preset, hyper[id(run)], run.seed)
        if key in seen:
            raise InputError(f"{seen[key]} and {run.folder} are one arm and seed; give one of them")
        seen[key] = run.folder
        here, there = ({k: v for k, v in r.conditions.items() if k not in OWN} for r in (run, runs[0]))
        must_agree(runs[0], run, there, here)
    same_models(runs, ARM_OF_THE_MODEL)
    return runs


def standard(run: "Run") -> bool:
    """Whether a run has the recipe of the comparison: bias −8 in fp32, and the default rates of hyper-connections."""
    from models.training.config import Training

    t, residual, default = run.config["training"], run.config["model"]["residual"], Training()
    if "hc_dtype" not in residual:
        return True
    usual = all(t[name] == getattr(default, name) for name in ("hc_optimizer", "hc_lr", "hc_decay"))
    return usual and residual["b_res"] == -8 and residual["hc_dtype"] == "fp32"


def read(runs: "Sequence[Run]") -> Found:
    """The tables of all runs. The loss comparison is over standard runs of the most common number of steps."""
    from collections import Counter

    import pandas as pd

    from papers.krom_mixing import factors, mixing_row
    from papers.krom_printed import ARCHITECTURES
    from papers.losses import against, losses
    from probes.command import progress_bar

    plain = [run for run in runs if standard(run)]
    steps = Counter(run.manifest["steps"] for run in plain).most_common(1)[0][0] if plain else 0
    plain = [run for run in plain if run.manifest["steps"] == steps]
    table = losses(plain) if plain else pd.DataFrame()
    compared = bool(len(table)) and CONTROL in set(table["preset"]) and table["preset"].nunique() > 1
    comparison = against(table, CONTROL, ARCHITECTURES) if compared else pd.DataFrame()
    every, rows = [], []
    for run in progress_bar("mixing")([r for r in runs if "b_res" in r.config["model"]["residual"]]):
        one = factors(run)
        row = mixing_row(run, one)
        key = {name: row[name] for name in ("preset", "b_res", "storage", "optimizer", "lr", "decay", "steps", "seed")}
        every.append(one.assign(**key)[[*key, *one.columns]])
        rows.append(row)
    together = pd.concat(every, ignore_index=True) if every else pd.DataFrame()
    return Found(list(runs), table, comparison, together, pd.DataFrame(rows))


if __name__ == "__main__":
    command(main)
