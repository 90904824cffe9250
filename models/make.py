"""Builds a model from a preset's name or a configuration."""

from typing import Any

from streamscope.cli.errors import InputError
from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import override
from streamscope.models.transformer import StreamTransformer
from streamscope.text.tokenizer import Tokenizer


def build(
    name_or_config: str | ModelConfig, scale: str = "paper", *, tokenizer: Tokenizer | None = None, seed: int = 0,
    **overrides: Any,
) -> StreamTransformer:  # fmt: skip
    """Build a model with random weights, in evaluation mode.

    build("lfa", scale="tiny"), build("pls", n_layers=4, **{"attention.v": "kron"}), build(config).
    `scale` applies to preset names only. Raises `InputError` for unknown names and impossible parts.
    """
    if isinstance(name_or_config, str):
        config = preset(name_or_config, scale, **overrides)
    elif not isinstance(name_or_config, ModelConfig):
        text = f"{name_or_config!r:.80}"
        raise InputError(f"build takes the name of a preset, such as 'lfa', or a ModelConfig, not {text}")
    else:
        config = override(name_or_config, overrides)
    return StreamTransformer(config, tokenizer, seed=seed).eval()


def untrained(model: Any, seed: int = 0) -> StreamTransformer:
    """A model of the same architecture and vocabulary with random weights."""
    if not isinstance(model, StreamTransformer):
        raise InputError("an untrained control needs one of our architectures: leave untrained out")
    twin = build(model.config, seed=seed)
    twin.tokenizer = model.tokenizer
    return twin.to(model.cfg.device).eval()
