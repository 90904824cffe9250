"""Look into a model live: type a text, turn a head off, see what changes.

    python -m viewer.view stories/lfa
    python -m viewer.view stories/lfa stories/std-t --out page.html
    python -m viewer.view stories/lfa --circuit circuit.json
    python -m viewer.view stories/lfa --lens lenses.safetensors:tuned --dictionary FOLDER

Without --out, a local server answers: open the printed address in a browser; Ctrl-C ends it. It shows every model that
opens, hf:NAME too. With --out, one file is written that opens from disk without a network, for models of up to 20
million parameters; ONNX Runtime, which it holds, is fetched once by `python -m viewer.runtime`. Two models are shown
next to each other on one text. RUN@all adds a slider over the snapshots of a training. --circuit draws the edges that
`streamscope circuits RUN --out circuit.json` scored over the heads. --lens reads the streams by maps that
`streamscope lenses RUN --out lenses.parquet` fitted, in place of the logit lens. --dictionary shows
the latents of a folder that `streamscope dictionaries RUN --to FOLDER` wrote: hover says what a latent raises, a click
removes it. Both are in the file of --out too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from annotated_types import Ge, Le

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.models.run_names import run_folder

EXTRA = ("onnx", "onnxscript", "starlette", "uvicorn")  # what the page needs besides the rest


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m viewer.view`."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN…]")] = ()
    """One or two of: run folders, RUN@STEP, RUN@all, hf:NAME, or bundled models. Default: stories/lfa."""
    text: str | None = None
    """The first text in the page. Default: a sentence of the built-in stories."""
    circuit: tuple[Path, ...] = ()
    """Circuits to draw over the heads (.json or .pt), one for each model in their order."""
    lens: tuple[str, ...] = ()
    """Lenses to read the streams by, FILE:KIND, one for each model in their order. Default: the logit lens."""
    dictionary: tuple[str, ...] = ()
    """Folders of dictionaries whose latents are shown, one for each model in their order."""
    out: Path | None = None
    """Write the page here as one file (.html) instead of serving it."""
    port: Annotated[int, Ge(0), Le(65535)] = 0
    """Port of the local server; 0: a free one."""
    device: str = "auto"
    """auto, cpu or cuda; of the server."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Storage of weights and activations in the server."""


def check_extra() -> None:
    """Raise `InputError` where the packages of the extra `view` are not installed."""
    from importlib.util import find_spec

    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise InputError(f"{', '.join(missing)} is not installed: pip install 'streamscope[view]'")


def check_words(text: str | None) -> None:
    """Raise `InputError` for a text that is given and empty."""
    if text is not None and not text.strip():
        raise InputError("--text: the text is empty; give one with words, or leave it out")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    names, text = options.run or ("stories/lfa",), options.text or ""
    check_words(options.text)
    for name in names:
        run_folder(name.removesuffix("@all"))
    check_extra()
    from streamscope.viewer.session import open_models

    given = options.circuit, options.lens, options.dictionary
    if options.out is None:
        from streamscope.cli.provenance import pick_device
        from streamscope.viewer.server import serve

        serve(open_models(names, pick_device(options.device), options.dtype, *given), text, options.port)
        return
    if options.out.suffix != ".html":
        raise InputError(f"--out {options.out}: the page is a file with the suffix .html")
    if options.port or options.device != "auto" or options.dtype != "fp32":
        raise InputError("--port, --device and --dtype are of the local server: leave them out with --out")
    from streamscope.cli.disk import check_writable
    from streamscope.viewer.page import write_page

    check_writable(options.out)
    write_page(open_models(names, "cpu", "fp32", *given), options.out, text)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    command(main)
