"""Open GPT-2, GPT-NeoX (Pythia), Llama, Qwen2 and Qwen3 folders from Hugging Face as our models.

    python -m models.interop.huggingface ./pythia-70m --out runs/pythia
    python -m interventions.ablate hf:./pythia-70m --data stories:1:200

The first writes a run folder that every command takes; the second does so in the cache, once for each state of the
folder. A name such as hf:EleutherAI/pythia-70m is looked up in the hub's cache on this machine; nothing is fetched.
Weights are read from safetensors, sharded or not; pickled ones are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.cli.terminal import visible


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m models.interop.huggingface`."""

    folder: Annotated[str, tyro.conf.Positional] = ""
    """Folder with config.json and safetensors, or the name of a model in the hub's cache."""
    out: Path | None = None
    """Run folder to write."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, convert, say where it lies."""
    options = parse(Options, argv, __doc__)
    if not options.folder or options.out is None:
        raise InputError("give a folder and where the run goes: python -m models.interop.huggingface FOLDER --out RUN")

    from streamscope.models.interop.huggingface.convert import convert, source_folder

    config = convert(source_folder(options.folder), options.out)
    print(
        visible(
            f"{config.name}: {config.n_layers} layers, {config.n_heads} heads, width {config.d_model} -> {options.out}"
        )
    )
