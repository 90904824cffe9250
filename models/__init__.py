"""Models: architectures, hooks, sweeps, training, and models of other libraries.

    from streamscope.models import build, load
    model = build("lfa", scale="small")
    model = load("runs/lfa")
    from streamscope.models.hooks import capture, edit, run

Names are imported on first use, so that commands answer `--help` without loading torch.
"""

from typing import TYPE_CHECKING, Any

from streamscope.aliases import alias

if TYPE_CHECKING:
    from streamscope.cli.errors import InputError
    from streamscope.models.checkpoint import load
    from streamscope.models.config import ModelConfig
    from streamscope.models.config.presets import preset
    from streamscope.models.hooks import Query, edit, run
    from streamscope.models.make import build
    from streamscope.models.transformer import StreamTransformer

_HOME = {
    "build": "models.make", "Query": "models.hooks", "edit": "models.hooks", "run": "models.hooks",
    "load": "models.checkpoint", "ModelConfig": "models.config", "InputError": "cli.errors",
    "preset": "models.config.presets", "StreamTransformer": "models.transformer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"streamscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = ["InputError", "ModelConfig", "Query", "StreamTransformer", "build", "edit", "load", "preset", "run"]

alias(__name__)
