"""The hook table: every activation that a model exposes, in the order of computation.

Names follow TransformerLens 4 where it has one. Shapes use B batch, T position, D width, H heads, G key-value heads, K
head width, N streams, M hidden width of the FFN, R latent width of an HDPL projection. Every hook has the batch
dimension. `models.hooks.points` defines the kinds of points.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from streamscope.models.config import ChannelLayerNorm, Hdpl, Hyper, ModelConfig


@dataclass(frozen=True)
class Hook:
    """One row: a name (`L` stands for the layer), a shape, a meaning, and which of the `traits` of a configuration it
    and its edits need; "" is a trait of all."""

    name: str
    shape: str
    meaning: str
    needs: str = ""
    edit_needs: str = ""
    on_demand: bool = False

    def when(self, config: ModelConfig) -> bool:
        return traits(config).get(self.needs, False)

    def edit(self, config: ModelConfig) -> bool:
        return traits(config).get(self.edit_needs, False)


def traits(config: ModelConfig) -> dict[str, bool]:
    """Which of the traits that rows need a configuration has; what is not named it has not."""
    positions, streams, place = config.positions, config.residual.streams, config.norm_place
    has = {
        "": True, "table": positions.table, "rotary": positions.rotates, "slopes": positions.slopes,
        "one stream": not streams, "value norm": config.residual.value_path == "own", "norm before": place != "after",
        "norm after": place != "before", "head gate": config.attention.gate is not None,
        "gated": config.mlp.gate is not None, "linear output": not isinstance(config.attention.o, Hdpl),
    }  # fmt: skip
    has |= dict.fromkeys(streams, True) | dict.fromkeys(config.canon_widths(), True)
    for path, spec, _, _ in config.projections():
        has |= {f"{path} mixes": spec.mix is not None, f"{path} hdpl": isinstance(spec, Hdpl)}
    return has


def _rows(templates: list[Hook], *words: str) -> Iterator[Hook]:
    """The rows of templates, with words for the numbers in braces."""
    for row in templates:
        yield Hook(
            row.name.format(*words), row.shape.format(*words), row.meaning.format(*words), row.needs.format(*words),
            row.edit_needs, row.on_demand,
        )  # fmt: skip


STREAMS = [
    Hook("blocks.L.hook_token_{0}", "B T D", "token stream x_t {1}", "token"),
    Hook("blocks.L.hook_context_{0}", "B T D", "context stream x_e {1}", "context"),
    Hook("blocks.L.hook_streams_{0}", "B T N D", "parallel streams X {1}", "streams"),
    Hook(
        "blocks.L.hook_resid_{0}", "B T D", "residual stream {1}; with several streams, their readout", "", "one stream"
    ),
]
"""The streams at a place of a layer."""
CONNECTION = [
    Hook("blocks.L.{0}_hc.hook_pre", "B T N", "weight of each stream in the branch's input", "streams"),
    Hook("blocks.L.{0}_hc.hook_res", "B T N N", "mixing of the streams; row s gives the new stream s", "streams"),
    Hook("blocks.L.{0}_hc.hook_post", "B T N", "weight of the branch's update in each stream", "streams"),
]
"""Coefficients of the hyper-connection around a branch, in the order of use."""
NORM = [
    Hook("{0}.hook_scale", "B T 1 | B T H 1", "sqrt(var + eps)", "{1}", on_demand=True),
    Hook("{0}.hook_normalized", "B T D", "normalised, before γ and β", "{1}", on_demand=True),
]
CANON = [
    Hook("blocks.L.canon_{0}.hook_conv", "{1}", "convolution of Canon-{2}, to which it adds its input", "{0}"),
    Hook("blocks.L.canon_{0}.hook_out", "{1}", "{3} after Canon-{2}", "{0}"),
]
PROJECTION = [
    Hook(
        "blocks.L.{0}.hook_{1}_mix", "B H H | B H in out",
        "mixing matrix of {1} in use: Kronecker W_kh, independent W_hio", "{0}.{1} mixes", on_demand=True,
    ),
    Hook("blocks.L.{0}.{1}.hook_detail", "{2}", "detail path: block-diagonal map of the input", "{0}.{1} hdpl"),
    Hook("blocks.L.{0}.{1}.hook_mu", "B T R", "mean μ of the latent", "{0}.{1} hdpl"),
    Hook(
        "blocks.L.{0}.{1}.hook_logvar", "B T R", "log σ² of the latent; not used at evaluation", "{0}.{1} hdpl",
        edit_needs="nothing reads it",
    ),
    Hook(
        "blocks.L.{0}.{1}.hook_latent", "B T R", "latent z, the decoder's input: μ, in training a sample",
        "{0}.{1} hdpl",
    ),
    Hook("blocks.L.{0}.{1}.hook_global", "{2}", "global path: decoder of SiLU(z)", "{0}.{1} hdpl"),
]  # fmt: skip
"""The mixing matrix of a projection, and the points inside it when it is `Hdpl` (HDPL Eq. 1–7)."""

HOOKS: list[Hook] = [
    Hook("hook_embed", "B T D", "token embedding, times its scale"),
    Hook("hook_pos_embed", "B T D", "position embedding", "table"),
    *_rows(STREAMS, "pre", "entering the layer"),
    *_rows(CONNECTION, "attn"),
    Hook("blocks.L.hook_attn_in", "B T D", "input of Q and K, before the norm"),
    Hook("blocks.L.hook_attn_v_in", "B T D", "input of V, before its norm"),
    *_rows(NORM, "blocks.L.ln1_v", "value norm"),
    *_rows(NORM, "blocks.L.ln1", "norm before"),
    *_rows(CANON, "a", "B T D", "A", "input of Q and K"),
    *_rows(PROJECTION, "attn", "q", "B T D"),
    *_rows(PROJECTION, "attn", "k", "B T D"),
    *_rows(PROJECTION, "attn", "v", "B T D"),
    *_rows(CANON, "b", "B T 3D", "B", "queries, keys and values"),
    Hook("blocks.L.attn.hook_q", "B T H K", "queries, before positions"),
    Hook("blocks.L.attn.hook_k", "B T G K", "keys, before positions"),
    Hook("blocks.L.attn.hook_v", "B T G K", "values"),
    Hook("blocks.L.attn.hook_rot_q", "B T H K", "queries after RoPE", "rotary"),
    Hook("blocks.L.attn.hook_rot_k", "B T G K", "keys after RoPE", "rotary"),
    Hook(
        "blocks.L.attn.hook_slopes", "B H", "ALiBi slopes m_h in use: the scores fall by m_h per token of distance",
        "slopes", on_demand=True,
    ),
    Hook("blocks.L.attn.hook_attn_scores", "B H T T", "masked (and capped) scores before the softmax", on_demand=True),
    Hook("blocks.L.attn.hook_pattern", "B H T T", "attention weights", on_demand=True),
    Hook("blocks.L.attn.hook_z_ungated", "B T H K", "A V before the gate", "head gate"),
    Hook("blocks.L.attn.hook_gate", "B T H K | B T H 1", "head gate g", "head gate"),
    Hook("blocks.L.attn.hook_z", "B T H K", "input of the output projection"),
    *_rows(PROJECTION, "attn", "o", "B T D"),
    Hook(
        "blocks.L.attn.hook_result", "B T H D",
        "each head's part of the attention update: its z through the output projection, without the bias",
        "linear output", on_demand=True,
    ),
    *_rows(NORM, "blocks.L.ln1_post", "norm after"),
    Hook("blocks.L.hook_attn_out", "B T D", "attention's update"),
    *_rows(STREAMS, "mid", "after attention"),
    *_rows(CONNECTION, "mlp"),
    Hook("blocks.L.hook_mlp_in", "B T D", "input of the FFN, before the norm"),
    *_rows(NORM, "blocks.L.ln2", "norm before"),
    *_rows(CANON, "c", "B T D", "C", "input of the FFN"),
    *_rows(PROJECTION, "mlp", "gate", "B T M"),
    *_rows(PROJECTION, "mlp", "up", "B T M"),
    *_rows(CANON, "d", "B T M | B T 2M", "D", "hidden input"),
    Hook("blocks.L.mlp.hook_pre", "B T M", "input of the activation (the gate, in a gated FFN)"),
    Hook("blocks.L.mlp.hook_pre_linear", "B T M", "linear half of a gated FFN", "gated"),
    Hook("blocks.L.mlp.hook_post", "B T M", "hidden activations"),
    *_rows(PROJECTION, "mlp", "down", "B T D"),
    *_rows(NORM, "blocks.L.ln2_post", "norm after"),
    Hook("blocks.L.hook_mlp_out", "B T D", "the FFN's update"),
    *_rows(STREAMS, "post", "leaving the layer"),
    *_rows(NORM, "ln_final", ""),
]  # fmt: skip
"""In order of computation. A test compares the hooks of every preset with it."""


def expected_hooks(config: ModelConfig) -> Iterator[tuple[str, Hook]]:
    """(full name, row) of every hook of a model, in firing order."""
    rows = [row for row in HOOKS if row.when(config)]
    for layered, group in groupby(rows, lambda row: row.name.startswith("blocks.L.")):
        part = list(group)
        for layer in range(config.n_layers if layered else 1):
            yield from ((row.name.replace(".L.", f".{layer}."), row) for row in part)


_BY_NAME = dict(zip(map(attrgetter("name"), HOOKS), HOOKS, strict=True))


@lru_cache(maxsize=4096)  # asked for every hook of every batch
def row_of(name: str) -> Hook | None:
    """The row of a full hook name, or None if the table has none."""
    return _BY_NAME.get(re.sub(r"^blocks\.[^.]*", "blocks.L", name))


def layer_of(name: str) -> int:
    """The layer of a full hook name; −1 outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


def concrete_shape(row: Hook, name: str, config: ModelConfig) -> str:
    """The row's shape in this model, with numbers for all letters except B and T."""
    options, gate = row.shape.split(" | "), config.attention.gate
    norm = config.readout.norm if name.startswith("ln_final") else config.norm
    second = (
        (name.endswith("hook_gate") and gate is not None and gate.shape == "scalar")
        or (name.endswith("hook_scale") and isinstance(norm, ChannelLayerNorm))
        or ("canon_d" in name and config.mlp.gate is not None)
    )
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
