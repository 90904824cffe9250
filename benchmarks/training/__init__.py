"""Time training against a plain GPT, across presets, and against the peak of the machine.

    python -m benchmarks.training
    python -m benchmarks.training --parts gpt supervision --widths 192 --vocabularies 4096 --compile
    python -m benchmarks.training --parts mfu --presets std-t kromcanon --device cuda

gpt          a whole training step of `std-t` beside a plain GPT (`benchmarks/plain_gpt.py`) of the same shape
presets      LFA's and DST's presets beside `std-t` of the same shape
supervision  `pls` beside `c2`: the ratio of times over the ratio of FLOPs
pairs        hdpl beside llama, kromcanon beside gpt2, at the papers' width and layers
mfu          model FLOPs utilisation of every preset against a measured ceiling: the fastest large matrix product
profile      the operators in which a step of each preset spends its time, by torch's profiler
gpus         on paper: what the gradients of 8 GPUs cost to sum, beside the step that they belong to

A step is forward, backward, clipping and the optimisers of `models.train`. Both sides of a ratio have the same shape,
dtype (bf16 autocast, or --dtype fp32) and compile setting, and take turns in one process; a figure is the median of the
rounds, with the smallest and largest. --clock process counts the processor's seconds: use it on a machine that others
keep busy, with one thread.
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
    if options.rounds < 1 or options.batch < 1:
        raise InputError("--rounds and --batch must be at least 1")

    from streamscope.benchmarks.training.measure import measure

    measure(options)
