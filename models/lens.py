"""What TransformerLens' tools expect of a model, read from ours: `cfg`, weight names, run_with_cache."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.utilities import Slice

from streamscope.models.config import Hyper, LayerNorm, ModelConfig, RMSNorm
from streamscope.models.errors import InputError, unknown
from streamscope.models.hooks import ObservePoint, OnDemand, capture, match, time_axes

if TYPE_CHECKING:
    from streamscope.models.text.tokenizer import Tokenizer

NORM_NAMES = {LayerNorm: "LN", RMSNorm: "RMS"}


class LensConfig:
    """TransformerLens' flat field names, read-only, from a model and its configuration."""

    attn_only = False
    positional_embedding_type = "standard"
    use_attn_result = False
    use_split_qkv_input = False
    final_rms = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in FLAT:
            raise AttributeError(f"cfg has no field {name!r}; it has {', '.join(FLAT)}")
        return getattr(self._model.config, name)

    def __repr__(self) -> str:
        return f"LensConfig({', '.join(f'{name}={getattr(self, name)}' for name in FLAT)})"

    @property
    def normalization_type(self) -> str | None:
        """LN or RMS of the final norm; None where TransformerLens has no name for it."""
        return NORM_NAMES.get(type(self._model.config.readout.norm))

    @property
    def n_key_value_heads(self) -> int | None:
        """Heads of keys and values where they are fewer than those of queries, as in TransformerLens."""
        config = self._model.config
        return config.kv_heads if config.kv_heads < config.n_heads else None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._model.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self._model.embed.weight.dtype


FLAT = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")


class Cache(ActivationCache):
    """TransformerLens' cache, with the norms of our blocks."""

    def apply_ln_to_stack(self, residual_stack: Tensor, layer: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens; the blocks' statistics may be per head, which it cannot divide by."""
        config = self.model.config
        inside = layer not in (None, -1, config.n_layers)
        if inside and type(config.norm) is not type(config.readout.norm):
            raise InputError(f"apply_ln knows the final norm only: the blocks have {config.norm.kind} norms")
        if inside and isinstance(config.residual, Hyper):
            raise InputError("apply_ln knows the final norm only: the blocks norm what hook_pre reads of the streams")
        return super().apply_ln_to_stack(residual_stack, layer, *args, **kwargs)

    def decompose_resid(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens: embeddings and updates, which add up to the residual stream; not with n streams."""
        self._adds_up()
        return super().decompose_resid(*args, **kwargs)

    def get_full_resid_decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, head by head; not with n streams."""
        self._adds_up()
        return super().get_full_resid_decomposition(*args, **kwargs)

    def _adds_up(self) -> None:
        if isinstance(self.model.config.residual, Hyper):
            raise InputError(
                "updates do not add up to the residual stream of hyper-connections: they are scaled by hook_post and "
                "mixed by hook_res; use accumulated_resid, or the streams in hook_streams_post"
            )


class LensMixin:
    """Names and calls of TransformerLens on a `StreamTransformer`."""

    config: ModelConfig
    tokenizer: "Tokenizer | None"
    hook_dict: dict[str, Any]

    @property
    def cfg(self) -> LensConfig:
        """The configuration under TransformerLens' flat names."""
        return LensConfig(self)

    @property
    def W_E(self) -> Float[Tensor, "V D"]:
        """Token embedding."""
        return self.embed.weight  # type: ignore[attr-defined]

    @property
    def W_U(self) -> Float[Tensor, "D V"]:
        """Unembedding."""
        return self.head.T  # type: ignore[attr-defined]

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, pos_slice: Any = None, **kwargs: Any) -> Any:
        """(output, ActivationCache); every hook of the table is in the cache unless `names_filter` chooses."""

        chosen = kwargs.get("names_filter")
        if isinstance(chosen, str | list | tuple):  # exact names or patterns; TransformerLens would cache nothing
            kwargs["names_filter"] = match(self, chosen)

        out, cache = super().run_with_cache(*args, **kwargs)  # type: ignore[misc]
        cut, batch = Slice.unwrap(pos_slice), 0 if kwargs.get("remove_batch_dim") else 1
        for name, x in cache.items():
            for axis in time_axes(name.removesuffix("_grad"), x.ndim + 1 - batch)[:1]:
                cache[name] = cut.apply(x, dim=axis + batch)
        if return_cache_object:
            cache = Cache(cache, self, has_batch_dim=not kwargs.get("remove_batch_dim", False))
        return out, cache

    @contextmanager
    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = (), *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As in TransformerLens; a name that no hook has raises `InputError` with the nearest ones."""
        for name, _ in [*fwd_hooks, *bwd_hooks]:
            if isinstance(name, str) and name not in self.hook_dict:
                raise unknown("hook", name, list(self.hook_dict))
        with super().hooks(list(fwd_hooks), list(bwd_hooks), *args, **kwargs) as model:  # type: ignore[misc]
            yield model

    def get_caching_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, without backward hooks on points that only observe."""
        cache, fwd, bwd = super().get_caching_hooks(*args, **kwargs)  # type: ignore[misc]
        return cache, fwd, [(n, f) for n, f in bwd if not isinstance(self.hook_dict[n], ObservePoint)]

    # ---- on-demand activations -----------------------------------------------------------------

    @contextmanager
    def explicit(self, suffix: str = "") -> Iterator[None]:
        """Compute every on-demand activation whose name ends in `suffix`, whether hooked or not.

        TransformerLens hooks do this by themselves; tools that do not hook points (nnsight) need it.
        """
        points = [p for n, p in self.hook_dict.items() if isinstance(p, OnDemand) and n.endswith(suffix)]
        before = [p.wanted for p in points]
        for point in points:
            point.wanted = True
        try:
            yield
        finally:
            for point, wanted in zip(points, before, strict=True):
                point.wanted = wanted

    def explicit_attention(self) -> Any:
        """`explicit` for attention: scores and patterns are computed and pass through their hooks."""
        return self.explicit("attn.hook_pattern")

    @torch.no_grad()
    def patterns(self, tokens: Int[Tensor, "B T"], layers: Sequence[int] | None = None) -> Float[Tensor, "B l H T T"]:
        """Attention weights of the chosen layers."""

        chosen = range(self.config.n_layers) if layers is None else layers
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in chosen]
        with capture(self, names) as found:
            self(tokens, return_type=None)  # type: ignore[operator]
        return torch.stack([found[name] for name in names], dim=1)

    # ---- text ----------------------------------------------------------------------------------

    def _text(self) -> "Tokenizer":
        if self.tokenizer is None:
            raise InputError("this model has no tokenizer: pass token ids, or load a run that has one")
        return self.tokenizer

    def to_tokens(self, text: str | Sequence[str], prepend_bos: bool = True) -> Int[Tensor, "B T"]:
        """Token ids, padded on the right (`to_batch` also gives the mask)."""
        return self.to_batch(text, prepend_bos)[0]

    def to_batch(
        self, text: str | Sequence[str], prepend_bos: bool = True
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """(tokens, mask), True on real tokens. Padding on the right never changes a real position."""
        texts = [text] if isinstance(text, str) else list(text)
        tokens, mask = self._text().batch(texts, bos=prepend_bos)
        device = self.cfg.device
        return tokens.to(device), mask.to(device)

    def to_string(self, tokens: Any) -> Any:
        """Text of a sequence of ids, or a list of texts for a batch."""
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        nested = bool(ids) and isinstance(ids[0], list)
        return [self._text().decode(row) for row in ids] if nested else self._text().decode(ids)

    def to_str_tokens(self, text: str, prepend_bos: bool = True) -> list[str]:
        """The text piece of every token."""
        return self._text().pieces(self._text().encode(text, bos=prepend_bos))

    def to_single_token(self, text: str) -> int:
        """The id of a text that is one token; `InputError` otherwise."""
        ids = self._text().encode(text, bos=False)
        if len(ids) != 1:
            raise InputError(f"{text!r} is {len(ids)} tokens, not one")
        return ids[0]

    def tokens_to_residual_directions(self, tokens: Any) -> Tensor:
        """Columns of W_U: the stream directions that raise the tokens' logits."""
        ids = self.to_single_token(tokens) if isinstance(tokens, str) else tokens
        return self.W_U.T[torch.as_tensor(ids)]

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Tensor:
        """Sum of the output biases written before layer `layer` (its attention included with `mlp_input`)."""
        blocks = self.blocks  # type: ignore[attr-defined]
        total = torch.zeros(self.config.d_model, device=self.cfg.device, dtype=self.cfg.dtype)
        for block in blocks[:layer]:
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases else 0.0)
        return total + blocks[layer].attn.b_O if mlp_input else total
