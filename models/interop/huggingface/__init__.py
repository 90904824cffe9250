"""Open Hugging Face folders and GGUF files as ours: GPT-2, GPT-NeoX (Pythia), Llama and relatives.

    python -m models.interop.huggingface ./pythia-70m --out runs/pythia
    python -m models.interop.huggingface SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2
    python -m interventions.ablate hf:./pythia-70m --data stories:1:200

The first writes a run folder, which every command accepts. The second writes it to the cache, once per state of the
folder. A name such as hf:EleutherAI/pythia-70m is looked up in the hub's cache on this machine; nothing is downloaded.
The relatives are Mistral, Gemma 2 and 3, OLMo 2, Phi-3, SmolLM3, Qwen2 and Qwen3. Weights are read from safetensors,
sharded or not, or dequantised from a GGUF file; pickled and other quantised weights are refused. A LoRA adapter of PEFT
next to the weights is merged into them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.cli.terminal import counted, visible


@dataclass(frozen=True, kw_only=True)
class Options:
    folder: Annotated[str, tyro.conf.Positional] = ""
    """Folder with config.json and safetensors, GGUF file, or name of a model in the hub's cache."""
    out: Path | None = None
    """Run folder to write."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if not options.folder or options.out is None:
        raise InputError("give a folder and an output folder: python -m models.interop.huggingface FOLDER --out RUN")

    from streamscope.models.interop.huggingface.convert import convert, source_folder

    c = convert(source_folder(options.folder), options.out)
    shape = f"{counted(c.n_layers, 'layer')}, {counted(c.n_heads, 'head')}, width {c.d_model}"
    print(visible(f"{c.name}: {shape} -> {options.out}"))
