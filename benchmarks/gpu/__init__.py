"""Run the checks and timings that need a GPU, in pieces of under ten minutes.

    python -m benchmarks.gpu --out gpu.jsonl
    python -m benchmarks.gpu --out gpu.jsonl --pieces mfu --minutes 9
    python -m benchmarks.gpu --device cpu --scale tiny --out dry.jsonl

correctness  every preset in fp32: loss and gradients on the GPU against the CPU; in bf16 the loss
sync         training steps under `torch.cuda.set_sync_debug_mode("error")`, which raises where the host waits
mfu          tokens per second, MFU and peak memory of a training by `models.training.loop`, per preset and --compile
memory       peak of a step with and without per-layer supervision, V 50,257, 32 x 512 tokens

Every finding is written to --out at once. A second call continues with the missing cases, and a call stops after
--minutes. Without CUDA, the pieces that need it are skipped with a message; the others run on the CPU.
"""

from collections.abc import Sequence

from streamscope.benchmarks.gpu.options import Options
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, write."""
    options = parse(Options, argv, __doc__)
    if options.out is None:
        raise InputError("--out FILE is missing: name the file for the findings")

    from streamscope.benchmarks.gpu.measure import measure

    measure(options)
