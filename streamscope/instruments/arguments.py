"""The options that every command of an instrument has, in addition to its own and those of its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.help import Group
from streamscope.cli.launch import LaunchOptions
from streamscope.text import BosChoice

MODEL, OUTPUT = Group("Model"), Group("Output")


@dataclass(frozen=True, kw_only=True)
class Arguments(LaunchOptions):
    """What every command of an instrument takes, in addition to its own options and those of its data."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN…]")] = ()
    """Run folders, snapshots (runs/lfa@512, runs/lfa@all), hf:FOLDER, or the bundled stories/NAME: lfa, std-t,
    d-cas, cfm, pls, c2, dst-dense, dst-kron, llama, hdpl, gpt2, canon, kromcanon, kromcanon-b2,
    kromcanon-bf16, std-t-rope, dst-ind, dst-full-ind, kromhc. Several runs make one table, with seeds as units, and
    snapshots make a curve over steps. Default: stories/lfa, or the bundled model that has the part in question."""
    control: Annotated[str | None, MODEL] = None
    """A control run with as many layers and heads. The table shows its values and the differences, paired by unit. With
    RUN@all each snapshot is compared with the control's snapshot of the same step."""
    edit: Annotated[tuple[str, ...], MODEL] = ()
    """Measure the runs under edits of your own, and the control without them. Give FILE.json as saved in the live page,
    FILE.py:NAME@HOOK for a function (value, hook) -> value, or FILE.py:NAME for a function (model) -> {hook: function}.
    A whole .py file is executed with your rights: give only files that you trust. To see the effect of an edit, give
    the same run as --control."""
    out: Annotated[Path | None, OUTPUT] = None
    """Write the main table here as .parquet, with the other tables and the observations next to it; .csv writes
    the tables alone. Ctrl-C writes what was measured so far, and never over an earlier result. Of several runs, those
    that were measured before a kill are not measured again when you repeat the command."""
    figure: Annotated[Path | None, OUTPUT] = None
    """Write the first figure here: .html, .svg, .pdf or .png."""
    bos: Annotated[BosChoice, MODEL] = "yes"
    """Whether every text begins with BOS; model: as the files of its tokenizer say. In Python, before measuring:
    `model.tokenizer = model.tokenizer.with_bos("no")`."""
    device: Annotated[str, MODEL] = "auto"
    """auto, cpu or cuda."""
    dtype: Annotated[Literal["fp32", "bf16"], MODEL] = "fp32"
    """Storage of weights and activations: bf16 takes half of the memory and keeps fewer than three digits."""
