"""The families of Hugging Face models that are made of our parts: their configuration, and where each weight lies.

A family is two functions of the library's config.json. `config` says the same in our parts, and raises `InputError`
for an option that no part has. `weights` says for every tensor of ours how it is made of theirs: (name, what to do).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from streamscope.models.config import (
    Attention,
    Dense,
    LayerNorm,
    Learned,
    Mlp,
    ModelConfig,
    Readout,
    RMSNorm,
    Rope,
    Single,
)
from streamscope.models.errors import InputError, unknown

Theirs = Mapping[str, Any]
Weight = tuple[str, str, Callable[[Tensor], Tensor]]
"""(our name, their name, what makes ours of theirs)."""

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How the models of one `model_type` are read."""

    config: Callable[[Theirs], ModelConfig]
    weights: Callable[[ModelConfig], Iterator[Weight]]
    prefix: str
    """What names begin with where the file is of the model with its head; left out in files of the bare model."""


def same(x: Tensor) -> Tensor:
    """Theirs as it is."""
    return x


def transposed(x: Tensor) -> Tensor:
    """A map [d_in, d_out] (GPT-2's Conv1D) as [d_out, d_in]."""
    return x.T


def third(part: int, x: Tensor) -> Tensor:
    """One of queries, keys and values that lie side by side on the last axis, as a map [d_out, d_in] or a bias."""
    one = x.chunk(3, -1)[part]
    return one.T if one.ndim == 2 else one


def by_head(part: int, heads: int, x: Tensor) -> Tensor:
    """One of queries, keys and values that lie side by side in every head: [H · 3 · K, …] -> [H · K, …]."""
    return x.unflatten(0, (heads, 3, -1))[:, part].flatten(0, 1)


def activation(name: str) -> Any:
    """Our name of an activation; `InputError` for one that we do not have."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, sorted(ACTIVATIONS))
    return ACTIVATIONS[name]


def refuse(theirs: Theirs, **plain: Any) -> None:
    """Raise `InputError` where an option is other than what our parts compute."""
    for name, value in plain.items():
        if theirs.get(name, value) != value:
            raise InputError(f"{name} = {theirs[name]!r} has no part here; models with {name} = {value!r} are read")


def rope(theirs: Theirs, *, fraction: float = 1.0) -> Rope:
    """Rotary positions. Raises `InputError` for a rule that stretches them."""
    rule: Theirs = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    kind = rule.get("rope_type", rule.get("type", "default"))
    if kind != "default":
        raise InputError(
            f"rotary positions of the kind {kind!r} have no part here; those of the kind 'default' are read"
        )
    base = rule.get("rope_theta", theirs.get("rope_theta", theirs.get("rotary_emb_base", 10_000.0)))
    share = rule.get("partial_rotary_factor", theirs.get("partial_rotary_factor", theirs.get("rotary_pct", fraction)))
    return Rope(base=float(base), fraction=float(share))


def gpt2(theirs: Theirs) -> ModelConfig:
    """GPT-2: learned positions, LayerNorm, biases everywhere, a tied head."""
    refuse(
        theirs, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )  # fmt: skip
    bias, norm = Dense(bias=True), LayerNorm(eps=theirs["layer_norm_epsilon"])
    return ModelConfig(
        name="hf-gpt2", n_layers=theirs["n_layer"], d_model=theirs["n_embd"], n_heads=theirs["n_head"],
        d_vocab=theirs["vocab_size"], n_ctx=theirs["n_positions"], positions=Learned(), norm=norm,
        attention=Attention(q=bias, k=bias, v=bias, o=bias),
        mlp=Mlp(d_mlp=theirs.get("n_inner") or 0, up=bias, down=bias,
                activation=activation(theirs["activation_function"])),
        readout=Readout(norm=norm, tied=theirs.get("tie_word_embeddings", True)),
    )  # fmt: skip


def gpt2_weights(config: ModelConfig) -> Iterator[Weight]:
    """Conv1D maps lie transposed, q, k and v in one."""
    yield "embed.weight", "wte.weight", same
    yield "pos_embed.weight", "wpe.weight", same
    for layer in range(config.n_layers):
        ours, theirs = f"blocks.{layer}", f"h.{layer}"
        for end in ("weight", "bias"):
            yield f"{ours}.ln1.{end}", f"{theirs}.ln_1.{end}", same
            yield f"{ours}.ln2.{end}", f"{theirs}.ln_2.{end}", same
            for part, name in enumerate("qkv"):
                yield f"{ours}.attn.{name}.{end}", f"{theirs}.attn.c_attn.{end}", partial(third, part)
            for name, their in (("attn.o", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")):
                yield f"{ours}.{name}.{end}", f"{theirs}.{their}.{end}", transposed if end == "weight" else same
    yield from (("ln_final.weight", "ln_f.weight", same), ("ln_final.bias", "ln_f.bias", same))
    if not config.readout.tied:
        yield "unembed.weight", "/lm_head.weight", same


def neox(theirs: Theirs) -> ModelConfig:
    """GPT-NeoX and Pythia: partly rotary, both branches in parallel, biases, a head of its own."""
    bias = Dense(bias=True)
    attention = bias if theirs.get("attention_bias", True) else Dense()
    norm = LayerNorm(eps=theirs["layer_norm_eps"])
    return ModelConfig(
        name="hf-gpt-neox", n_layers=theirs["num_hidden_layers"], d_model=theirs["hidden_size"],
        n_heads=theirs["num_attention_heads"], d_vocab=theirs["vocab_size"], n_ctx=theirs["max_position_embeddings"],
        positions=rope(theirs, fraction=0.25), norm=norm,
        residual=Single(order="parallel" if theirs.get("use_parallel_residual", True) else "sequential"),
        attention=Attention(q=attention, k=attention, v=attention, o=attention),
        mlp=Mlp(d_mlp=theirs["intermediate_size"], up=bias, down=bias, activation=activation(theirs["hidden_act"])),
        readout=Readout(norm=norm, tied=theirs.get("tie_word_embeddings", False)),
    )  # fmt: skip


def neox_weights(config: ModelConfig) -> Iterator[Weight]:
    """q, k and v of a head lie side by side."""
    yield "embed.weight", "embed_in.weight", same
    for layer in range(config.n_layers):
        ours, theirs = f"blocks.{layer}", f"layers.{layer}"
        for end in ("weight", "bias"):
            yield f"{ours}.ln1.{end}", f"{theirs}.input_layernorm.{end}", same
            yield f"{ours}.ln2.{end}", f"{theirs}.post_attention_layernorm.{end}", same
            for part, name in enumerate("qkv"):
                one = partial(by_head, part, config.n_heads)
                yield f"{ours}.attn.{name}.{end}", f"{theirs}.attention.query_key_value.{end}", one
            for name, their in (("attn.o", "attention.dense"), ("mlp.up", "mlp.dense_h_to_4h"),
                                ("mlp.down", "mlp.dense_4h_to_h")):  # fmt: skip
                yield f"{ours}.{name}.{end}", f"{theirs}.{their}.{end}", same
            yield f"ln_final.{end}", f"final_layer_norm.{end}", same
    if not config.readout.tied:
        yield "unembed.weight", "/embed_out.weight", same


def llama(theirs: Theirs, *, name: str = "hf-llama", qkv_bias: bool = False, qk_norm: bool = False) -> ModelConfig:
    """Llama, Qwen2 and Qwen3: rotary, RMSNorm, a gated FFN; grouped queries, biases and QK norm where it has them."""
    refuse(theirs, use_sliding_window=False, pretraining_tp=1)
    norm, d, heads = RMSNorm(eps=theirs["rms_norm_eps"]), theirs["hidden_size"], theirs["num_attention_heads"]
    bias = theirs.get("attention_bias", False)
    qkv, mlp = Dense(bias=bias or qkv_bias), Dense(bias=theirs.get("mlp_bias", False))
    return ModelConfig(
        name=name, n_layers=theirs["num_hidden_layers"], d_model=d, n_heads=heads, d_vocab=theirs["vocab_size"],
        n_ctx=theirs["max_position_embeddings"], positions=rope(theirs), norm=norm,
        attention=Attention(
            q=qkv, k=qkv, v=qkv, o=Dense(bias=bias), d_head=theirs.get("head_dim") or d // heads,
            kv_heads=theirs.get("num_key_value_heads") or heads, qk_norm=norm if qk_norm else None,
        ),
        mlp=Mlp(d_mlp=theirs["intermediate_size"], up=mlp, down=mlp, gate=mlp,
                activation=activation(theirs["hidden_act"])),
        readout=Readout(norm=norm, tied=theirs.get("tie_word_embeddings", False)),
    )  # fmt: skip


def llama_weights(config: ModelConfig) -> Iterator[Weight]:
    """Every map lies as ours."""
    yield "embed.weight", "embed_tokens.weight", same
    names = [(f"attn.{name}", f"self_attn.{name}_proj", getattr(config.attention, name)) for name in "qkvo"]
    names += [(f"mlp.{name}", f"mlp.{name}_proj", getattr(config.mlp, name)) for name in ("gate", "up", "down")]
    for layer in range(config.n_layers):
        ours, theirs = f"blocks.{layer}", f"layers.{layer}"
        yield f"{ours}.ln1.weight", f"{theirs}.input_layernorm.weight", same
        yield f"{ours}.ln2.weight", f"{theirs}.post_attention_layernorm.weight", same
        for name in ("q_norm", "k_norm") if config.attention.qk_norm is not None else ():
            yield f"{ours}.attn.{name}.weight", f"{theirs}.self_attn.{name}.weight", same
        for name, their, spec in names:
            for end in ("weight", "bias") if spec.bias else ("weight",):
                yield f"{ours}.{name}.{end}", f"{theirs}.{their}.{end}", same
    yield "ln_final.weight", "norm.weight", same
    if not config.readout.tied:
        yield "unembed.weight", "/lm_head.weight", same


FAMILIES = {
    "gpt2": Family(gpt2, gpt2_weights, "transformer."),
    "gpt_neox": Family(neox, neox_weights, "gpt_neox."),
    "llama": Family(llama, llama_weights, "model."),
    "qwen2": Family(partial(llama, name="hf-qwen2", qkv_bias=True), llama_weights, "model."),
    "qwen3": Family(partial(llama, name="hf-qwen3", qk_norm=True), llama_weights, "model."),
}
