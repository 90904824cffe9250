"""The configuration of a streamscope model for the transformers library."""

from typing import Any

from transformers import PretrainedConfig

from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict, to_dict


def _size(name: str) -> property:
    return property(lambda config: getattr(config._sizes, name))


class StreamscopeConfig(PretrainedConfig):
    """`parts` is the configuration of the model; sizes are also available under the library's names."""

    model_type = "streamscope"

    def __init__(self, parts: dict[str, Any] | None = None, **options: Any) -> None:
        self._sizes = from_dict(ModelConfig, parts or {})
        self.parts = to_dict(self._sizes)
        super().__init__(**{"use_cache": False, "tie_word_embeddings": self._sizes.readout.tied} | options)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "_sizes"}

    vocab_size, hidden_size, intermediate_size = map(_size, ("d_vocab", "d_model", "d_mlp"))
    num_hidden_layers, num_attention_heads, num_key_value_heads = map(_size, ("n_layers", "n_heads", "kv_heads"))
    head_dim, max_position_embeddings = map(_size, ("d_head", "n_ctx"))
