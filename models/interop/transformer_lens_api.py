"""The interface that TransformerLens' tools expect: `cfg`, names of weights, run_with_cache, text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError, Undefined, unknown
from streamscope.models.config import Alibi, FrozenToken, Hyper, Learned, ModelConfig, Rope
from streamscope.models.hooks import ObservePoint, OnDemand, asked, capture, eager_block, match, time_axes
from streamscope.models.interop.transformer_lens_core import FactoredMatrix, Slice, lm_cross_entropy_loss
from streamscope.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformer_lens.model_bridge.composition_scores import CompositionScores

POSITION_NAMES = {Learned: "standard", Rope: "rotary", Alibi: "alibi"}
FLAT = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")
"""Names of our configuration that TransformerLens' `cfg` has too."""


def check_padding(padding_side: str | None, mask: Bool[Tensor, "B T"] | None = None) -> None:
    """Raise `InputError` for padding on the left, also by an attention mask: it would be read as text."""
    left = f"padding_side={padding_side!r}" if padding_side not in (None, "right") else ""
    if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        left = "attention_mask hides tokens before others"
    if left:
        raise InputError(f"{left}: padding is on the right, where it changes no real position")


def _one_row(ids: Any, caller: str) -> Tensor:
    """Ids [T] or [1, T] as [T]."""
    rows = torch.as_tensor(ids)
    if rows.ndim > 2 or (rows.ndim == 2 and len(rows) != 1):
        raise InputError(f"{caller} takes one sequence of ids, got {list(rows.shape)}: call it row by row")
    return rows.reshape(-1)


@dataclass(repr=False)
class LensConfig:
    """TransformerLens' `cfg` of a `model`, with its names and meanings."""

    model: Any
    attn_only = False
    default_prepend_bos = True
    use_split_qkv_input = use_attn_in = False
    use_hook_mlp_in = True
    final_rms = False

    model_name = property(attrgetter("model.config.name"))
    device, dtype = property(attrgetter("model.embed.weight.device")), property(attrgetter("model.embed.weight.dtype"))
    positional_embedding_type = property(lambda cfg: POSITION_NAMES.get(type(cfg.model.config.positions), "none"))
    parallel_attn_mlp = property(lambda cfg: getattr(cfg.model.config.residual, "order", "") == "parallel")
    gated_mlp = property(lambda cfg: cfg.model.config.mlp.gate is not None)
    use_attn_result = property(lambda cfg: any(point._forward_hooks for point in cfg.model.result_points()))

    @property
    def n_key_value_heads(self) -> int | None:
        """None where every head has its own."""
        config = self.model.config
        return config.kv_heads if config.kv_heads < config.n_heads else None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cfg has no field {name!r}; it has {', '.join(FLAT)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {"normalization_type"})

    def __repr__(self) -> str:
        return f"LensConfig({', '.join(f'{name}={getattr(self, name)}' for name in FLAT)})"

    @property
    def normalization_type(self) -> str:
        """Raises `InputError`: TransformerLens' own `ActivationCache` asks for this in order to apply a norm.

        It is no `AttributeError`, because tools that read it with a default would then apply no norm or another one.
        """
        raise InputError(
            "TransformerLens' ActivationCache omits the norm's weight: use Cache(cache_dict, model) of "
            "streamscope.models.interop.activation_cache, or the cache that run_with_cache gives"
        )


for name in FLAT:
    setattr(LensConfig, name, property(attrgetter(f"model.config.{name}")))


def _stacked(path: str) -> property:
    """A property that stacks an attribute of every block's attention or FFN; an undefined one raises `Undefined`."""

    def read(self: Any) -> Tensor:
        try:
            return torch.stack([*map(attrgetter(path), self.blocks)])
        except InputError as error:
            raise Undefined(str(error)) from None

    return property(read)


class LensMixin:
    """Names and calls of TransformerLens on a `StreamTransformer`.

    Weights are stacked over layers, as maps x W + b. Keys and values of grouped queries are repeated for every head;
    missing biases are zeros. Weights exclude the norms before them. An HDPL projection is not a matrix and raises
    `Undefined`.
    """

    config: ModelConfig
    tokenizer: Tokenizer | None
    hook_dict: dict[str, Any]
    blocks: Any
    ln_final: Any
    pos_embed: Any

    W_E, W_U = property(attrgetter("embed.W_E")), property(attrgetter("unembed.W_U"))
    """Token embedding [V, D], times its scale, and unembedding [D, V]."""

    @property
    def b_U(self) -> Float[Tensor, " V"]:
        """Zeros; our unembeddings have no bias."""
        return self.W_U.new_zeros(self.config.d_vocab)

    @property
    def logit_bias(self) -> Float[Tensor, " V"]:
        """β W_U + b_U, the part of the logits from the final norm's bias β (zeros after an RMSNorm); in TransformerLens
        it is b_U after folding the norm into the head. Raises `InputError` for capped logits."""
        bias = self.ln_final.bias
        return self.logit_scale * (self.b_U if bias is None else bias @ self.W_U + self.b_U)

    @property
    def W_pos(self) -> Float[Tensor, "C D"]:
        """Position embedding. Raises `Undefined`, an `AttributeError`, if positions are not a table."""
        if not self.config.positions.table:
            kind = self.config.positions.kind
            raise Undefined(f"W_pos is a table of learned positions, but this model has positions of kind {kind}")
        return self.pos_embed.W_pos

    @property
    def W_E_pos(self) -> Float[Tensor, "rows D"]:
        """Token embedding and position embedding, concatenated."""
        return torch.cat([self.W_E, self.W_pos])

    W_Q, W_K, W_V, W_O = map(_stacked, ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O"))
    """Weights of queries, keys, values [L, H, D, K] and of the output [L, H, K, D]."""
    b_Q, b_K, b_V, b_O = map(_stacked, ("attn.b_Q", "attn.b_K", "attn.b_V", "attn.b_O"))
    """Biases of queries, keys, values [L, H, K] and of the output [L, D]."""
    W_in, W_out, b_in, b_out = map(_stacked, ("mlp.W_in", "mlp.W_out", "mlp.b_in", "mlp.b_out"))
    """Weights of the FFN [L, D, M] (in a gated FFN, of the linear half), [L, M, D], and biases [L, M], [L, D]."""
    _W_gate = _stacked("mlp.W_gate")

    @property
    def W_gate(self) -> Float[Tensor, "L D M"] | None:
        """Gate weights of a gated FFN, else None."""
        return self._W_gate if self.config.mlp.gate is not None else None

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of every head [L, H, D, D]: without biases and a cap, scores are x QK x'^T / sqrt(d_h) of normed
        inputs x, x'; with `attention.scale_width` w they are x QK x'^T / sqrt(w).

        With rotary positions this holds for a query and a key at the same position, as in TransformerLens. Raises
        `Undefined` if something else acts between the weights and the scores.
        """
        if self.config.attention.qk_norm is not None:
            raise Undefined("QK is undefined, because queries and keys are normed before it: read hook_q and hook_k")
        self._no_canon("QK", "hook_q and hook_k")
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every head [L, H, D, D]: without biases, a head writes the attended mean of x OV.

        x is the input of the values, in some models the token stream. Raises `Undefined` if something else acts between
        the weights.
        """
        if self.config.attention.gate is not None:
            raise Undefined("OV is undefined, because a gate on the input acts between V and O: read hook_result")
        self._no_canon("OV", "hook_result")
        return FactoredMatrix(self.W_V, self.W_O)

    def _no_canon(self, quantity: str, instead: str) -> None:
        if "b" in self.config.canon_widths():
            raise Undefined(f"{quantity} is undefined, because Canon-B mixes positions after the maps: read {instead}")

    def all_composition_scores(self, mode: str) -> "CompositionScores":
        """Composition scores of each head with each later head: ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, [L, H, L, H].

        A is OV of the earlier head; B is QK (mode "Q"), QK^T ("K") or OV ("V") of the later one. The score is 0 if the
        second head is not in a later layer (Elhage et al. 2021, A Mathematical Framework). Maps that read the stream
        include γ and the centring of their norm, as in TransformerLens after `fold_ln`. Raises `InputError` if QK or OV
        is undefined, something besides a norm acts between the stream and the heads, or no head writes to the input of
        the values.
        """
        # here, because it imports all bridges, which takes half a second
        from transformer_lens.model_bridge.composition_scores import CompositionScores

        if mode not in ("Q", "K", "V"):
            raise unknown("mode", str(mode), ["Q", "K", "V"])
        residual = self.config.residual
        self.check_sums("parts")
        self.no_norm_after()
        if "a" in self.config.canon_widths():
            raise Undefined("composition scores are undefined, because Canon-A mixes positions after the norm")
        if mode == "V" and isinstance(residual, FrozenToken) and residual.values == "token":
            raise Undefined("V-composition is undefined, because no head writes to the frozen token stream")
        left_maps = right_maps = FactoredMatrix(self._reading("v", self.OV.A), self.OV.B)
        if mode != "V":
            right_maps = FactoredMatrix(self._reading("q", self.QK.A), self._reading("k", self.QK.B.mT).mT)
        # a product of all heads with all at once would expand both sides: 10.7 GB for 270 heads of width 576
        A, B = left_maps.collapse_l(), (right_maps.T if mode == "K" else right_maps).collapse_r()
        a, b = (x.norm(dim=(-2, -1)) for x in (A, B))
        n, heads = self.config.n_layers, self.config.n_heads
        scores = A.new_zeros(n, heads, n, heads)
        for i, j in combinations(range(n), 2):
            products = torch.einsum("akd,bdm->abkm", A[i], B[j])
            scores[i, :, j] = products.norm(dim=(-2, -1)) / a[i, :, None] / b[j]
        return CompositionScores(scores, list(range(n)), self.all_head_labels)

    def _reading(self, name: str, weights: Float[Tensor, "L H D K"]) -> Float[Tensor, "L H D K"]:
        """Weights of queries, keys or values including their norm: (x − mean) γ W as a map of x."""
        path = self.config.residual.value_path if name == "v" else "shared"
        if path == "raw" or self.config.norm_place == "after":
            return weights
        maps = []
        for block, w in zip(self.blocks, weights, strict=True):
            norm = block.ln1_v if path == "own" else block.ln1
            w = (norm.weight[:, None] * w).unflatten(-2, (norm.groups, -1))
            maps.append((w - w.mean(-2, keepdim=True) if norm.centred else w).flatten(-3, -2))
        return torch.stack(maps)

    @property
    def all_head_labels(self) -> list[str]:
        """Head names L0H0, L0H1, … in the order of `stack_head_results`."""
        return [f"L{layer}H{head}" for layer in range(self.config.n_layers) for head in range(self.config.n_heads)]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " D"]:
        """Sum of the output biases before a layer; with `mlp_input` including its attention's. Raises `InputError` for
        a layer beyond the last, and if updates do not add up to the stream."""
        self.check_sums("parts")
        self.no_norm_after()
        n = self.config.n_layers
        if not 0 <= layer <= n - mlp_input:
            raise InputError(f"accumulated_bias needs a layer from 0 to {n - mlp_input}, got {layer}")
        total = self.W_U.new_zeros(self.config.d_model)
        for block in self.blocks[:layer]:
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases else 0.0)
        return total + self.blocks[layer].attn.b_O if mlp_input else total

    @property
    def logit_scale(self) -> float:
        """1. Raises `InputError` for capped logits (Gemma 2), which are not linear in the input of the head."""
        if self.config.readout.softcap:
            raise InputError(f"{self.config.name} caps its logits; attribution needs linear ones: use ablate or patch")
        return 1.0

    def check_sums(self, name: str) -> None:
        """Raise `InputError` if "parts", "heads", "neurons" or the "remainder" of these do not add up to the stream."""
        if name in ("heads", "neurons"):
            self.no_norm_after()
        elif isinstance(self.config.residual, Hyper):
            raise InputError("updates do not add up to the residual stream of hyper-connections: use "
                             "accumulated_resid, or the streams in hook_streams_post")  # fmt: skip

    def no_norm_after(self) -> None:
        """Raise `InputError` if a norm acts between heads, neurons or biases and the stream (OLMo 2, Gemma 2)."""
        if self.config.norm_place != "before":
            raise InputError(f"{self.config.name} norms what a layer writes, so its heads, neurons and biases are no "
                             "parts of the stream: use the layer's updates (decompose_resid, L2.attn)")  # fmt: skip

    cfg = property(LensConfig)

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, pos_slice: Any = None, **kwargs: Any) -> Any:
        """(output, ActivationCache) of tokens or text, with the activations of `names_filter`.

        Without a filter, the cache has every hook of the table except `hook_result`, which is H times as large as the
        stream: name it, or call `set_use_attn_result(True)`. Raises `InputError` for a filter that matches nothing, and
        for a hook that did not fire before `stop_at_layer`.
        """
        single = kwargs.get("remove_batch_dim", False)
        if single and args and isinstance(args[0], list | tuple) and len(args[0]) != 1:
            raise InputError(f"remove_batch_dim needs one text, got {len(args[0])}")
        out, cache = super().run_with_cache(*args, **kwargs)  # type: ignore[misc]
        chosen = kwargs.get("names_filter")
        by_name = match(self, chosen) if isinstance(chosen, str | list | tuple) else ()
        if silent := [name for name in by_name if name not in cache]:
            raise InputError(f"hooks that did not fire before stop_at_layer: {', '.join(silent[:5])}")
        cut, batch = Slice.unwrap(pos_slice), 0 if single else 1
        for name, x in cache.items():
            for axis in time_axes(name.removesuffix("_grad"), x.ndim + 1 - batch)[:1]:
                cache[name] = cut.apply(x, dim=axis + batch)
        if return_cache_object:
            # here, because it imports all of TransformerLens, which takes two seconds
            from streamscope.models.interop.activation_cache import Cache

            cache = Cache(cache, self, has_batch_dim=not single)
        return out, cache

    @contextmanager
    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = (), *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As in TransformerLens; an unknown name raises `InputError` with the nearest names.

        The block runs eagerly, because compiled code ignores hooks that were added after its first call.
        """
        for name, _ in [*fwd_hooks, *bwd_hooks]:
            if isinstance(name, str) and name not in self.hook_dict:
                raise unknown("hook", name, list(self.hook_dict))
        with (
            eager_block(always=True),
            super().hooks(list(fwd_hooks), list(bwd_hooks), *args, **kwargs) as model,  # type: ignore[misc]
        ):
            yield model

    def get_caching_hooks(self, names_filter: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, also with name patterns; observe-only points get no backward hooks."""
        if isinstance(names_filter, str | list | tuple):  # TransformerLens would cache nothing for a wrong name
            names_filter = match(self, names_filter)
        elif names_filter is None:
            left_out = {point.name for point in self.result_points() if not point._forward_hooks}
            names_filter = [name for name in self.hook_dict if name not in left_out]
        elif not any(map(names_filter, self.hook_dict)):
            raise InputError("names_filter matches no hook of this model; `python -m models.describe` lists them")
        cache, fwd, bwd = super().get_caching_hooks(names_filter, *args, **kwargs)  # type: ignore[misc]
        return cache, fwd, [(n, f) for n, f in bwd if not isinstance(self.hook_dict[n], ObservePoint)]

    loss_fn = staticmethod(lm_cross_entropy_loss)
    """Next-token loss of logits [B, T, V] and tokens [B, T] in nats: the mean, or [B, T − 1] with `per_token`;
    `attention_mask` 0 excludes tokens."""

    @contextmanager
    def explicit(self, suffix: str = "") -> Iterator[None]:
        """Compute every on-demand activation whose name ends in `suffix`, even without hooks.

        TransformerLens hooks and nnsight traces do this for the activations they read.
        """
        points = [p for n, p in self.hook_dict.items() if isinstance(p, OnDemand) and n.endswith(suffix)]
        with asked(points):
            yield

    def explicit_attention(self) -> Any:
        """`explicit` for attention: scores and patterns are computed and pass their hooks."""
        return self.explicit("attn.hook_pattern")

    def result_points(self) -> list[OnDemand]:
        """`hook_result` of every layer; [] if the output projection is not linear."""
        return [point for name, point in self.hook_dict.items() if name.endswith("attn.hook_result")]

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Always compute `hook_result`, so that a cache of all hooks has it."""
        points = self.result_points()
        if not points:
            raise InputError("this model has no hook_result, because its output projection is not linear")
        for point in points:
            point.always(use_attn_result)

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Raise `InputError` for True: the heads of a layer share one input."""
        if use_split_qkv_input:
            raise InputError("heads share one input, hook_attn_in (and hook_attn_v_in): to change a single head, edit "
                             "its hook_q, hook_k or hook_v")  # fmt: skip

    set_use_attn_in = set_use_split_qkv_input

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Do nothing: `hook_mlp_in` always fires."""

    @torch.no_grad()
    def patterns(self, tokens: Int[Tensor, "B T"], layers: Sequence[int] | None = None) -> Float[Tensor, "B l H T T"]:
        chosen = range(self.config.n_layers) if layers is None else layers
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in chosen]
        with capture(self, names) as captured:
            self(tokens, return_type=None)  # type: ignore[operator]
        return torch.stack([captured[name] for name in names], dim=1)

    def _text(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError("this model has no tokenizer: pass token ids, or load a run with a tokenizer")
        return self.tokenizer

    def to_tokens(
        self, input: str | Sequence[str], prepend_bos: bool | None = None, padding_side: str | None = None,
        move_to_device: bool = True, truncate: bool = False, *, special: bool = False,
    ) -> Int[Tensor, "B T"]:  # fmt: skip
        """Token ids of texts, padded on the right (`to_batch` also gives the mask).

        `special` reads special tokens from text, `truncate` cuts at the context (TransformerLens' default). Raises
        `InputError` for padding on the left.
        """
        check_padding(padding_side)
        tokens = self.to_batch(input, prepend_bos, special)[0]
        tokens = tokens[:, : self.cfg.n_ctx] if truncate else tokens
        return tokens if move_to_device else tokens.cpu()

    def to_chat(self, messages: Sequence[Mapping[str, str]], reply: bool = True) -> Int[Tensor, "1 T"]:
        """Ids of a conversation by the model's chat template, with `reply` up to the answer (`Tokenizer.chat`)."""
        return torch.tensor([self._text().chat(messages, reply=reply)], device=self.cfg.device)

    def to_batch(
        self, text: str | Sequence[str], prepend_bos: bool | None = None, special: bool = False
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """(tokens, mask), padded on the right; the mask is True on real tokens."""
        texts = [text] if isinstance(text, str) else list(text)
        tokens, mask = self._text().batch(texts, bos=prepend_bos is not False, special=special)
        device = self.cfg.device
        return tokens.to(device), mask.to(device)

    def to_string(self, tokens: Any) -> Any:
        """Text of an id or a sequence of ids, or a list of texts for a batch. Raises `InputError` for anything else."""
        ids = tokens.tolist() if hasattr(tokens, "tolist") else tokens
        ids = [ids] if isinstance(ids, int) else ids
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InputError(f"to_string takes ids of tokens or lists of them, not {tokens!r:.40}")
        ids = list(ids)
        nested = bool(ids) and isinstance(ids[0], list)
        return [self._text().decode(row) for row in ids] if nested else self._text().decode(ids)

    def to_str_tokens(self, input: Any, prepend_bos: bool | None = None, padding_side: str | None = None) -> Any:
        """The text of every token of a text or of ids [T] or [1, T]; a list of lists for several texts."""
        check_padding(padding_side)
        if isinstance(input, list | tuple) and input and all(isinstance(text, str) for text in input):
            return [self.to_str_tokens(text, prepend_bos) for text in input]
        if isinstance(input, str):
            ids = self._text().encode(input, bos=prepend_bos is not False)
        else:
            ids = _one_row(input, "to_str_tokens").tolist()
        return self._text().pieces(ids)

    def to_single_str_token(self, int_token: int) -> str:
        return self._text().pieces([int_token])[0]

    def to_single_token(self, string: str) -> int:
        ids = self._text().encode(string, bos=False)
        if len(ids) != 1:
            raise InputError(f"{string!r} is {len(ids)} tokens, not one")
        return ids[0]

    def get_token_position(
        self, single_token: str | int, input: Any, mode: str = "first", prepend_bos: bool | None = None,
        padding_side: str | None = None,
    ) -> int:  # fmt: skip
        """The first or last position of a token in a text or in ids [T] or [1, T]."""
        tokens = self.to_tokens(input, prepend_bos, padding_side) if isinstance(input, str) else input
        if mode not in ("first", "last"):
            raise unknown("mode", str(mode), ["first", "last"])
        tokens = _one_row(tokens, "get_token_position")
        token = self.to_single_token(single_token) if isinstance(single_token, str) else int(single_token)
        places = (tokens == token).nonzero()[:, 0].tolist()
        if not places:
            raise InputError(f"the token {single_token!r} is not in this sequence of {tokens.numel()} tokens")
        return int(places[0 if mode == "first" else -1])

    def input_to_embed(
        self, input: Any, prepend_bos: bool | None = None, padding_side: str | None = None, attention_mask: Any = None
    ) -> tuple[Float[Tensor, "B T D"], Int[Tensor, "B T"], None, Any]:
        """(stream that enters layer 0, tokens, None, mask) of texts or ids; `start_at_layer=0` continues from it."""
        if names := self.config.residual.streams:
            raise InputError(f"this model has the streams {' and '.join(names)}: use model.embed_tokens(tokens)")
        text = isinstance(input, str | list | tuple)
        tokens = self.to_tokens(input, prepend_bos, padding_side) if text else torch.as_tensor(input)
        tokens = tokens[None] if tokens.ndim == 1 else tokens
        return self(tokens, stop_at_layer=0), tokens, None, attention_mask  # type: ignore[operator]

    def tokens_to_residual_directions(self, tokens: Any) -> Tensor:
        """Columns of W_U: the directions of the stream that raise the tokens' logits."""
        ids = self.to_single_token(tokens) if isinstance(tokens, str) else tokens
        return self.W_U.T[torch.as_tensor(ids)]
