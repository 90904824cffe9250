"""Measure what three papers say of ordinary transformers on a real model that does their tasks.

    make smollm2
    python -m papers.mechanisms runs/smollm2 --out results/smollm2

    pds, coreference, sps, suppress    LFA: heads that follow places, heads that find the noun, SPS without the former
    amplify                            DST: loss and attention as attention is sharpened
    modes                              PLS: the layer where predictions settle, and clusters of structural features
    hydra                              PLS: how much later layers make up for a head

The cost is printed first. Each part is an instrument, whose result is written as soon as it is measured. The same
command measures what is missing.
Heads of `hydra` are those with the largest direct effect on other prompts than the measured ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.parse import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.mechanisms`."""

    run: Annotated[str, tyro.conf.Positional] = "runs/smollm2"
    """Run folder or hf:FOLDER."""
    out: Path
    """Folder for the tables."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, then import what measures."""
    options = parse(Options, argv, __doc__)
    from streamscope.papers.mechanisms.measure import measure

    measure(options)
