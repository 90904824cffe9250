"""Take a picture of the live page, such as README's.

    python -m viewer.screenshot --out docs/view.png
    python -m viewer.screenshot stories/gpt2 --address "#text=Lily had a red ball. She&head=L3.H2" --out gpt2.png

The address is what "Copy link" of a page gives, from # on: it holds the text, the head and the changes. Playwright
drives a Chromium that is installed on the system. No server runs: this process answers the page's questions.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from annotated_types import Ge

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

ADDRESS = "http://127.0.0.1:9/"
"""Where the page thinks that it is. Nothing listens there: this process answers."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TEXT = "No boy bowed like Neil, and no girl danced like Kate. He"
"""Of the short texts of the suite stories-told, one whose next word a single head of stories/lfa decides."""
README = f'#text={TEXT}&head=L4.H0&edits={{"heads":{{"L1.H1":{{"scale":0}}}}}}'
"""That head is off. The head shown is the one whose attention moves most."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m viewer.screenshot`."""

    out: Path
    """Write the picture here (.png)."""
    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN…]")] = ()
    """Models of the page, as `streamscope view` takes them. Default: stories/lfa."""
    circuit: tuple[Path, ...] = ()
    """Circuits of the models, as `streamscope view` takes them; the address shows them with grid=circuit."""
    address: str = README
    """What the page shows: the address that "Copy link" gives, from # on. Default: README's picture."""
    width: Annotated[int, Ge(320)] = 1280
    """Width of the window in CSS pixels."""
    height: Annotated[int, Ge(200)] = 960
    """Height of the window in CSS pixels."""
    dark: bool = False
    """Use the dark colours."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium of the system, driven by Playwright. Raises `InputError` where one of them is not installed."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise InputError("Playwright is not installed: pip install playwright") from None
    path = next((executable for name in BROWSERS if (executable := shutil.which(name))), None)
    if path is None:
        raise InputError("no Chromium is installed: on Debian, apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Answers:
    """A page at `ADDRESS` and the answers to its questions, for Playwright's `route`."""

    def __init__(self, session: Any, html: str) -> None:
        self.session, self.html = session, html

    def __call__(self, route: Any) -> None:
        path = route.request.url.removeprefix(ADDRESS).partition("?")[0]
        if not path:
            route.fulfill(body=self.html, content_type="text/html")
            return
        status, content_type, body = self.session.reply(path, route.request.post_data_buffer)
        route.fulfill(status=status, content_type=content_type, body=body)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if options.out.suffix != ".png":
        raise InputError(f"--out {options.out}: the picture is a file with the suffix .png")
    from streamscope.cli.disk import check_writable, write_atomically
    from streamscope.viewer import bundle
    from streamscope.viewer.session import Session, open_models, page_data

    check_writable(options.out)
    models = open_models(options.run or ("stories/lfa",), circuits=options.circuit)
    answers = Answers(Session(models), bundle.page(page_data(models, "server")))
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": options.width, "height": options.height}, device_scale_factor=1.5,
            color_scheme="dark" if options.dark else "light", reduced_motion="reduce",
        )  # fmt: skip
        page.route("**/*", answers)
        page.goto(ADDRESS + options.address)
        page.wait_for_selector("main[data-state=ready]")
        page.wait_for_selector(".lens :is(td, .reason)")  # a bridge has no lens
        picture = page.screenshot()
    write_atomically(options.out, lambda part: part.write_bytes(picture))


if __name__ == "__main__":
    command(main)
