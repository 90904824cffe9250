"""Opens families that our parts do not cover, in TransformerLens' bridge around the library's own module.

    model = bridge("their-folder")
    Ablate(heads="L5.*", draws=0).measure(model, Documents("stories:1:20"))

Hooks have TransformerLens' names, and every edit costs a pass of the whole model. Instruments that need our parts
(several streams, mixing, latents, weights) raise an error.
"""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from streamscope.cli.errors import InputError, Undefined, reading
from streamscope.models.hooks import CleanCopies
from streamscope.models.interop.activation_cache import NormedCache
from streamscope.models.interop.huggingface import convert as reader
from streamscope.models.interop.huggingface.generation import read_sampling
from streamscope.models.interop.tables import opened
from streamscope.models.transformer import StreamTransformer
from streamscope.text.tokenizer import Tokenizer


def _not_ours(family: str, name: str) -> Undefined:
    return Undefined(
        f"{family} is a family that our parts do not cover, and TransformerLens' bridge has no {name}: use a model "
        "that streamscope reads itself"
    )


class Shape(SimpleNamespace):
    """The sizes that instruments read of every configuration, under our names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_ours(self.name, name)


SUMS = {
    "logits": "its last residual state through the final norm and the unembedding does not give its logits, so no part "
    "of the stream is attributed to them",
    "parts": "embedding, attention and FFN, as TransformerLens' bridge has them, do not add up to the residual stream",
    "heads": "its heads do not add up to what a layer writes to the residual stream: use decompose_resid()",
    "neurons": "its neurons do not add up to what a layer writes to the residual stream: use decompose_resid()",
}
"""What may not add up in a bridge, as a norm between heads and stream, or a map between stream and head."""


class BridgedCache(NormedCache):
    """The cache of a bridge, whose norms may be folded into other weights or store γ − 1 (Gemma)."""

    def _norm(self, layer: int | None, mlp_input: bool) -> tuple[int, bool, Tensor, Tensor | None]:
        norm: Any = self.model.get_submodule(self._norm_name(layer, mlp_input))
        weight = getattr(norm, "weight", None)
        if weight is None:
            weight = self.model.W_U.new_ones(self.model.cfg.d_model)
        elif norm.uses_weight_offset:
            weight = weight + 1
        return 1, not norm.uses_rms_norm, weight, None if norm.uses_rms_norm else getattr(norm, "bias", None)

    def apply_ln_to_stack(self, residual_stack: Tensor, layer: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens. Raises `InputError` if the final norm does not lead to the logits (BERT)."""
        if self._is_final(layer):
            self.model.check_sums("logits")
        return super().apply_ln_to_stack(residual_stack, layer, *args, **kwargs)


class Bridged(CleanCopies, TransformerBridge):
    """A bridge with the attributes that instruments need besides hooks."""

    family: str
    run: Path | None
    label: str
    """Name in titles besides the family; "" for a bridge of the user."""
    eos_ids: tuple[int, ...]
    sampling: dict[str, Any]
    wrong_sums: frozenset[str]
    """What `bridge` found not to add up: keys of `SUMS`."""
    final = "unembed.hook_in"
    """Hook of the input of the head."""

    def check_sums(self, name: str) -> None:
        """Raise `InputError` if values of this family do not add up: a key of `SUMS`. A "remainder" always does."""
        if name in self.wrong_sums:
            raise InputError(f"{self.family}: {SUMS[name]}")

    @property
    def config(self) -> Shape:
        sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")
        return Shape(name=self.family, **{size: getattr(self.cfg, size) for size in sizes})

    @property
    def logit_scale(self) -> float:
        """Factor of the logits after the head, 1 in most families."""
        zero, unit, large = self.adapter.apply_output_logits_transform(torch.tensor([0.0, 1.0, 1e6])).tolist()
        if zero != 0 or abs(large - 1e6 * unit) > unit:
            raise InputError(f"{self.family} caps its logits: attribution needs one without final_logit_softcapping")
        return unit

    @property
    def logit_bias(self) -> Tensor:
        """The part of the logits [V] from biases after the residual stream, as in our models."""
        bias = BridgedCache({}, self)._norm(None, False)[3]
        return ((0.0 if bias is None else bias @ self.W_U) + self.b_U) * self.logit_scale

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        out, cache = super().run_with_cache(*args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = BridgedCache(cache.cache_dict, self, has_batch_dim=cache.has_batch_dim)
        return out, cache

    @property
    def head(self) -> Tensor:
        """The unembedding and its bias [V, D + 1], times `logit_scale`, for `streams`."""
        return torch.cat([self.W_U.T, self.b_U[:, None]], 1) * self.logit_scale

    def streams(self, x: Tensor) -> Tensor:
        """Append a 1 to the input of the head [B, T, D], so that logits are `streams(x) @ head.T`."""
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)

    def _text(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError("this model has no tokenizer: its folder has no tokenizer.json")
        return self.tokenizer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if hasattr(StreamTransformer, name) and name != "segment":
                raise _not_ours(self.__dict__.get("family", "this"), name) from None
            raise


def bridge(name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Bridged:
    """Open the causal language model of a Hugging Face folder, or of the hub's cache, of any family in a bridge.

    Its name in titles is hf:NAME. Raises `InputError` if the folder does not exist, config.json does not fit the
    weights, a tensor is missing, or the bridge gives other logits than the library.
    """
    folder = reader.source_folder(name)
    # any error of a family's code on an unexpected config.json
    with reading(folder, "download it again"), warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        if (path := folder / reader.ADAPTER[0]).is_file():
            raise InputError(f"{path}: an adapter is merged only into families that we read ourselves; {reader.MERGE}")
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        reader.refuse_codes(folder / "config.json", config.to_dict())
        _check_sizes(folder, reader.weight_files(folder), config)
        module, report = AutoModelForCausalLM.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, dtype=dtype,
            attn_implementation="eager", output_loading_info=True,
        )  # fmt: skip
        if lacking := sorted(report["missing_keys"]):  # the library would draw them at random
            raise InputError(f"{folder} lacks {lacking[0]}{f' and {len(lacking) - 1} more' * (len(lacking) > 1)}")
        module = module.eval().to(device)
        logits = _short_logits(module, config.get_text_config(), folder)
        booted = build_bridge_from_module(module, type(module).__name__, hf_config=config)
    model = _bridged(booted.eval(), str(config.model_type), reader.read_tokenizer(folder, booted.cfg.d_vocab))
    model.__dict__.update(label=f"hf:{reader.source_name(folder)}", sampling=read_sampling(folder))
    model.__dict__["wrong_sums"] = _wrong_sums(model, logits, folder)
    return model


def _short_tokens(d_vocab: int, n_ctx: int) -> Tensor:
    """Two texts of a few tokens [2, T] that differ at the end only."""
    return torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]])[:, :n_ctx] % d_vocab


@torch.no_grad()
def _short_logits(module: Any, config: Any, folder: Path) -> Tensor:
    """The library's logits of `_short_tokens`. Raises `InputError` if a later token changes the logits before it."""
    tokens = _short_tokens(config.vocab_size, getattr(config, "max_position_embeddings", 5))
    logits: Tensor = module(tokens.to(module.device)).logits
    if _differ(*logits[:, :3]):
        raise InputError(f"{folder}: tokens attend to later ones, padding among them; only causal models are measured")
    return logits


def _differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > max(1e-3, 8 * torch.finfo(a.dtype).eps) * b.abs().max())


@torch.no_grad()
def _wrong_sums(model: Bridged, expected: Tensor, folder: Path) -> frozenset[str]:
    """The keys of `SUMS` that do not add up for `_short_tokens`."""
    tokens = _short_tokens(model.cfg.d_vocab, model.cfg.n_ctx).to(expected.device)
    logits, layers = model(tokens), range(model.cfg.n_layers)
    if _differ(logits, expected):
        raise InputError(f"{folder} cannot be read: the bridge of {model.family} gives other logits than the library")
    try:
        cache = TransformerBridge.run_with_cache(model, tokens)[1]
    except Exception:  # a hook does not fit this module
        return frozenset(SUMS)
    normed = BridgedCache(cache.cache_dict, model)

    def terms(name: str) -> tuple[Tensor, Tensor]:
        """(a sum, what it should be). What heads or neurons lack counts as a bias if it is the same everywhere."""
        last = cache["resid_post", layers[-1]]
        if name == "parts":
            return cache.decompose_resid().sum(0), last
        if name == "logits":
            bias = normed._norm(None, False)[3]
            state = normed.apply_ln_to_stack(last[None])[0] + (0.0 if bias is None else bias)
            return model.adapter.apply_output_logits_transform(state @ model.W_U + model.b_U), logits
        of_heads = name == "heads"
        parts = cache.stack_head_results() if of_heads else cache.stack_neuron_results(len(layers))
        before, attention, mlp, after = (
            torch.stack([cache[hook, layer] for layer in layers])
            for hook in ("resid_pre", "attn_out", "mlp_out", "resid_post")
        )
        lacking = (attention if of_heads else mlp) - parts.unflatten(0, (len(layers), -1)).sum(1)
        return before + attention + mlp - lacking + lacking[:, :1, :1], after

    def fails(name: str) -> bool:
        try:
            return _differ(*terms(name))
        except Exception:  # the family lacks a hook or weight, or has it in another shape
            return True

    return frozenset(filter(fails, SUMS))


def _check_sizes(folder: Path, files: Sequence[Path], config: Any) -> None:
    """Raise `InputError` if the weights cannot fit config.json, so that nothing of that size is built.

    A layer has at least one tensor, and a parameter half a byte. Sizes that config.json lacks default to those of the
    family's largest models.
    """
    tensors = 0
    for path in files:
        with opened(path) as file:
            tensors += len(file.keys())
            for name in file.keys():  # noqa: SIM118
                if name.endswith("weight"):
                    reader.check_dtype(f"{folder}: {name}", file.get_slice(name)[:0].dtype)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > tensors:
        raise InputError(f"{folder / 'config.json'} asks for {layers:,} layers, but there are {tensors:,} tensors")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    n, n_bytes = sum(x.numel() for x in empty.parameters()), sum(path.stat().st_size for path in files)
    if n > 2 * n_bytes:
        raise InputError(f"{folder / 'config.json'} asks for {n:,} parameters, too many for the {n_bytes:,} bytes of "
                         "its weights: a size in it is missing or wrong")  # fmt: skip


def adopt(booted: TransformerBridge) -> Bridged:
    """Adapt a user's bridge, which does not change, for instruments: the same modules, weights and hooks, with our
    tokenizer. Its own must be a fast one."""
    tokenizer = None if booted.tokenizer is None else Tokenizer.from_transformers(booted.tokenizer)
    return _bridged(booted, str(booted.original_model.config.model_type), tokenizer)


def _bridged(booted: TransformerBridge, family: str, tokenizer: Tokenizer | None) -> Bridged:
    eos = getattr(getattr(booted.original_model, "generation_config", None), "eos_token_id", None)
    if eos is None and tokenizer is not None:
        eos = tokenizer.bos_id if tokenizer.eos_id is None else tokenizer.eos_id
    ends = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    words = None if tokenizer is None else tokenizer.padded_to(booted.cfg.d_vocab)
    model = Bridged.__new__(Bridged)  # shares the modules of `booted`; copying would rebind the configuration
    model.__dict__.update(booted.__dict__, family=family, run=None, label="", eos_ids=ends, sampling={})
    model.__dict__.update(_tokenizer=words, wrong_sums=frozenset())
    return model
