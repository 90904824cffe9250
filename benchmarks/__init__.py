"""Speed against a named peer, as a ratio measured in one run."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from streamscope.aliases import lazy
from streamscope.cli.parse import parse


def main_of(options: type, module: str) -> Callable[..., None]:
    """The `main` of a benchmark: parse, then import what measures."""

    def main(argv: Sequence[str] | None = None) -> None:
        parsed: Any = parse(options, argv, import_module(module).__doc__)
        import_module(f"{module}.measure").measure(parsed)

    return main


__getattr__, __dir__ = lazy(__name__)
