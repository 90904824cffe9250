"""How fast the other architectures train beside their plain counterparts: hdpl beside llama, kromcanon beside gpt2.

    python -m benchmarks.architectures --compile
    python -m benchmarks.architectures --pairs kromhc:gpt2 canon:gpt2 --batch 8 --device cuda

Both models of a pair have the paper's shape but for vocabulary and context, see the same tokens, in bf16 autocast. The
first line of a pair is a whole training step with the optimisers of `models.train` (AdamW; Muon for matrices in the
GPT-2 family), clipping included; the second the forward and backward pass alone. A ratio above 1: the first trains
faster than its peer. Times are medians, pair by pair in turn (`benchmarks.timing`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.cli import command, parse
from models.errors import InputError

if TYPE_CHECKING:
    from models.transformer import StreamTransformer


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m benchmarks.architectures`."""

    pairs: tuple[str, ...] = ("hdpl:llama", "kromcanon:gpt2", "kromhc:gpt2", "canon:gpt2")
    """Preset and its peer."""
    vocabulary: int = 4096
    """Token ids."""
    context: int = 256
    """Tokens per sequence."""
    batch: int = 8
    """Sequences per step."""
    rounds: int = 7
    """Timed pairs."""
    device: str = "cpu"
    """cpu or cuda."""
    compile: bool = False
    """torch.compile the blocks, as `models.train --compile` does."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = parse(Options, argv, __doc__)
    for pair in options.pairs:
        if pair.count(":") != 1:
            raise InputError(f"--pairs {pair}: give PRESET:PEER, for example hdpl:llama")
    import torch

    from benchmarks.timing import paired

    kind = "bf16 autocast, " + ("compiled" if options.compile else "eager")
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads; {kind}")
    for pair in options.pairs:
        names = pair.split(":")
        models = [_model(name, options) for name in names]
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.context + 1))
        c = models[0].config
        print(
            f"{names[0]} ({models[0].n_params():,} parameters) beside {names[1]} ({models[1].n_params():,}): "
            f"width {c.d_model}, {c.n_layers} layers, {c.n_heads} heads, vocabulary {c.d_vocab}, "
            f"{options.batch} x {options.context} tokens"
        )
        steps = [_steps(model, name, tokens, options) for model, name in zip(models, names, strict=True)]
        for i, what in enumerate(("training step", "forward + backward")):
            result = paired(steps[1][i], steps[0][i], rounds=options.rounds, warmup=2)
            speed = options.batch * options.context / result.second
            print(
                f"  {what}: {names[0]} {speed:,.0f} tokens/s, {result.ratio:.3f} x {names[1]} "
                f"(pairs {result.low:.3f} to {result.high:.3f})"
            )


def _model(name: str, options: Options) -> "StreamTransformer":
    from models import build, preset

    spec = preset(name, "paper", d_vocab=options.vocabulary, n_ctx=options.context)
    return build(spec).to(options.device).train()


def _steps(
    model: "StreamTransformer", name: str, tokens: Any, options: Options
) -> tuple[Callable[[], None], Callable[[], None]]:
    """(a whole training step, its forward and backward pass)."""
    import torch

    from models.training.config import Training, with_recipe
    from models.training.optim import make_optimizer

    optimizer = make_optimizer(model, with_recipe(Training(), name, "paper"))
    blocks = [torch.compile(block.forward) for block in model.blocks] if options.compile else None
    x, y = tokens[:, :-1].to(options.device), tokens[:, 1:].to(options.device)

    def passes() -> None:
        with torch.autocast(options.device, dtype=torch.bfloat16):
            loss = model.loss(x, y, blocks=blocks)[0]
        loss.backward()

    def done() -> None:
        if options.device == "cuda":
            torch.cuda.synchronize()

    def step() -> None:
        passes()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done()

    def both() -> None:
        passes()
        optimizer.zero_grad()
        done()

    return step, both


if __name__ == "__main__":
    command(main)
