"""The feature columns of PLS as data: what each is, where it comes from, and in which order (PLS App. B.7, C.3).

    columns(6, 6, FeatureOptions(tier="structural"))       163 columns, 167 with position, 455 with the top 5

Ã_h[q, k] = ḡ_h[q] A_h[q, k] is attention times the head's gate (1 where there is none), over keys k < q; L layers, H
heads. "stable" columns hold the values of layer s = min(k*, L−1) and 0 in all other layers, "final" columns those of
layer L−1 and 0 in all others: the latter are `constant`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin

from streamscope.models.bounds import Count, Share, check
from streamscope.models.errors import InputError, unknown
from streamscope.models.head_spec import Head, parse_heads

Tier = Literal["core", "structural", "structural+position", "topk"]
WHERE = ("stable", "final")
HEADS_OF = {"anchor": "H2-3", "entity": "H4-5"}
"""The paper's heads (PLS B.4.1), in the last layer."""


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Which features, and which reading of what the paper leaves open (SPEC §7.4)."""

    tier: Tier = "structural"
    """core: 5 summaries; structural: 3L+1+4LH; +position: 4 more; topk: largest k weights in place of the peak."""
    k: Count = 5
    """Weights per head of tier topk."""
    kstar: Literal["author", "strict"] = "author"
    """k* of a token that only the last layer gets right: L, as in the author's tables, or L−1, as in the formula."""
    target: Literal["final", "truth"] = "final"
    """The token whose probability is followed: the final prediction, or the token that comes."""
    traj_prob: Literal["zeroed", "raw"] = "zeroed"
    """zeroed: 0 where a layer predicts another token, the margin is to the second-highest probability; raw: never 0,
    the margin is to the best other token."""
    kappa_target: Literal["truth", "final"] = "truth"
    """The token that κ counts."""
    logits_row: Literal["query", "next"] = "query"
    """Logits at the query t_q, or one position later, as in the author's code."""
    theta_entropy: Share = 0.1
    """Entropy is 0 where the peak of Ã is below this."""
    theta_gate: Share = 0.1
    """The k largest weights are 0 where the gate ḡ is below this."""
    gate_reduce: Literal["mean", "norm"] = "mean"
    """ḡ of a vector gate: mean, or root mean square."""
    window: Count = 5
    """Keys before the query that local_mass sums."""
    anchor_heads: tuple[str, ...] = ()
    """Heads of anchor_mass; default: heads 2 and 3 of the last layer."""
    entity_heads: tuple[str, ...] = ()
    """Heads of entity_mass; default: heads 4 and 5 of the last layer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            known = get_args(field.type) if get_origin(field.type) is Literal else None
            if known and getattr(self, field.name) not in known:
                raise unknown(field.name, str(getattr(self, field.name)), list(known))
        check(self)

    def heads(self, group: str, n_layers: int, n_heads: int) -> list[Head]:
        """The heads of anchor_mass or entity_mass; `InputError` where the default ones do not exist."""
        specs = getattr(self, f"{group}_heads") or (f"L{n_layers - 1}.{HEADS_OF[group]}",)
        try:
            return parse_heads(specs, n_layers, n_heads)
        except InputError as error:
            raise InputError(f"{error}; say which heads {group}_mass sums: --{group}-heads L1.H0") from None


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature. `None`: not applicable."""

    name: str
    component: str
    layer: int | None = None
    head: int | None = None
    rank: int | None = None
    """Place among a head's weights, from 1."""
    unit: str
    formula: str
    source: str
    constant: bool = False
    """Zero by construction."""


def columns(n_layers: int, n_heads: int, options: FeatureOptions) -> tuple[Column, ...]:
    """The columns of a tier in order: 5, 3L+1+4LH, 4 more, 3L+1+2LH(k+1)+4.

    Raises `InputError` for heads that the model does not have, also where the tier uses none.
    """
    for group in HEADS_OF:
        if getattr(options, f"{group}_heads"):
            options.heads(group, n_layers, n_heads)
    if options.tier == "core":
        return tuple(_core(n_layers, n_heads, options))
    found = [*_trajectory(n_layers, options), *_stability(n_layers, options)]
    if options.tier == "topk":
        found += _per_head(n_layers, n_heads, "topk", options.k)
    else:
        found += _per_head(n_layers, n_heads, "head_act")
    found += _per_head(n_layers, n_heads, "head_ent")
    return tuple(found if options.tier == "structural" else [*found, *_position(n_layers, options)])


def _core(n_layers: int, n_heads: int, options: FeatureOptions) -> Iterator[Column]:
    source = "PLS B.4.1"
    yield Column(name="processing_depth", component="core", unit="layers", formula="k*", source=source)
    yield Column(
        name="confidence", component="core", layer=n_layers - 1, unit="probability", formula="p^(L−1)(ŷ)", source=source
    )
    for group in HEADS_OF:
        heads = ", ".join(head.label for head in options.heads(group, n_layers, n_heads))
        formula = f"Σ_h max_k Ã_h[q, k], h in {heads}"
        yield Column(name=f"{group}_mass", component="core", unit="attention", formula=formula, source=source)
    yield Column(name="context_span", component="core", layer=n_layers - 1, unit="tokens", formula=SPAN, source=source)


SPAN = "Σ_h Σ_k Ã_h[q, k] (q − k) / Σ_h Σ_k Ã_h[q, k]; 0 where there is no key"


def _trajectory(n_layers: int, options: FeatureOptions) -> Iterator[Column]:
    y = "ŷ" if options.target == "final" else "y"
    zeroed = options.traj_prob == "zeroed"
    p = f"p^(ℓ)({y})" + (f" if argmax p^(ℓ) = {y} else 0" if zeroed else "")
    formulas = {
        "prob": p,
        "margin": f"traj_prob − {'second-highest p^(ℓ)' if zeroed else f'max p^(ℓ) of tokens other than {y}'}",
        "drop": "max(0, traj_prob of layer ℓ−1 − traj_prob)",
    }
    for kind, formula in formulas.items():
        for layer in range(kind == "drop", n_layers):
            yield Column(
                name=f"traj_{kind}_L{layer}", component="trajectory", layer=layer, unit="probability",
                formula=formula, source="PLS B.5.1",
            )  # fmt: skip


def _stability(n_layers: int, options: FeatureOptions) -> Iterator[Column]:
    k_star = "min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k"
    if options.kstar == "author":
        k_star += "; L where that is L−1"
    y = "y" if options.kappa_target == "truth" else "ŷ"
    yield Column(name="k_star", component="stability", unit="layers", formula=k_star, source="PLS B.5.2")
    run = f"longest run of layers with argmax p^(ℓ) = {y}"
    yield Column(name="kappa", component="stability", unit="layers", formula=run, source="PLS B.5.2")


def _per_head(n_layers: int, n_heads: int, kind: str, k: int = 0) -> Iterator[Column]:
    """Columns of every head, at the stable layer, then at the final one."""
    component, unit, formula, source = {
        "head_act": ("head activation", "attention", "max_k Ã_h[q, k]", "PLS B.5.3"),
        "topk": ("head top-k", "attention", "r-th largest Ã_h[q, k], r = rank; 0 where ḡ_h < θ_gate", "PLS C.2"),
        "head_ent": (
            "head entropy", "nats", "−Σ_k a ln a, a = Ã_h[q, k] / Σ_j Ã_h[q, j]; 0 where max_k Ã_h < θ_entropy",
            "PLS B.5.4",
        ),
    }[kind]  # fmt: skip
    for where in WHERE:
        for layer in range(n_layers):
            for head in range(n_heads):
                for rank in range(1, k + 1) if k else (None,):
                    yield Column(
                        name=f"{kind}_{where}_L{layer}H{head}" + (f"_r{rank}" if rank else ""),
                        component=component, layer=layer, head=head, rank=rank, unit=unit, formula=formula,
                        source=source, constant=where == "final" and layer < n_layers - 1,
                    )  # fmt: skip


def _position(n_layers: int, options: FeatureOptions) -> Iterator[Column]:
    mass = f"Σ_h Σ_k Ã_h[q, k], q−{options.window} ≤ k < q"
    for kind, unit, formula in (("attn_span", "tokens", SPAN), ("local_mass", "attention", mass)):
        for where in WHERE:
            yield Column(
                name=f"{kind}_{where}", component="position", layer=n_layers - 1 if where == "final" else None,
                unit=unit, formula=formula, source="PLS B.5.5",
            )  # fmt: skip
