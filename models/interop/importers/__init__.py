"""Import checkpoints of the papers' authors as runs: kromcanon's .npz and HDPL's .pt.

    python -m models.interop.importers checkpoints/kromcanon/final/model.npz --format kromcanon --out runs/theirs
    python -m models.interop.importers results/best_model_Baseline.pt --format hdpl --out runs/base --set n_heads=8

Every tensor is taken by its name, and a file with one too many, one too few or one of another shape is refused. Nothing
is unpickled: .pt files must hold tensors alone, as model.state_dict() does. What a file does not say (heads, context)
is taken from the authors' settings, which is printed, and can be said with --set. Formats that hold single layers
(KromHC, hyper-connections) are read in Python: `hyper_connection` of streamscope.models.interop.importers.connections.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.cli.terminal import visible


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m models.interop.importers`."""

    file: Annotated[Path | None, tyro.conf.Positional] = None
    """Checkpoint: .npz, .pt, .pth or .safetensors."""
    format: Literal["kromcanon", "hdpl"] | None = None
    """Whose names it has: teilomillet/kromcanon or VladimerKhasia/HDPL."""
    out: Path | None = None
    """Run folder to write; it must not be there yet."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """What the file does not say, for example --set n_heads=6 --set n_ctx=1024."""
    tokenizer: Path | None = None
    """A tokenizer.json, or a folder with one or with encoder.json and vocab.bpe, to put into the run."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, write, say what was read and what was assumed."""
    options = parse(Options, argv, __doc__)
    if options.file is None or options.format is None or options.out is None:
        raise InputError(
            "give a checkpoint, whose names it has and where the run goes: "
            "python -m models.interop.importers FILE --format kromcanon --out RUN"
        )

    from streamscope.models.config.serialization import parse_set
    from streamscope.models.interop.importers.formats import convert

    found = convert(options.file, options.format, options.out, parse_set(options.set), options.tokenizer)
    config = found.config
    print(
        visible(
            f"{config.name}: {config.n_layers} layers, {config.n_heads} heads, width {config.d_model} -> {options.out}"
        )
    )
    for name, value in found.assumed.items():
        print(f"the file does not say {name}; {value} is the authors' setting (--set {name}=…)")
