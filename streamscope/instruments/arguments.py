"""The options that every command of an instrument has, beside its own and those of its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.launch import LaunchOptions


@dataclass(frozen=True, kw_only=True)
class Arguments(LaunchOptions):
    """What every command of an instrument takes, beside its own options and those of its data."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Run folders, snapshots (runs/lfa@512, runs/lfa@all), hf:FOLDER, or the bundled stories/NAME: lfa, std-t,
    d-cas, cfm, pls, c2, dst-dense, dst-kron, llama, hdpl, gpt2, canon, kromcanon, kromcanon-b2,
    kromcanon-bf16, std-t-rope, dst-ind, dst-full-ind, kromhc; several make one table, with seeds as units and a
    curve over steps."""
    control: str | None = None
    """A control model of the same layers and heads: its numbers, and what the run has beyond them, unit by unit.
    RUN@all: each snapshot beside the control's of the same step."""
    edit: tuple[str, ...] = ()
    """Measure the runs under edits of your own, the control as it is: FILE.py:NAME@HOOK of a function (value, hook) ->
    value, or FILE.py:NAME of a function (model) -> {hook: function}. The file is executed, all of it,
    with your rights: give only files that you trust. RUN --control RUN says what they change."""
    out: Path | None = None
    """Write the main table (.parquet) here, the other tables and the observations beside it, or tables alone as .csv;
    killed, the same command goes on with the runs that are left."""
    figure: Path | None = None
    """Write the first figure here: .html, .svg, .pdf or .png."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """What weights and activations are kept in: bf16 takes half of the memory and keeps less than three digits."""
