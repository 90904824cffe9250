"""Models: architectures, hooks, sweeps, training, and models of other libraries.

    from streamscope.models import build, load
    model = build("lfa", scale="small")
    model = load("runs/lfa")
    from streamscope.models.hooks import capture, edit, run

Names are imported on first use, so that commands answer `--help` without loading torch.
"""

from typing import TYPE_CHECKING

from streamscope.aliases import lazy

if TYPE_CHECKING:
    from streamscope.cli.errors import InputError
    from streamscope.models.checkpoint import load
    from streamscope.models.config import ModelConfig
    from streamscope.models.config.presets import preset
    from streamscope.models.hooks import Query, edit, run
    from streamscope.models.make import build
    from streamscope.models.transformer import StreamTransformer

__all__ = ["InputError", "ModelConfig", "Query", "StreamTransformer", "build", "edit", "load", "preset", "run"]
__getattr__, __dir__ = lazy(__name__, {
    **dict.fromkeys(("Query", "edit", "run"), "streamscope.models.hooks"),
    "InputError": "streamscope.cli.errors", "ModelConfig": "streamscope.models.config",
    "StreamTransformer": "streamscope.models.transformer", "build": "streamscope.models.make",
    "load": "streamscope.models.checkpoint", "preset": "streamscope.models.config.presets",
})  # fmt: skip
