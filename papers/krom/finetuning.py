"""Fine-tune runs of KROM on a safety contrast; compare their directions and losses before and after.

    python -m papers.krom.finetuning runs/kromcanon-b2-fp32-s0 runs/kromcanon-b8-bf16-s0
    python -m papers.krom.finetuning runs/kromcanon-*-s* --steps 500 --out rows.csv

The blog fine-tunes on helpful and harmful prompts and reads the direction between them in every stream. Here a run is
fine-tuned on `datasets/safety/train.jsonl`, as the authors' code does it (SPEC §1.7, §1.10 c): AdamW, rate 6e-5, decay
.01, clip 1, batches of 16 padded to the context, and a loss over prompt, response and padding. As a control a second
copy is fine-tuned on the same texts, half of whose scenes have their two responses exchanged: they hold no contrast.
Directions and refusals are those of the held-out scenes.

    first, noise        that loss of the training pairs before; its standard deviation over batches
    delta               by how much it rises
    responses           by how much the loss of held-out responses alone rises
    cosine, shuffled    cosine between streams of the direction harmful − harmless; of shuffled labels (SPEC §1.6)
    excess              cosine − shuffled; *.before: of the run itself, *.control: of the control
    gain, gain.control  excess after − excess before; `beyond`: gain − gain.control
    refusal.harmful     probability that a harmful prompt is answered with a refusal; refusal.harmless: a harmless one
    refusal.abliterated of harmful prompts, when the direction is projected out of all outputs (SPEC §1.8)
    refusal.random      the same with a random direction, mean of three

A model of one stream has no cosine between streams: these rows are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.bounds import Count, Positive
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom.finetuning`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Run folders, called ARM-sSEED."""
    steps: Count = 240
    """Batches of 16 pairs; 30 are one pass through the training pairs. The blog has 500, of other pairs."""
    rate: Positive = 6e-5
    """Learning rate of AdamW."""
    out: Path | None = None
    """Write the rows here (.csv)."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, fine-tune, measure, print, write."""
    options = parse(Options, argv, __doc__)

    from functools import partial

    from streamscope.cli.disk import write_text
    from streamscope.papers.krom.safety import finetune
    from streamscope.papers.paper import measure_runs

    rows = measure_runs(
        options.runs,
        (partial(finetune, options=options),),
        "own text, then requests",
        "python -m papers.krom.finetuning …",
    )
    means = rows.pivot_table(index="quantity", columns="arm", values="value", sort=False)
    print(means.to_string(float_format="{:.4f}".format, na_rep=""))
    if options.out:
        write_text(options.out, rows.to_csv(index=False))
        print(f"written {options.out}")


if __name__ == "__main__":
    command(main)
