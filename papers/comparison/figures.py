"""Figures of a paper's page on disk."""

from pathlib import Path
from typing import Any

from streamscope.cli.disk import write_atomically, write_text

EXTRA = "the static figure needs kaleido and Chromium: pip install -e '.[figures]'"


def write_figures(canvas: Any, folder: Path, static: str, html: bool = True) -> list[str]:
    """Write figure.html if wanted and, unless `static` is none, figure.svg or .png; the lines to tell the user."""

    said = []
    if html:
        page, text = folder / "figure.html", canvas.to_html(include_plotlyjs=True)
        write_text(page, text)
        said.append(f"figure {page}")
    if static == "none":
        return said
    try:
        import kaleido  # noqa: F401
    except ImportError:
        return [*said, f"no figure.{static}: {EXTRA}"]
    try:
        image = canvas.to_image(format=static, scale=1 if static == "svg" else 2)
    except Exception as error:  # kaleido raises errors of Chromium, of its own and of asyncio
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return [*said, f"no figure.{static}: {EXTRA} ({reason})"]
    picture = folder / f"figure.{static}"
    write_atomically(picture, lambda part: part.write_bytes(image))
    return [*said, f"figure {picture}"]
