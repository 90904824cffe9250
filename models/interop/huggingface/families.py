"""The Hugging Face families that our parts cover: their configuration and the place of each weight.

`config` of a family translates a config.json into our parts and raises `InputError` for options that no part has, and
`table` names its weights (`interop.tables`). A family that an export writes has `theirs`, which translates our
configuration into a config.json; it is right only if `config` translates it back.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models.config.serialization import from_dict, override
from streamscope.models.interop.tables import LAYER, TRANSPOSED, WHOLE, Conversion, Table, modules, shapes_of

Theirs = Mapping[str, Any]
OFFSET = Conversion(
    lambda x, shape: x[0].to(torch.promote_types(x[0].dtype, torch.float32)) + 1, lambda tensors: tensors[0] - 1
)
"""γ − 1 of a norm (Gemma), in at least fp32, because bf16 would round γ."""


def third(part: int) -> Conversion:
    """Queries, keys and values concatenated on the last axis: maps [d_in, 3 · d_out], or biases (GPT-2)."""

    def take(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        chunk = x[0].chunk(3, -1)[part]
        return chunk.mT if chunk.ndim == 2 else chunk

    return Conversion(take, lambda tensors: torch.cat([x.mT if x.ndim == 2 else x for x in tensors], -1))


def by_head(part: int, heads: int) -> Conversion:
    """Queries, keys and values concatenated in every head: [H · 3 · K, …] (GPT-NeoX)."""
    return Conversion(
        lambda x, shape: x[0].unflatten(0, (heads, 3, -1))[:, part].flatten(0, 1),
        lambda tensors: torch.stack([x.unflatten(0, (heads, -1)) for x in tensors], 1).flatten(0, 2),
    )


def stacked_rows(part: int, sizes: Sequence[int]) -> Conversion:
    """Maps that are stored one below the other, `sizes` rows of [rows of all, d_in] (Phi-3)."""
    return Conversion(lambda x, shape: x[0].split(list(sizes))[part], lambda tensors: torch.cat(list(tensors)))


ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Reads the models of one `model_type`, and perhaps writes them."""

    config: Callable[[Theirs], c.ModelConfig]
    table: Table | Callable[[c.ModelConfig], Table]
    """Their names of our weights; a name with a leading slash has no prefix."""
    prefix: str
    """Prefix of names in files of the model with its head; files of the bare model have none."""
    architecture: str
    """Class in the library."""
    theirs: Callable[[c.ModelConfig], dict[str, Any]] | None = None
    """Our configuration as a config.json, for an export; None: an export does not write this class."""

    def names(self, config: c.ModelConfig, prefix: str) -> Table:
        table = self.table(config) if callable(self.table) else self.table
        return {
            name: (their[1:] if their.startswith("/") else prefix + their, conversion)
            for name, (their, conversion) in table.items()
        }


def activation(name: str) -> Any:
    return ACTIVATIONS.get(name, name)  # `Mlp` refuses others


def refuse(fields: Theirs, **plain: Any) -> None:
    """Raise `InputError` if an option differs from the value that our parts compute."""
    for name, value in plain.items():
        if fields.get(name, value) != value:
            raise InputError(f"{name} = {fields[name]!r} is not supported, only {name} = {value!r}")


def their_activation(config: c.ModelConfig) -> str:
    return next(name for name, value in ACTIVATIONS.items() if value == config.mlp.activation)


def sizes(config: c.ModelConfig) -> dict[str, Any]:
    """The fields that families with rotary positions share; `rope_theta` and `rope_scaling` are those of the library
    before version 5, which ignores `rope_parameters`."""
    turn = config.positions if isinstance(config.positions, c.Rope) else c.Rope()
    rule: dict[str, Any] = {"rope_type": "default", "rope_theta": turn.base}
    if (to := turn.stretch) is not None:
        rule |= {"rope_type": "llama3" if to.original else "linear", "factor": to.factor}
        if to.original:
            rule |= {"original_max_position_embeddings": to.original}
            rule |= {"low_freq_factor": to.low, "high_freq_factor": to.high}
    return {
        "num_hidden_layers": config.n_layers, "hidden_size": config.d_model, "num_attention_heads": config.n_heads,
        "vocab_size": config.d_vocab, "max_position_embeddings": config.n_ctx, "intermediate_size": config.d_mlp,
        "hidden_act": their_activation(config), "rope_parameters": rule, "tie_word_embeddings": config.readout.tied,
        "rope_theta": turn.base, **({} if turn.stretch is None else {"rope_scaling": rule}),
    }  # fmt: skip


def rope(
    fields: Theirs, *, base: str = "rope_theta", share: str = "", usual: float = 0.25, theta: float = 10_000.0,
    skip: int = 0,
) -> c.Rope:  # fmt: skip
    """Rotary positions, perhaps stretched (`config.Stretch`), by the rules of the library's classes.

    `base` and `share` name fields outside `rope_parameters`, `theta` and `usual` their defaults. Without `share`, the
    class rotates whole heads and ignores partial_rotary_factor. Raises `InputError` for unsupported rules.
    """
    rule: Theirs = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in rule.values()):
        raise InputError("rotary positions that differ between layers are not supported")
    kind = rule.get("rope_type", rule.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise InputError(f"rotary positions of kind {kind!r} are not supported, only 'default', 'linear' and 'llama3'")
    stretch = None
    if kind == "linear":
        stretch = c.Stretch(factor=float(rule["factor"]), original=0)
    elif kind == "llama3":
        low, high = (float(rule[f"{name}_freq_factor"]) for name in ("low", "high"))
        name = "original_max_position_embeddings"
        original = int(fields.get(name) or rule.get(name) or fields["max_position_embeddings"])
        stretch = c.Stretch(factor=float(rule["factor"]), original=original, low=low, high=high)
    if stretch is not None and not share:  # then the class reads the factor, and fails
        refuse({**fields, **rule}, partial_rotary_factor=1.0)
    fraction = float(rule.get("partial_rotary_factor", fields.get(share, usual))) if share else 1.0
    frequency = float(rule.get("rope_theta", fields.get(base, theta)))
    return c.Rope(base=frequency, fraction=fraction, stretch=stretch, skip=skip)


def gpt2(fields: Theirs) -> c.ModelConfig:
    """GPT-2: learned positions, LayerNorm, biases everywhere, a tied head."""
    refuse(
        fields, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False,
        add_cross_attention=False, num_hidden_layers=fields["n_layer"], num_attention_heads=fields["n_head"],
        hidden_size=fields["n_embd"], max_position_embeddings=fields["n_positions"],
    )  # fmt: skip
    bias, norm = c.Dense(bias=True), c.LayerNorm(eps=fields["layer_norm_epsilon"])
    act = activation(fields["activation_function"])
    return c.ModelConfig(
        name="hf-gpt2", n_layers=fields["n_layer"], d_model=fields["n_embd"], n_heads=fields["n_head"],
        d_vocab=fields["vocab_size"], n_ctx=fields["n_positions"], positions=c.Learned(), norm=norm,
        attention=c.Attention(q=bias, k=bias, v=bias, o=bias),
        mlp=c.Mlp(d_mlp=fields.get("n_inner") or 0, up=bias, down=bias, activation=act),
        readout=c.Readout(norm=norm, tied=fields.get("tie_word_embeddings", True)),
    )  # fmt: skip


def as_gpt2(config: c.ModelConfig) -> dict[str, Any]:
    return {
        "n_layer": config.n_layers, "n_embd": config.d_model, "n_head": config.n_heads, "vocab_size": config.d_vocab,
        "n_positions": config.n_ctx, "n_inner": config.d_mlp, "layer_norm_epsilon": config.norm.eps,
        "activation_function": their_activation(config), "tie_word_embeddings": config.readout.tied,
    }  # fmt: skip


GPT2 = modules(
    "h",
    {"embed": "wte", "pos_embed": "wpe", "ln_final": "ln_f", "unembed": "/lm_head"},
    {
        "ln1": "ln_1", "ln2": "ln_2", **{f"attn.{name}": ("attn.c_attn", third(i)) for i, name in enumerate("qkv")},
        "attn.o": ("attn.c_proj", TRANSPOSED), "mlp.up": ("mlp.c_fc", TRANSPOSED),
        "mlp.down": ("mlp.c_proj", TRANSPOSED),
    },
)  # fmt: skip
"""Conv1D maps are transposed, with q, k and v in one tensor."""


def neox(fields: Theirs) -> c.ModelConfig:
    """GPT-NeoX and Pythia: partly rotary positions, parallel branches, biases, an untied head."""
    refuse(fields, head_dim=fields["hidden_size"] // fields["num_attention_heads"])
    norm, bias, qkvo = c.LayerNorm(eps=fields["layer_norm_eps"]), c.Dense(bias=True), fields.get("attention_bias", True)
    attention, parallel = c.Dense(bias=qkvo), fields.get("use_parallel_residual", True)
    if not isinstance(parallel, bool):
        raise InputError(f"use_parallel_residual must be true or false, got {parallel!r}")
    return c.ModelConfig(
        name="hf-gpt-neox", n_layers=fields["num_hidden_layers"], d_model=fields["hidden_size"],
        n_heads=fields["num_attention_heads"], d_vocab=fields["vocab_size"], n_ctx=fields["max_position_embeddings"],
        positions=rope(fields, base="rotary_emb_base", share="rotary_pct"), norm=norm,
        residual=c.Single(order="parallel" if parallel else "sequential"),
        attention=c.Attention(q=attention, k=attention, v=attention, o=attention),
        mlp=c.Mlp(d_mlp=fields["intermediate_size"], up=bias, down=bias, activation=activation(fields["hidden_act"])),
        readout=c.Readout(norm=norm, tied=fields.get("tie_word_embeddings", False)),
    )  # fmt: skip


def as_neox(config: c.ModelConfig) -> dict[str, Any]:
    fields, bias = sizes(config), any(name.startswith("attn.") for name in _biased(config))
    if isinstance(config.positions, c.Rope):
        fields["rope_parameters"] |= {"partial_rotary_factor": config.positions.fraction}
        fields |= {"rotary_emb_base": config.positions.base, "rotary_pct": config.positions.fraction}
    parallel = getattr(config.residual, "order", "") == "parallel"
    return fields | {"layer_norm_eps": config.norm.eps, "attention_bias": bias, "use_parallel_residual": parallel}


def neox_table(config: c.ModelConfig) -> Table:
    """GPT-NeoX's weights: q, k and v of a head are in one tensor."""
    return modules(
        "layers",
        {"embed": "embed_in", "ln_final": "final_layer_norm", "unembed": "/embed_out"},
        {
            "ln1": "input_layernorm", "ln2": "post_attention_layernorm", "attn.o": "attention.dense",
            "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h",
            **{f"attn.{n}": ("attention.query_key_value", by_head(i, config.n_heads)) for i, n in enumerate("qkv")},
        },
    )  # fmt: skip


def llama(
    fields: Theirs, *, name: str = "hf-llama", biases: Sequence[str] = ("attention_bias", "mlp_bias"),
    qkv_bias: bool = False, qk_norm: bool = False, tied: bool = False, positions: c.Rope | None = None, window: Any = 0,
) -> c.ModelConfig:  # fmt: skip
    """Llama and its relatives: rotary positions, RMSNorm, a gated FFN; optional grouped queries, biases and QK norm.

    `biases` are the fields that the class reads; it ignores others in its config.json. `tied` is its default.
    """
    refuse(fields, use_sliding_window=False, pretraining_tp=1)
    if set(fields.get("layer_types") or ()) - {"full_attention"}:
        raise InputError("layer_types other than 'full_attention' are not supported")
    norm, d, heads = c.RMSNorm(eps=fields["rms_norm_eps"]), fields["hidden_size"], fields["num_attention_heads"]
    bias, mlp_bias = (field in biases and fields.get(field, False) for field in ("attention_bias", "mlp_bias"))
    qkv, mlp = c.Dense(bias=bias or qkv_bias), c.Dense(bias=mlp_bias)
    act = activation(fields["hidden_act"])
    return c.ModelConfig(
        name=name, n_layers=fields["num_hidden_layers"], d_model=d, n_heads=heads, d_vocab=fields["vocab_size"],
        n_ctx=fields["max_position_embeddings"], positions=positions or rope(fields), norm=norm,
        attention=c.Attention(
            window=window or 0, q=qkv, k=qkv, v=qkv, o=c.Dense(bias=bias), d_head=fields.get("head_dim") or d // heads,
            kv_heads=fields.get("num_key_value_heads") or heads, qk_norm=norm if qk_norm else None,
        ),
        mlp=c.Mlp(d_mlp=fields["intermediate_size"], up=mlp, down=mlp, gate=mlp, activation=act),
        readout=c.Readout(norm=norm, tied=fields.get("tie_word_embeddings", tied)),
    )  # fmt: skip


def every_kth(marked: Sequence[bool], n: int, label: str) -> int:
    """k if of n layers k, 2k, …, counted from 1, are marked, 0 if none is."""
    if len(marked) != n:
        raise InputError(f"{label} has {len(marked)} entries, but the model has {n} layers")
    k = next((i + 1 for i, mark in enumerate(marked) if mark), 0)
    if any(mark != (k > 0 and (i + 1) % k == 0) for i, mark in enumerate(marked)):
        raise InputError(f"{label} is not supported, only every k-th layer")
    return k


def mistral(fields: Theirs) -> c.ModelConfig:
    """Mistral: Llama with a window in every layer, unless layer_types say that there is none."""
    window = 0 if fields.get("layer_types") else fields.get("sliding_window", 4096)
    return llama(fields, name="hf-mistral", biases=(), window=window)


def phi3(fields: Theirs) -> c.ModelConfig:
    """Phi-3: Llama with partly rotary positions and perhaps a window."""
    positions = rope(fields, share="partial_rotary_factor", usual=1.0)
    return llama(fields, name="hf-phi3", biases=(), window=fields.get("sliding_window"), positions=positions)


def smollm3(fields: Theirs) -> c.ModelConfig:
    """SmolLM3: Llama without positions in every k-th layer. Raises `InputError` for another pattern."""
    n, step = fields["num_hidden_layers"], fields.get("no_rope_layer_interval", 4)
    if (rotated := fields.get("no_rope_layers")) is not None:
        step = every_kth([not value for value in rotated[:n]], n, f"no_rope_layers = {rotated!r}")
    return llama(fields, name="hf-smollm3", tied=True, positions=rope(fields, theta=2_000_000.0, skip=step))


def as_llama(config: c.ModelConfig) -> dict[str, Any]:
    biased = _biased(config)
    return {
        **sizes(config), "rms_norm_eps": config.norm.eps, "head_dim": config.d_head,
        "num_key_value_heads": config.kv_heads, "attention_bias": "attn.o" in biased,
        "mlp_bias": any(name.startswith("mlp.") for name in biased),
    }  # fmt: skip


OUTER: dict[str, str] = {"embed": "embed_tokens", "ln_final": "norm", "unembed": "/lm_head"}
INNER: dict[str, str] = {
    "ln1": "input_layernorm", "ln2": "post_attention_layernorm",
    **{f"attn.{name}": f"self_attn.{name}" for name in ("q_norm", "k_norm")},
    **{f"attn.{name}": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}  # fmt: skip
LLAMA = modules("layers", OUTER, INNER)  # the weights of Llama and its relatives, with the same layout as ours
AFTER: dict[str, str] = {"ln1_post": "post_attention_layernorm", "ln2_post": "post_feedforward_layernorm"}
"""The norms of what the branches write."""
OLMO2 = modules("layers", OUTER, INNER | AFTER)
GEMMA_NORMS = {name: INNER[name] for name in ("ln1", "attn.q_norm", "attn.k_norm")} | AFTER
GEMMA_NORMS |= {"ln2": "pre_feedforward_layernorm"}
GEMMA = modules("layers", {**OUTER, "ln_final": ("norm", OFFSET)}, {
    **INNER, **{name: (their, OFFSET) for name, their in GEMMA_NORMS.items()},
})  # fmt: skip
"""γ − 1 of every norm."""


def phi3_table(config: c.ModelConfig) -> Table:
    """Phi-3's weights: those of Llama, with q, k and v in one tensor, and gate and up in another."""
    q, kv, m = config.n_heads * config.d_head, config.kv_heads * config.d_head, config.d_mlp
    qkv = {f"attn.{n}": ("self_attn.qkv_proj", stacked_rows(i, (q, kv, kv))) for i, n in enumerate("qkv")}
    pair = {f"mlp.{n}": ("mlp.gate_up_proj", stacked_rows(i, (m, m))) for i, n in enumerate(("gate", "up"))}
    return modules("layers", OUTER, {**INNER, **qkv, **pair})


def olmo2(fields: Theirs) -> c.ModelConfig:
    """OLMo 2: Llama with norms after the branches, and a norm of queries and keys over all heads."""
    config = llama(fields, name="hf-olmo2", biases=("attention_bias",), qk_norm=True)
    return replace(config, norm_place="after", attention=replace(config.attention, qk_norm_over="layer"))


def gemma(
    fields: Theirs, *, name: str, every: int, caps: tuple[float | None, float | None], **options: Any
) -> c.ModelConfig:
    """Gemma 2 and 3: Llama with norms before and after the branches, scaled embeddings and windows in some layers.

    `every` and `caps` (of scores and logits) are the defaults of the class, `options` those of `llama`.
    """
    if fields.get("use_bidirectional_attention"):
        raise InputError("use_bidirectional_attention is not supported, only causal attention")
    types = fields.get("layer_types")
    if types is not None:
        if unknown_types := set(types) - {"full_attention", "sliding_attention"}:
            raise InputError(f"layer_types {sorted(unknown_types)} are not supported")
        full = [kind == "full_attention" for kind in types]
        every = every_kth(full, fields["num_hidden_layers"], f"layer_types = {types!r}")
    usual = {"head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}
    fields = {**usual, "hidden_activation": "gelu_pytorch_tanh", **fields}
    fields = {**fields, "hidden_act": fields["hidden_activation"], "layer_types": None}
    options |= {"biases": ("attention_bias",), "tied": True, "window": fields["sliding_window"]}
    config = llama(fields, name=name, **options)
    scores_cap = float(fields.get("attn_logit_softcapping", caps[0]) or 0)
    logits_cap = float(fields.get("final_logit_softcapping", caps[1]) or 0)
    width = fields["query_pre_attn_scalar"]
    scale_width = 0.0 if width == config.d_head else float(width)
    return replace(
        config, norm_place="both", embed_scale=config.d_model**0.5,
        attention=replace(config.attention, full_every=every, softcap=scores_cap, scale_width=scale_width),
        readout=replace(config.readout, softcap=logits_cap),
    )  # fmt: skip


def gemma3(fields: Theirs) -> c.ModelConfig:
    """Gemma 3: Gemma 2 with a norm of queries and keys, no cap, and other rotary positions in layers with a window."""
    refuse(fields, attn_logit_softcapping=None)  # the class ignores it
    rules = fields.get("rope_parameters") or {}
    if set(rules) - {"full_attention", "sliding_attention"}:
        raise InputError(f"rope_parameters = {rules!r} is not supported, only those of both kinds of layers")
    local: dict[str, Any] = rules.get("sliding_attention") or {}
    if local.get("rope_type", "default") != "default":
        raise InputError(f"rotary positions of kind {local['rope_type']!r} in layers with a window are not supported")
    rule = (rules.get("full_attention") or {}) | (fields.get("rope_scaling") or {})
    full = {"rope_theta": fields.get("rope_theta", 1_000_000.0), **rule}
    base = float(local.get("rope_theta") or fields.get("rope_local_base_freq") or 10_000.0)
    every = fields.get("sliding_window_pattern", 6)
    positions = replace(rope({**fields, "rope_parameters": full, "rope_scaling": None}), local_base=base)
    return gemma(fields, name="hf-gemma3", qk_norm=True, caps=(None, None), every=every, positions=positions)


def exported(fields: Theirs) -> c.ModelConfig:
    return from_dict(c.ModelConfig, fields["parts"], "parts")


def exported_table(config: c.ModelConfig) -> Table:
    names = (LAYER.sub("blocks.{l}.", name) for name in (*shapes_of(config), "unembed.weight"))
    return {name: (name, WHOLE) for name in names}


qwen2 = partial(llama, name="hf-qwen2", biases=(), qkv_bias=True)
qwen3 = partial(llama, name="hf-qwen3", biases=("attention_bias",), qk_norm=True)
gemma2 = partial(gemma, name="hf-gemma2", every=2, caps=(50.0, 30.0))
FAMILIES = {
    "gpt2": Family(gpt2, GPT2, "transformer.", "GPT2LMHeadModel", as_gpt2),
    "gpt_neox": Family(neox, neox_table, "gpt_neox.", "GPTNeoXForCausalLM", as_neox),
    "llama": Family(llama, LLAMA, "model.", "LlamaForCausalLM", as_llama),
    "qwen2": Family(qwen2, LLAMA, "model.", "Qwen2ForCausalLM", as_llama),
    "qwen3": Family(qwen3, LLAMA, "model.", "Qwen3ForCausalLM", as_llama),
    "mistral": Family(mistral, LLAMA, "model.", "MistralForCausalLM"),
    "smollm3": Family(smollm3, LLAMA, "model.", "SmolLM3ForCausalLM"),
    "olmo2": Family(olmo2, OLMO2, "model.", "Olmo2ForCausalLM"),
    "phi3": Family(phi3, phi3_table, "model.", "Phi3ForCausalLM"),
    "gemma2": Family(gemma2, GEMMA, "model.", "Gemma2ForCausalLM"),
    "gemma3_text": Family(gemma3, GEMMA, "model.", "Gemma3ForCausalLM"),
    "streamscope": Family(exported, exported_table, "model.", "StreamscopeForCausalLM"),
}
"""Families by `model_type`; the last one is that of our exports."""


def native(config: c.ModelConfig) -> tuple[str, dict[str, Any], c.ModelConfig]:
    """(model_type, config.json, its configuration in our parts) of a family that computes the same function.

    Additional biases are allowed, as zeros; the family with the fewest wins, and the one that a model came from.
    Initial weights, dropout and per-layer supervision do not matter. Raises `InputError` if there is no such family.
    """
    matches = []
    written = {kind: family for kind, family in FAMILIES.items() if family.theirs is not None}
    for kind, family in written.items():
        fields = family.theirs(config)  # type: ignore[misc]
        with suppress(InputError):
            back, biases = family.config(fields), _biased(config)
            extra = _biased(back) - biases
            if _computed(back) == _computed(config) and biases <= _biased(back):
                matches.append(((len(extra), back.name != config.name), kind, fields, back))
    if not matches:
        raise InputError(f"no class of the library computes the same as {config.name}: export without --native")
    return min(matches, key=lambda item: item[0])[1:]


def _biased(config: c.ModelConfig) -> set[str]:
    return {name for name, spec, *_ in config.projections() if getattr(spec, "bias", False)}


def _computed(config: c.ModelConfig) -> c.ModelConfig:
    """The configuration without biases and everything that evaluation ignores."""
    changes: dict[str, Any] = {
        "name": "", "dropout": 0.0, "init": c.Initial(), "init_std": 0.02, "attention.dropout": 0.0,
        "attention.d_head": config.d_head, "attention.kv_heads": config.kv_heads, "mlp.d_mlp": config.d_mlp,
    }  # fmt: skip
    dense = [path for path, spec, *_ in config.projections() if isinstance(spec, c.Dense)]
    changes |= {path.replace("attn.", "attention."): c.Dense() for path in dense}
    if config.readout.layer_norms == "shared":
        changes["readout.supervision"] = None
    return override(config, changes)
