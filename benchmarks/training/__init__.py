"""Time training against a plain GPT, across presets, and against the peak of the machine.

    python -m benchmarks.training
    python -m benchmarks.training --parts gpt supervision --widths 192 --vocabularies 4096 --compile
    python -m benchmarks.training --parts mfu --presets std-t kromcanon --device cuda

gpt          a whole training step of `std-t` against a plain GPT (`benchmarks/plain_gpt.py`) of the same shape
presets      LFA's and DST's presets against `std-t` of the same shape
supervision  `pls` against `c2`: the ratio of times over the ratio of FLOPs
pairs        hdpl against llama, kromcanon against gpt2, at the papers' width and layers
mfu          model FLOPs utilisation of every preset against a measured ceiling: the fastest large matrix product
profile      the operators in which a step of each preset spends its time, by torch's profiler
gpus         an estimate: the time to sum the gradients of 8 GPUs, compared with the training step

A step is forward, backward, clipping and the optimisers of `models.train`. Both sides of a ratio have the same shape,
dtype (bf16 autocast, or --dtype fp32) and compile setting, and take turns in one process. A figure is the median of
the rounds, with the smallest and largest. --clock process counts processor seconds; use it with one thread on a busy
machine.
"""

from collections.abc import Sequence

from streamscope.benchmarks.training.options import Options
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)
    for pair in options.pairs:
        if pair.count(":") != 1:
            raise InputError(f"--pairs {pair}: give PRESET:PEER, for example hdpl:llama")

    from streamscope.benchmarks.training.measure import measure

    measure(options)
