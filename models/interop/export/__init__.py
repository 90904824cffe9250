"""Export a run as a Hugging Face folder.

    python -m models.interop.export lfa --out exported/lfa
    python -m models.interop.export runs/lfa --out exported/lfa --snapshots
    python -m models.interop.export stories/llama --out exported/llama --native

AutoModelForCausalLM.from_pretrained("exported/lfa", trust_remote_code=True) opens the first one with the same logits,
where streamscope is installed. --snapshots also writes a folder for each snapshot of the run. --native writes a class
of the library itself (GPT-2, GPT-NeoX, Llama, Qwen2, Qwen3), which needs none of our code, if one computes the same; it
raises an error otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.cli.terminal import visible
from streamscope.models.run_names import run_folder


@dataclass(frozen=True, kw_only=True)
class Options:
    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder, RUN@STEP, a bundled model, or hf:FOLDER."""
    out: Path | None = None
    """Folder to write; it must not exist."""
    native: bool = False
    """Write a class of the library itself, which needs none of our code."""
    snapshots: bool = False
    """Also write every snapshot of the run, as OUT/step-000512."""
    license: str = ""
    """Licence of the model in the hub's spelling (mit, apache-2.0); default for bundled models: mit."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if not options.run or options.out is None:
        raise InputError("give a run and an output folder: python -m models.interop.export RUN --out FOLDER")

    run_folder(options.run)
    from streamscope.models.interop.export.write import export

    choices = {"native": options.native, "snapshots": options.snapshots}
    for folder, content in export(options.run, options.out, license=options.license, **choices):
        print(visible(f"{folder}  {content}"))
