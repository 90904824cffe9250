"""The configuration of a streamscope model for the transformers library."""

from typing import Any

from transformers import PretrainedConfig

from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict, to_dict


class StreamscopeConfig(PretrainedConfig):
    """`parts` is the configuration of the model, part by part; the library's names for its sizes read from it."""

    model_type = "streamscope"

    def __init__(self, parts: dict[str, Any] | None = None, **options: Any) -> None:
        self._sizes = from_dict(ModelConfig, parts or {})
        self.parts = to_dict(self._sizes)
        super().__init__(**{"use_cache": False, "tie_word_embeddings": self._sizes.readout.tied} | options)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {name: value for name, value in super().to_dict().items() if name != "_sizes"}

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._sizes.d_vocab

    @property
    def hidden_size(self) -> int:
        """D."""
        return self._sizes.d_model

    @property
    def intermediate_size(self) -> int:
        """M."""
        return self._sizes.d_mlp

    @property
    def num_hidden_layers(self) -> int:
        """L."""
        return self._sizes.n_layers

    @property
    def num_attention_heads(self) -> int:
        """H."""
        return self._sizes.n_heads

    @property
    def num_key_value_heads(self) -> int:
        """G."""
        return self._sizes.kv_heads

    @property
    def head_dim(self) -> int:
        """K."""
        return self._sizes.d_head

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence."""
        return self._sizes.n_ctx
