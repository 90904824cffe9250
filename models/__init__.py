"""Models: architectures, hooks, text, training, capture.

    from models import build, load
    model = build("lfa", scale="small")
    model = load("runs/lfa")
    from models.capture import capture, edit, run

Names are imported on first use, so that commands answer `--help` without loading torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.capture import Query, edit, run
    from models.checkpoint import load
    from models.config import ModelConfig
    from models.errors import InputError
    from models.make import build
    from models.presets import preset
    from models.transformer import StreamTransformer

_HOME = {
    "build": "make",
    "Query": "capture",
    "edit": "capture",
    "run": "capture",
    "load": "checkpoint",
    "ModelConfig": "config",
    "InputError": "errors",
    "preset": "presets",
    "StreamTransformer": "transformer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"models.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = [
    "InputError",
    "ModelConfig",
    "Query",
    "StreamTransformer",
    "build",
    "edit",
    "load",
    "preset",
    "run",
]
