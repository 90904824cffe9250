"""Fine-tune runs of KROM on a safety contrast; compare their directions and losses before and after.

    python -m papers.krom.finetuning runs/kromcanon-b2-* runs/kromcanon-b8-bf16-*
    python -m papers.krom.finetuning runs/kromcanon-* --steps 500 --out results/krom_finetuning
    python -m papers.krom.finetuning --tables results/krom_finetuning --out results/krom_finetuning

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

What the blog says of a bias of −8, at which no streams mix, is judged on models that are stored in bf16 as its own are:
in fp32 weight decay moves the mixing of a long training away from it. Units are training seeds. A model of one stream
has no cosine between streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streamscope.cli.bounds import Count, Positive
from streamscope.cli.parse import command, parse
from streamscope.papers.comparison.options import RunsOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is fine-tuned."""

    steps: Count = 240
    """Batches of 16 pairs; 30 are one pass through the training pairs. The blog has 500, of other pairs."""
    rate: Positive = 6e-5
    """Learning rate of AdamW."""


@dataclass(frozen=True, kw_only=True)
class Options(RunsOptions, Settings):
    """Arguments of `python -m papers.krom.finetuning`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, fine-tune, measure, judge, print, write."""
    options = parse(Options, argv, __doc__)
    options.check("papers.krom.finetuning runs/kromcanon-b2-0")

    from dataclasses import replace

    from streamscope.papers.comparison.report import compare, of_quantities
    from streamscope.papers.krom.finetuning_measure import claims, measured

    title = "directions, losses and refusals, over seeds"
    compare(replace(of_quantities("papers.krom.finetuning", title, measured, claims), settings=Settings), options)


if __name__ == "__main__":
    command(main)
