"""Run the checks and timings that need a GPU, in pieces of under ten minutes.

    python -m benchmarks.gpu --out gpu.jsonl
    python -m benchmarks.gpu --out gpu.jsonl --pieces mfu --minutes 9
    python -m benchmarks.gpu --device cpu --scale tiny --out dry.jsonl

correctness  every preset in fp32: loss and gradients on the GPU beside those on the CPU; in bf16 the loss
sync         training steps under `torch.cuda.set_sync_debug_mode("error")`, which raises where the host waits
mfu          tokens per second, MFU and peak memory of a training by `models.training.loop`, per preset and --compile
memory       peak of a step with and without per-layer supervision, V 50,257, 32 x 512 tokens

Every finding is a row of --out as soon as it is there; a second call goes on with what is missing, and a piece stops
before --minutes are over. Without CUDA what needs it is left out with a line that says so; the rest runs on the CPU.
"""

from collections.abc import Sequence

from streamscope.benchmarks.gpu.options import Options
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, look, write."""
    options = parse(Options, argv, __doc__)
    if options.out is None:
        raise InputError("--out FILE is missing: say where the findings go")

    from streamscope.benchmarks.gpu.measure import measure

    measure(options)
