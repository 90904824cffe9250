"""The interface that TransformerLens' tools expect: `cfg`, run_with_cache, text (weights: `models.weights`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.config import Alibi, Learned, Rope
from streamscope.models.hooks import ObservePoint, OnDemand, capture, eager_block, match, time_axes
from streamscope.models.interop.transformer_lens_core import Slice, lm_cross_entropy_loss
from streamscope.models.weights import WeightsMixin

if TYPE_CHECKING:
    from streamscope.text.tokenizer import Tokenizer

POSITION_NAMES = {Learned: "standard", Rope: "rotary", Alibi: "alibi"}
FLAT = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")
FIELDS: dict[str, Callable[[Any], Any]] = {
    **{name: attrgetter(f"config.{name}") for name in FLAT},
    "model_name": attrgetter("config.name"),
    "positional_embedding_type": lambda model: POSITION_NAMES.get(type(model.config.positions), "none"),
    "parallel_attn_mlp": lambda model: getattr(model.config.residual, "order", "") == "parallel",
    "gated_mlp": lambda model: model.config.mlp.gate is not None,
    "use_attn_result": lambda model: any(point.wanted or bool(point.asked) for point in model.result_points()),
    "n_key_value_heads": lambda model: model.config.kv_heads if model.config.kv_heads < model.config.n_heads else None,
    "device": attrgetter("embed.weight.device"),
    "dtype": attrgetter("embed.weight.dtype"),
}
"""Names and meanings as in TransformerLens, read from a model."""


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


class LensConfig:
    attn_only = False
    default_prepend_bos = True
    use_split_qkv_input = use_attn_in = False
    use_hook_mlp_in = True
    final_rms = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS:
            raise AttributeError(f"cfg has no field {name!r}; it has {', '.join(FLAT)}")
        return FIELDS[name](self._model)

    def __dir__(self) -> list[str]:
        return sorted({*FIELDS, *super().__dir__()} - {"normalization_type"})

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


class LensMixin(WeightsMixin):
    """Names and calls of TransformerLens on a `StreamTransformer`."""

    tokenizer: "Tokenizer | None"
    hook_dict: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        """As in torch; a property that raised `Undefined` is called again, for its own message."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            attribute = getattr(type(self), name, None)
            if isinstance(attribute, property) and attribute.fget is not None:
                return attribute.fget(self)
            raise

    @property
    def cfg(self) -> LensConfig:
        return LensConfig(self)

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
        """As in TransformerLens, also with name patterns; observe-only points get no backward hooks.

        Raises `InputError` for a filter that matches no hook.
        """
        if isinstance(names_filter, str | list | tuple):  # TransformerLens would cache nothing for a wrong name
            names_filter = match(self, names_filter)
        elif names_filter is None:
            left_out = {point.name for point in self.result_points() if not (point.wanted or point.asked)}
            names_filter = [name for name in self.hook_dict if name not in left_out]
        elif not any(map(names_filter, self.hook_dict)):
            raise InputError("names_filter matches no hook of this model; `python -m models.describe` lists them")
        cache, fwd, bwd = super().get_caching_hooks(names_filter, *args, **kwargs)  # type: ignore[misc]
        return cache, fwd, [(n, f) for n, f in bwd if not isinstance(self.hook_dict[n], ObservePoint)]

    def loss_fn(
        self, logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], attention_mask: Any = None,
        per_token: bool = False,
    ) -> Tensor:  # fmt: skip
        """Next-token loss of logits in nats: the mean, or [B, T − 1] with `per_token`; `attention_mask` 0 excludes
        tokens."""
        return lm_cross_entropy_loss(logits, tokens, attention_mask, per_token)

    @contextmanager
    def explicit(self, suffix: str = "") -> Iterator[None]:
        """Compute every on-demand activation whose name ends in `suffix`, even without hooks.

        TransformerLens hooks and nnsight traces do this for the activations they read.
        """
        points = [p for n, p in self.hook_dict.items() if isinstance(p, OnDemand) and n.endswith(suffix)]
        for point in points:
            point.asked.append(None)
        try:
            yield
        finally:
            for point in points:
                point.asked.pop()

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
            point.wanted = use_attn_result

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

    def _text(self) -> "Tokenizer":
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
        """The first or last position of a token in a text or in ids [T] or [1, T].

        Raises `InputError` if it is not there, and for another mode or several rows.
        """
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
        """(stream that enters layer 0, tokens, None, mask) of texts or ids; `start_at_layer=0` goes on from the stream.

        Raises `InputError` for a model with several streams.
        """
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
