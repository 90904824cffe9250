"""A streamscope model for the transformers library.

Written by `streamscope export`. The files streamscope_*.py beside this one are streamscope's own, so the forward pass
here is the one there; nothing but torch and transformers is needed. Points named hook_* are modules that return
what they are given: a forward hook of torch there reads an activation, or replaces it.
"""

from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict
from streamscope.models.decoder import Decoder
from streamscope.models.interop.export.configuration_streamscope import StreamscopeConfig

SILENT = ("return_dict", "use_cache", "cache_position", "num_items_in_batch")
"""Arguments of the library that change nothing here, or that its loss reads."""


class Head(nn.Module):
    """Logits of what the decoder reads out, by its matrix, of which this has no copy."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self._decoder = [decoder]  # in a list, so that its weights are not here as well

    @property
    def weight(self) -> Tensor:
        """[V, D]."""
        return self._decoder[0].head

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ."""
        return F.linear(x, self.weight)


class StreamscopeForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with the library's calls. There is no cache of keys and values: each new token runs all before it."""

    config_class = StreamscopeConfig
    base_model_prefix = "model"

    def __init__(self, config: StreamscopeConfig) -> None:
        super().__init__(config)
        made_here = torch.empty(0).device.type != "meta"
        with torch.device("cpu"):  # also where the library makes modules without numbers, for it drops what is computed
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
        """Give a module back what it computed (positions, permutations). Raises for weights that no file has."""
        if any(not getattr(p, "_is_hf_initialized", False) for p in module.parameters(recurse=False)):
            raise ValueError(f"the checkpoint lacks weights of a {type(module).__name__}")
        for name, value in self._computed.get(module, {}).items():
            getattr(module, name).copy_(value)

    def get_input_embeddings(self) -> Any:
        """The token embedding, which is the head as well where the head is tied."""
        return self.model.embed

    def get_output_embeddings(self) -> Any:
        """The head of its own; None where it is the token embedding."""
        return self.model.unembed

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **_: Any) -> dict[str, Any]:
        """The whole sequence at every step."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> CausalLMOutput:
        """Logits [B, T, V], with `logits_to_keep` the last of them; with `labels` the next-token loss as well.

        Padding lies left or right of a text. `hidden_states` are the readouts of the state before every layer, and what
        the head reads; `attentions` are the weights of every layer, [B, H, T, T]. The loss has neither the per-layer
        terms nor the penalties of streamscope's own training.
        Raises `ValueError` for a mask with gaps and `TypeError` for an argument that this model does not know.
        """
        if unknown := [name for name, value in options.items() if value is not None and name not in SILENT]:
            raise TypeError(f"a streamscope model takes no {unknown[0]}")
        tokens, shift = _to_the_left(input_ids, attention_mask)
        seen, patterns = list[Tensor](), list[Tensor]()
        with ExitStack() as listening:
            for block in self.model.blocks if output_attentions else ():
                point: Any = block.get_submodule("attn.hook_pattern")
                handle = point.register_forward_hook(lambda module, inputs, pattern: patterns.append(pattern))
                listening.callback(handle.remove)
            state = self.model.embed_tokens(tokens)
            for layer in range(self.model.config.n_layers):
                if output_hidden_states:
                    seen.append(_back(self.model.readout(state), shift))
                state = self.model.segment(state, layer, layer + 1)
        x = self.model.ln_final(_back(self.model.readout(state), shift)[:, -logits_to_keep:])
        logits = self.lm_head(x)
        if output_hidden_states:
            seen.append(x)
        loss = None
        if labels is not None:
            batch = {"num_items_in_batch": options.get("num_items_in_batch")}
            loss = self.loss_function(logits, labels, self.config.vocab_size, **batch)
        for i, pattern in enumerate(patterns):  # [B, H, T, T], queries and keys each where they were given
            queries = _back(pattern.transpose(1, 2), shift)
            patterns[i] = _back(queries.transpose(1, 3), shift).permute(0, 2, 3, 1)
        return CausalLMOutput(
            loss=loss, logits=logits, hidden_states=tuple(seen) or None, attentions=tuple(patterns) or None
        )


def _to_the_left(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows turned so that their text begins at position 0, and how far each was turned; None for not at all."""
    if mask is None or bool(mask.all()):
        return tokens, None
    real = mask.bool()
    shift = real.int().argmax(1)
    turned = _turn(real, shift)
    if bool((turned != (torch.arange(real.shape[1], device=real.device) < real.sum(1, keepdim=True))).any()):
        raise ValueError("attention_mask has gaps: a streamscope model reads one text a row, padded left or right")
    return (tokens, None) if not bool(shift.any()) else (_turn(tokens, shift), shift)


def _back(x: Tensor, shift: Tensor | None) -> Tensor:
    """Rows as they were given."""
    return x if shift is None else _turn(x, -shift)


def _turn(x: Tensor, shift: Tensor) -> Tensor:
    """Each row [T, …] of x moved to the left by its own number of places, around the end."""
    where = (torch.arange(x.shape[1], device=x.device) + shift[:, None]) % x.shape[1]
    return x[torch.arange(x.shape[0], device=x.device)[:, None], where]
