"""Streamscope: small transformers built to be looked into, and the instruments that measure and change what they do.

    from streamscope import load, Documents, Prompts
    from streamscope.interventions import Ablate
    Ablate(heads="L4.*").measure(load("stories/lfa"), Documents("valid.txt"))

The framework lies here (`cli`, `text`, `instruments`). The rooms `models`, `probes`, `interventions`, `features`,
`viewer`, `papers` and `benchmarks` lie at the top of the repository. In a clone they are found there, installed or not,
and `python -m interventions.ablate` runs the same modules as `python -m streamscope.interventions.ablate`
(`streamscope.aliases`). Names are imported on first use, so that `import streamscope` is quick.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from streamscope.cli.errors import InputError as InputError
    from streamscope.instruments.data import Documents as Documents
    from streamscope.instruments.data import Labels as Labels
    from streamscope.instruments.data import Prompts as Prompts
    from streamscope.instruments.data import Sets as Sets
    from streamscope.instruments.data import Tasks as Tasks
    from streamscope.instruments.data import Text as Text
    from streamscope.instruments.data import Tokens as Tokens
    from streamscope.instruments.result import Result as Result
    from streamscope.models.checkpoint import load as load
    from streamscope.models.make import build as build

_CLONE = Path(__file__).resolve().parents[1]
if (_CLONE / "pyproject.toml").is_file() and (_CLONE / "models" / "__init__.py").is_file():
    __path__.append(str(_CLONE))

from streamscope import aliases as aliases  # noqa: E402  # with the path that it needs

_find, __dir__ = aliases.lazy(__name__, {
    **dict.fromkeys(
        ("Documents", "Labels", "Prompts", "Sets", "Tasks", "Text", "Tokens"), "streamscope.instruments.data"
    ),
    "InputError": "streamscope.cli.errors", "Result": "streamscope.instruments.result",
    "load": "streamscope.models.checkpoint", "build": "streamscope.models.make",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from streamscope.cli.provenance import version

        return version()
    return _find(name)
