"""The hook table: every activation that a model exposes, in the order of computation.

Names follow TransformerLens 4 where it has one. Shapes use B batch, T position, D width, H heads, G key-value heads, K
head width, N streams, M hidden width of the FFN, R latent width of an HDPL projection. Every hook has the batch
dimension. `models.hooks.points` defines the kinds of points.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from streamscope.models.config import ChannelLayerNorm, Hdpl, Hyper, ModelConfig

Condition = Callable[[ModelConfig], bool]


@dataclass(frozen=True)
class Hook:
    """One row: a name (`L` stands for the layer), a shape, a meaning, and the configurations that have it."""

    name: str
    shape: str
    meaning: str
    when: Condition = lambda config: True
    edit: Condition = lambda config: True
    on_demand: bool = False


def _stream(name: str) -> Condition:
    return lambda c: name in c.residual.streams


def _normed(place: str) -> Condition:
    return lambda c: c.norm_place in (place, "both")


def _projection(part: str, name: str) -> list[Hook]:
    """The mixing matrix of a projection, and the points inside it when it is `Hdpl` (HDPL Eq. 1–7)."""

    def mixes(c: ModelConfig) -> bool:
        spec = getattr(getattr(c, part), name)
        return spec is not None and spec.mix is not None

    def is_hdpl(c: ModelConfig) -> bool:
        return isinstance(getattr(getattr(c, part), name), Hdpl)

    folder = "attn" if part == "attention" else "mlp"
    matrix = f"mixing matrix of {name} in use: Kronecker W_kh, independent W_hio"
    path, wide = f"blocks.L.{folder}.{name}", "B T M" if name in ("gate", "up") else "B T D"
    logvar = "log σ² of the latent; not used at evaluation"
    return [
        Hook(f"blocks.L.{folder}.hook_{name}_mix", "B H H | B H in out", matrix, mixes, on_demand=True),
        Hook(f"{path}.hook_detail", wide, "detail path: block-diagonal map of the input", is_hdpl),
        Hook(f"{path}.hook_mu", "B T R", "mean μ of the latent", is_hdpl),
        Hook(f"{path}.hook_logvar", "B T R", logvar, is_hdpl, edit=lambda c: False),
        Hook(f"{path}.hook_latent", "B T R", "latent z, the decoder's input: μ, in training a sample", is_hdpl),
        Hook(f"{path}.hook_global", wide, "global path: decoder of SiLU(z)", is_hdpl),
    ]


def _canon(place: str, shape: str, meaning: str) -> list[Hook]:
    name, path, when = f"Canon-{place.upper()}", f"blocks.L.canon_{place}", lambda c: place in c.canon_widths()
    return [
        Hook(f"{path}.hook_conv", shape, f"convolution of {name}, to which it adds its input", when),
        Hook(f"{path}.hook_out", shape, f"{meaning} after {name}", when),
    ]


def _connection(branch: str) -> list[Hook]:
    """Coefficients of the hyper-connection around a branch, in the order of use."""
    path, when = f"blocks.L.{branch}_hc.hook", _stream("streams")
    return [
        Hook(f"{path}_pre", "B T N", "weight of each stream in the branch's input", when),
        Hook(f"{path}_res", "B T N N", "mixing of the streams; row s gives the new stream s", when),
        Hook(f"{path}_post", "B T N", "weight of the branch's update in each stream", when),
    ]


def _norm(path: str, when: Condition = lambda c: True) -> list[Hook]:
    return [
        Hook(f"{path}.hook_scale", "B T 1 | B T H 1", "sqrt(var + eps)", when, on_demand=True),
        Hook(f"{path}.hook_normalized", "B T D", "normalised, before γ and β", when, on_demand=True),
    ]


def _streams(place: str) -> list[Hook]:
    when = {"pre": "entering the layer", "mid": "after attention", "post": "leaving the layer"}[place]
    resid = f"residual stream {when}; with several streams, their readout"
    return [
        Hook(f"blocks.L.hook_token_{place}", "B T D", f"token stream x_t {when}", _stream("token")),
        Hook(f"blocks.L.hook_context_{place}", "B T D", f"context stream x_e {when}", _stream("context")),
        Hook(f"blocks.L.hook_streams_{place}", "B T N D", f"parallel streams X {when}", _stream("streams")),
        Hook(f"blocks.L.hook_resid_{place}", "B T D", resid, edit=lambda c: not c.residual.streams),
    ]


HOOKS: list[Hook] = [
    Hook("hook_embed", "B T D", "token embedding, times its scale"),
    Hook("hook_pos_embed", "B T D", "position embedding", lambda c: c.positions.table),
    *_streams("pre"),
    *_connection("attn"),
    Hook("blocks.L.hook_attn_in", "B T D", "input of Q and K, before the norm"),
    Hook("blocks.L.hook_attn_v_in", "B T D", "input of V, before its norm"),
    *_norm("blocks.L.ln1_v", lambda c: c.residual.value_path == "own"),
    *_norm("blocks.L.ln1", _normed("before")),
    *_canon("a", "B T D", "input of Q and K"),
    *_projection("attention", "q"),
    *_projection("attention", "k"),
    *_projection("attention", "v"),
    *_canon("b", "B T 3D", "queries, keys and values"),
    Hook("blocks.L.attn.hook_q", "B T H K", "queries, before positions"),
    Hook("blocks.L.attn.hook_k", "B T G K", "keys, before positions"),
    Hook("blocks.L.attn.hook_v", "B T G K", "values"),
    Hook("blocks.L.attn.hook_rot_q", "B T H K", "queries after RoPE", lambda c: c.positions.rotates),
    Hook("blocks.L.attn.hook_rot_k", "B T G K", "keys after RoPE", lambda c: c.positions.rotates),
    Hook(
        "blocks.L.attn.hook_slopes", "B H", "ALiBi slopes m_h in use: the scores fall by m_h per token of distance",
        lambda c: c.positions.slopes, on_demand=True,
    ),
    Hook("blocks.L.attn.hook_attn_scores", "B H T T", "masked (and capped) scores before the softmax", on_demand=True),
    Hook("blocks.L.attn.hook_pattern", "B H T T", "attention weights", on_demand=True),
    Hook("blocks.L.attn.hook_z_ungated", "B T H K", "A V before the gate", lambda c: c.attention.gate is not None),
    Hook("blocks.L.attn.hook_gate", "B T H K | B T H 1", "head gate g", lambda c: c.attention.gate is not None),
    Hook("blocks.L.attn.hook_z", "B T H K", "input of the output projection"),
    *_projection("attention", "o"),
    Hook(
        "blocks.L.attn.hook_result", "B T H D",
        "each head's part of the attention update: its z through the output projection, without the bias",
        lambda c: not isinstance(c.attention.o, Hdpl), on_demand=True,
    ),
    *_norm("blocks.L.ln1_post", _normed("after")),
    Hook("blocks.L.hook_attn_out", "B T D", "attention's update"),
    *_streams("mid"),
    *_connection("mlp"),
    Hook("blocks.L.hook_mlp_in", "B T D", "input of the FFN, before the norm"),
    *_norm("blocks.L.ln2", _normed("before")),
    *_canon("c", "B T D", "input of the FFN"),
    *_projection("mlp", "gate"),
    *_projection("mlp", "up"),
    *_canon("d", "B T M | B T 2M", "hidden input"),
    Hook("blocks.L.mlp.hook_pre", "B T M", "input of the activation (the gate, in a gated FFN)"),
    Hook("blocks.L.mlp.hook_pre_linear", "B T M", "linear half of a gated FFN", lambda c: c.mlp.gate is not None),
    Hook("blocks.L.mlp.hook_post", "B T M", "hidden activations"),
    *_projection("mlp", "down"),
    *_norm("blocks.L.ln2_post", _normed("after")),
    Hook("blocks.L.hook_mlp_out", "B T D", "the FFN's update"),
    *_streams("post"),
    *_norm("ln_final"),
]  # fmt: skip
"""In order of computation. A test compares the hooks of every preset with it."""


def expected_hooks(config: ModelConfig) -> Iterator[tuple[str, Hook]]:
    """(full name, row) of every hook of a model, in firing order."""
    rows = [row for row in HOOKS if row.when(config)]
    for layered, group in groupby(rows, lambda row: row.name.startswith("blocks.L.")):
        part = list(group)
        for layer in range(config.n_layers if layered else 1):
            yield from ((row.name.replace(".L.", f".{layer}."), row) for row in part)


_BY_NAME = {row.name: row for row in HOOKS}


def row_of(name: str) -> Hook | None:
    """The row of a full hook name, or None if the table has none."""
    return _BY_NAME.get(re.sub(r"^blocks\.[^.]*", "blocks.L", name))


def layer_of(name: str) -> int:
    """The layer of a full hook name; −1 outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


def concrete_shape(row: Hook, name: str, config: ModelConfig) -> str:
    """The row's shape in this model, with numbers for all letters except B and T."""
    options, second = row.shape.split(" | "), False
    if name.endswith("hook_gate") and config.attention.gate is not None:
        second = config.attention.gate.shape == "scalar"
    elif name.endswith("hook_scale"):
        norm = config.readout.norm if name.startswith("ln_final") else config.norm
        second = isinstance(norm, ChannelLayerNorm)
    elif "canon_d" in name:
        second = config.mlp.gate is not None
    sizes: dict[str, int | None] = {
        "D": config.d_model, "H": config.n_heads, "G": config.kv_heads, "K": config.d_head, "M": config.d_mlp,
        "3D": config.canon_widths().get("b"), "2M": 2 * config.d_mlp,
        "N": config.residual.n if isinstance(config.residual, Hyper) else 1,
    }  # fmt: skip
    for path, spec, d_in, d_out in config.projections():
        if name.endswith(f".{path.replace('.', '.hook_')}_mix"):
            second = spec.mix == options[1]
            sizes |= {"in": d_in // config.n_heads, "out": d_out // config.n_heads}
        elif f".{path}." in name and isinstance(spec, Hdpl):
            sizes |= {"R": spec.latent_width(d_in, d_out), "D": d_out, "M": d_out}
    return " ".join(str(sizes.get(letter, letter)) for letter in options[second].split())
