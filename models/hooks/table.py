"""THE hook table: every activation a model exposes, in the order in which it is computed.

Names follow TransformerLens 4 wherever it has one. Shapes use B batch, T position, D width, H heads,
G heads of keys and values, K head width, N streams, M hidden width of the FFN, R latent width of an HDPL projection;
every hook carries the batch dimension. What the points do is in `models.hooks.points`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamscope.models.config import ChannelLayerNorm, Hdpl, Hyper, ModelConfig

Condition = Callable[[ModelConfig], bool]


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One row: a name (`L` stands for the layer), a shape, a meaning, and who has it."""

    name: str
    shape: str
    meaning: str
    when: Condition = lambda config: True
    edit: Condition = lambda config: True
    on_demand: bool = False


def _multi(c: ModelConfig) -> bool:
    return bool(c.residual.streams)


def _stream(name: str) -> Condition:
    return lambda c: name in c.residual.streams


def _single(c: ModelConfig) -> bool:
    return not c.residual.streams


def _gated(c: ModelConfig) -> bool:
    return c.attention.gate is not None


def _gated_mlp(c: ModelConfig) -> bool:
    return c.mlp.gate is not None


def _mix(part: str, name: str) -> Hook:
    def when(c: ModelConfig) -> bool:
        spec = getattr(getattr(c, part), name)
        return spec is not None and spec.mix is not None

    folder = {"attention": "attn", "mlp": "mlp"}[part]
    return Hook(
        name=f"blocks.L.{folder}.hook_{name}_mix",
        shape="B H H | B H in out",
        meaning=f"mixing matrix of {name} in use: Kronecker W_kh, independent W_hio",
        when=when,
        on_demand=True,
    )


def _hdpl(part: str, name: str) -> list[Hook]:
    """The points inside one projection when it is `Hdpl` (HDPL Eq. 1–7)."""

    def when(c: ModelConfig) -> bool:
        return isinstance(getattr(getattr(c, part), name), Hdpl)

    def editable(hook: str) -> Condition:
        return lambda c: hook != "hook_logvar"

    path = f"blocks.L.{'attn' if part == 'attention' else 'mlp'}.{name}"
    wide = "B T M" if name in ("gate", "up") else "B T D"
    rows = [
        ("hook_detail", wide, "detail path: block-diagonal map of the input"),
        ("hook_mu", "B T R", "mean μ of the latent"),
        ("hook_logvar", "B T R", "log σ² of the latent; nothing reads it at evaluation"),
        ("hook_latent", "B T R", "latent z, what the decoder consumes: μ, in training a sample"),
        ("hook_global", wide, "global path: decoder of SiLU(z)"),
    ]
    return [
        Hook(name=f"{path}.{hook}", shape=shape, meaning=meaning, when=when, edit=editable(hook))
        for hook, shape, meaning in rows
    ]


def _canon(place: str, shape: str, meaning: str) -> Hook:
    return Hook(
        name=f"blocks.L.canon_{place}.hook_out",
        shape=shape,
        meaning=f"{meaning} after Canon-{place.upper()}",
        when=lambda c: place in c.canon_widths(),
    )


def _connection(branch: str) -> list[Hook]:
    """Coefficients of the hyper-connection around a branch, in the order of use."""
    rows = [
        ("pre", "B T N", "share of each stream in what the branch reads"),
        ("res", "B T N N", "mixing of the streams, row by row the new stream"),
        ("post", "B T N", "share of the branch's update that each stream gets"),
    ]
    return [
        Hook(name=f"blocks.L.{branch}_hc.hook_{name}", shape=shape, meaning=meaning, when=_stream("streams"))
        for name, shape, meaning in rows
    ]


def _norm(path: str, when: Condition = lambda c: True) -> list[Hook]:
    return [
        Hook(name=f"{path}.hook_scale", shape="B T 1 | B T H 1", meaning="sqrt(var + eps)", when=when, on_demand=True),
        Hook(
            name=f"{path}.hook_normalized",
            shape="B T D",
            meaning="normalised, before γ and β",
            when=when,
            on_demand=True,
        ),
    ]


def _streams(place: str) -> list[Hook]:
    when = {"pre": "entering the layer", "mid": "after attention", "post": "leaving the layer"}[place]
    return [
        Hook(
            name=f"blocks.L.hook_token_{place}",
            shape="B T D",
            meaning=f"token stream x_t {when}",
            when=_stream("token"),
        ),
        Hook(
            name=f"blocks.L.hook_context_{place}",
            shape="B T D",
            meaning=f"context stream x_e {when}",
            when=_stream("context"),
        ),
        Hook(
            name=f"blocks.L.hook_streams_{place}",
            shape="B T N D",
            meaning=f"parallel streams X {when}",
            when=_stream("streams"),
        ),
        Hook(
            name=f"blocks.L.hook_resid_{place}",
            shape="B T D",
            meaning=f"residual stream {when}; with several streams, their readout",
            edit=_single,
        ),
    ]


HOOKS: list[Hook] = [
    Hook(name="hook_embed", shape="B T D", meaning="token embedding"),
    Hook(name="hook_pos_embed", shape="B T D", meaning="position embedding", when=lambda c: c.positions.table),
    *_streams("pre"),
    *_connection("attn"),
    Hook(name="blocks.L.hook_attn_in", shape="B T D", meaning="what Q and K read, before the norm"),
    Hook(name="blocks.L.hook_attn_v_in", shape="B T D", meaning="what V reads, before its norm"),
    *_norm("blocks.L.ln1_v", lambda c: c.residual.value_path == "own"),
    *_norm("blocks.L.ln1"),
    _canon("a", "B T D", "what Q and K read"),
    _mix("attention", "q"),
    *_hdpl("attention", "q"),
    _mix("attention", "k"),
    *_hdpl("attention", "k"),
    _mix("attention", "v"),
    *_hdpl("attention", "v"),
    _canon("b", "B T 3D", "queries, keys and values"),
    Hook(name="blocks.L.attn.hook_q", shape="B T H K", meaning="queries, before positions"),
    Hook(name="blocks.L.attn.hook_k", shape="B T G K", meaning="keys, before positions"),
    Hook(name="blocks.L.attn.hook_v", shape="B T G K", meaning="values"),
    Hook(
        name="blocks.L.attn.hook_rot_q",
        shape="B T H K",
        meaning="queries after RoPE",
        when=lambda c: c.positions.rotates,
    ),
    Hook(
        name="blocks.L.attn.hook_rot_k", shape="B T G K", meaning="keys after RoPE", when=lambda c: c.positions.rotates
    ),
    Hook(
        name="blocks.L.attn.hook_slopes",
        shape="B H",
        meaning="ALiBi slopes m_h in use: the scores fall by m_h per token of distance",
        when=lambda c: c.positions.slopes,
        on_demand=True,
    ),
    Hook(
        name="blocks.L.attn.hook_attn_scores", shape="B H T T", meaning="scores, masked, before softmax", on_demand=True
    ),
    Hook(name="blocks.L.attn.hook_pattern", shape="B H T T", meaning="attention weights", on_demand=True),
    Hook(name="blocks.L.attn.hook_z_ungated", shape="B T H K", meaning="A V before the gate", when=_gated),
    Hook(name="blocks.L.attn.hook_gate", shape="B T H K | B T H 1", meaning="head gate g", when=_gated),
    Hook(name="blocks.L.attn.hook_z", shape="B T H K", meaning="what the output projection consumes"),
    _mix("attention", "o"),
    *_hdpl("attention", "o"),
    Hook(
        name="blocks.L.attn.hook_result",
        shape="B T H D",
        meaning="what each head adds to attention's update: its z through the output projection, without the bias",
        when=lambda c: not isinstance(c.attention.o, Hdpl),
        on_demand=True,
    ),
    Hook(name="blocks.L.hook_attn_out", shape="B T D", meaning="attention's update"),
    *_streams("mid"),
    *_connection("mlp"),
    Hook(name="blocks.L.hook_mlp_in", shape="B T D", meaning="what the FFN reads, before the norm"),
    *_norm("blocks.L.ln2"),
    _canon("c", "B T D", "what the FFN reads"),
    _mix("mlp", "gate"),
    *_hdpl("mlp", "gate"),
    _mix("mlp", "up"),
    *_hdpl("mlp", "up"),
    _canon("d", "B T M | B T 2M", "hidden input"),
    Hook(
        name="blocks.L.mlp.hook_pre",
        shape="B T M",
        meaning="what the activation reads (the gate, in a gated FFN)",
    ),
    Hook(
        name="blocks.L.mlp.hook_pre_linear",
        shape="B T M",
        meaning="the linear half of a gated FFN",
        when=_gated_mlp,
    ),
    Hook(name="blocks.L.mlp.hook_post", shape="B T M", meaning="hidden activations"),
    _mix("mlp", "down"),
    *_hdpl("mlp", "down"),
    Hook(name="blocks.L.hook_mlp_out", shape="B T D", meaning="the FFN's update"),
    *_streams("post"),
    *_norm("ln_final"),
]
"""In order of computation. A test holds every preset against it."""


def expected_hooks(config: ModelConfig) -> Iterator[tuple[str, Hook]]:
    """(full name, row) of every hook of a model, in the order in which they fire."""
    rows = [row for row in HOOKS if row.when(config)]
    layered = [row for row in rows if row.name.startswith("blocks.L.")]
    first, last = rows.index(layered[0]), rows.index(layered[-1])
    for row in rows[:first]:
        yield row.name, row
    for layer in range(config.n_layers):
        for row in layered:
            yield row.name.replace(".L.", f".{layer}."), row
    for row in rows[last + 1 :]:
        yield row.name, row


def row_of(name: str) -> Hook | None:
    """The table's row for a full hook name, or None for a name that is not in the table."""
    parts = name.split(".")
    if parts[0] == "blocks" and len(parts) > 1:
        parts[1] = "L"
    generic = ".".join(parts)
    return next((row for row in HOOKS if row.name == generic), None)


def concrete_shape(row: Hook, name: str, config: ModelConfig) -> str:
    """The row's shape in this model, with numbers for all but B and T."""
    options = row.shape.split(" | ")
    letters = options[0]
    if name.endswith("_mix"):
        _, _, part, hook = name.split(".")
        owner = config.attention if part == "attn" else config.mlp
        letters = getattr(owner, hook.removeprefix("hook_").removesuffix("_mix")).mix
    elif name.endswith("hook_gate") and config.attention.gate is not None:
        letters = options[0] if config.attention.gate.shape == "vector" else options[1]
    elif name.endswith("hook_scale"):
        norm = config.readout.norm if name.startswith("ln_final") else config.norm
        letters = options[1] if isinstance(norm, ChannelLayerNorm) else options[0]
    elif "canon_d" in name:
        letters = options[0] if config.mlp.gate is None else options[1]
    wide = config.d_mlp // config.n_heads if ".mlp." in name else config.d_head
    sizes = {
        "D": config.d_model,
        "H": config.n_heads,
        "G": config.kv_heads,
        "K": config.d_head,
        "M": config.d_mlp,
        "3D": 3 * config.d_model,
        "2M": 2 * config.d_mlp,
        "N": config.residual.n if isinstance(config.residual, Hyper) else 1,
        "in": wide if name.endswith("hook_down_mix") else config.d_head,
        "out": config.d_head if name.endswith("hook_down_mix") else wide,
    }
    for path, spec, d_in, d_out in config.projections():
        if f".{path}." in name and isinstance(spec, Hdpl):
            sizes["R"] = spec.latent_width(d_in, d_out)
    return " ".join(str(sizes.get(letter, letter)) for letter in letters.split())
