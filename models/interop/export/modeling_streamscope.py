"""A streamscope model for the transformers library, as `streamscope export` writes it.

Modules named hook_* are identities, where a forward hook of torch can read or replace an activation.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict
from streamscope.models.decoder import Decoder
from streamscope.models.interop.export.configuration_streamscope import StreamscopeConfig

SILENT = ("return_dict", "use_cache", "cache_position", "num_items_in_batch")
"""Arguments of the library that have no effect here, or that only its loss reads."""


class Head(nn.Module):
    """The unembedding, which shares the decoder's matrix and cap."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self._decoder = [decoder]  # in a list, so that its weights are not registered twice

    @property
    def weight(self) -> Tensor:
        return self._decoder[0].unembed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self._decoder[0].unembed(x)


class StreamscopeForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with the library's interface. Without a cache of keys and values, each new token runs the whole
    text."""

    config_class = StreamscopeConfig
    base_model_prefix = "model"

    def __init__(self, config: StreamscopeConfig) -> None:
        super().__init__(config)
        made_here = torch.empty(0).device.type != "meta"
        with torch.device("cpu"):  # not on the library's meta device, which would drop computed buffers
            self.model = Decoder(from_dict(ModelConfig, config.parts))
        self.lm_head = Head(self.model)
        if made_here:
            self.model.init_weights(0)
            for p in self.model.parameters():
                p._is_hf_initialized = True  # type: ignore[attr-defined]
        self._computed = {
            module: {n: b.clone() for n, b in module.named_buffers(recurse=False)} for module in self.model.modules()
        }
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Restore the computed buffers of a module (positions, permutations). Raises for missing weights."""
        if any(not getattr(p, "_is_hf_initialized", False) for p in module.parameters(recurse=False)):
            raise ValueError(f"the checkpoint lacks weights of a {type(module).__name__}")
        for name, value in self._computed.get(module, {}).items():
            getattr(module, name).copy_(value)

    def get_input_embeddings(self) -> Any:
        return self.model.embed

    def get_output_embeddings(self) -> Any:
        return None if self.model.config.readout.tied else self.model.unembed

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None,
        logits_to_keep: int = 0, output_hidden_states: bool | None = None, output_attentions: bool | None = None,
        **options: Any,
    ) -> CausalLMOutput:  # fmt: skip
        """Logits [B, T, V], or only the last `logits_to_keep`; with `labels` also the next-token loss.

        Texts are padded left or right. `hidden_states` are the readouts before every layer and the input of the head;
        `attentions` are the weights of every layer [B, H, T, T]. The loss excludes the per-layer terms and penalties of
        streamscope's training. Raises `ValueError` for a mask with gaps and `TypeError` for an unknown argument.
        """
        if unknown := [name for name, value in options.items() if value is not None and name not in SILENT]:
            raise TypeError(f"a streamscope model does not accept {unknown[0]}")
        tokens, shift = _to_the_left(input_ids, attention_mask)
        readouts, patterns = list[Tensor](), list[Tensor]()
        with ExitStack() as listening:
            for block in self.model.blocks if output_attentions else ():
                point: Any = block.get_submodule("attn.hook_pattern")
                handle = point.register_forward_hook(lambda module, inputs, pattern: patterns.append(pattern))
                listening.callback(handle.remove)
            state = self.model.embed_tokens(tokens)
            for layer in range(self.model.config.n_layers):
                if output_hidden_states:
                    readouts.append(_back(self.model.readout(state), shift))
                state = self.model.segment(state, layer, layer + 1)
        x = self.model.ln_final(_back(self.model.readout(state), shift)[:, -logits_to_keep:])
        logits = self.lm_head(x)
        if output_hidden_states:
            readouts.append(x)
        loss, n = None, options.get("num_items_in_batch")
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch=n)
        for i, pattern in enumerate(patterns):  # [B, H, T, T], queries and keys at their given positions
            queries = _back(pattern.transpose(1, 2), shift)
            patterns[i] = _back(queries.transpose(1, 3), shift).permute(0, 2, 3, 1)
        return CausalLMOutput(
            loss=loss, logits=logits, hidden_states=tuple(readouts) or None, attentions=tuple(patterns) or None
        )


def _to_the_left(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rotate rows so that their text starts at position 0; returns them with the shifts, or None without any."""
    if mask is None or bool(mask.all()):
        return tokens, None
    real = mask.bool()
    shift = real.int().argmax(1)
    turned = _turn(real, shift)
    if bool((turned != (torch.arange(real.shape[1], device=real.device) < real.sum(1, keepdim=True))).any()):
        raise ValueError("attention_mask has gaps: a row must be one text, padded left or right")
    return (tokens, None) if not bool(shift.any()) else (_turn(tokens, shift), shift)


def _back(x: Tensor, shift: Tensor | None) -> Tensor:
    return x if shift is None else _turn(x, -shift)


def _turn(x: Tensor, shift: Tensor) -> Tensor:
    """Rotate each row [T, …] of x to the left by its own shift."""
    where = (torch.arange(x.shape[1], device=x.device) + shift[:, None]) % x.shape[1]
    return x[torch.arange(x.shape[0], device=x.device)[:, None], where]
