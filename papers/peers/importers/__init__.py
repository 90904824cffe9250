"""Import checkpoints of the papers' authors as runs: kromcanon's .npz and HDPL's .pt.

    python -m papers.peers.importers checkpoints/kromcanon/final/model.npz --format kromcanon --out runs/theirs
    python -m papers.peers.importers results/best_model_Baseline.pt --format hdpl --out runs/base --set n_heads=8

Tensors are matched by name; a file with a missing, additional or differently shaped tensor is refused. Nothing is
unpickled: .pt files must only hold tensors, as from model.state_dict(). Properties that a file lacks (heads, context)
come from the authors' settings, are printed, and can be changed with --set. For formats of single layers (KromHC,
hyper-connections), use `hyper_connection` of streamscope.papers.peers.importers.connections.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.cli.terminal import counted, visible


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.peers.importers`."""

    file: Annotated[Path | None, tyro.conf.Positional] = None
    """Checkpoint: .npz, .pt, .pth or .safetensors."""
    format: Literal["kromcanon", "hdpl"] | None = None
    """Repository of the names: teilomillet/kromcanon or VladimerKhasia/HDPL."""
    out: Path | None = None
    """Run folder to write; it must not exist."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Properties that the file lacks, for example --set n_heads=6 --set n_ctx=1024."""
    tokenizer: Path | None = None
    """A tokenizer.json, or a folder with one or with encoder.json and vocab.bpe, to add to the run."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, convert, print the result and the assumptions."""
    options = parse(Options, argv, __doc__)
    if options.file is None or options.format is None or options.out is None:
        raise InputError(
            "give a checkpoint, its format and an output folder: "
            "python -m papers.peers.importers FILE --format kromcanon --out RUN"
        )

    from streamscope.models.config.serialization import parse_set
    from streamscope.papers.peers.importers.formats import convert

    model = convert(options.file, options.format, options.out, parse_set(options.set), options.tokenizer)
    c = model.config
    shape = f"{counted(c.n_layers, 'layer')}, {counted(c.n_heads, 'head')}, width {c.d_model}"
    print(visible(f"{c.name}: {shape} -> {options.out}"))
    for name, value in model.assumed.items():
        print(f"the file lacks {name}; {value} is the authors' setting (change it by --set {name}=…)")
