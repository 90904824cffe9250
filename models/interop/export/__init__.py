"""Export a run as a Hugging Face folder that needs only torch and transformers.

    python -m models.interop.export lfa --out exported/lfa
    python -m models.interop.export runs/lfa --out exported/lfa --snapshots
    python -m models.interop.export stories/llama --out exported/llama --native

The first is opened by AutoModelForCausalLM.from_pretrained("exported/lfa", trust_remote_code=True), where streamscope
need not be installed, with the logits that the model has here. --snapshots writes a folder for each snapshot of the
run as well. --native writes a class of the library's own (GPT-2, GPT-NeoX, Llama, Qwen2, Qwen3) where one computes the
same, and says so in one line where none does.
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
    """Arguments of `python -m models.interop.export`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder, RUN@STEP, a bundled model, or hf:FOLDER."""
    out: Path | None = None
    """Folder to write; it must not be there yet."""
    native: bool = False
    """Write a class of the library's own, which needs no code of ours."""
    snapshots: bool = False
    """Write every snapshot of the run too, as OUT/step-000512."""
    license: str = ""
    """Licence of the model, as the hub names it (mit, apache-2.0); that of bundled models is known."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, write, say what lies where."""
    options = parse(Options, argv, __doc__)
    if not options.run or options.out is None:
        raise InputError("give a run and where its export goes: python -m models.interop.export RUN --out FOLDER")

    from streamscope.models.interop.export.write import export

    for folder, told in export(
        options.run, options.out, native=options.native, snapshots=options.snapshots, license=options.license
    ):
        print(visible(f"{folder}  {told}"))
