"""The claims of paper DST that are judged here, and the losses that it prints, from the ledger.

Tables 1 and 4 are of token-factor models, as the presets dst-* are; Tables 5 and 8 and Figs. 2 and 4 of frozen-token
ones, the arms +frozen_token, whose token stream attention leaves alone (residual=frozen_token). The gated row is the
dense one with attention.gate=gate. Table 3 names no mode; its vocabulary and epochs are those of Table 1.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from streamscope.interventions.amplify.measure import AXES
from streamscope.papers.comparison.printed import Bound, Order, claims_to_judge, printed

PAPER_ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
CONTROL = "dst-dense"
IND, FULL_IND = "dst-ind", "dst-full-ind"
FROZEN, SINGLE = "+frozen_token", "+single"
TABLE1 = {f"dst-{name}": printed(f"dst-t1-loss-{name}") for name in ("dense", "kron", "ind", "full-ind")}
TABLE8 = {f"{preset}{FROZEN}": printed(preset.replace("dst-", "dst-t8-loss-")) for preset in TABLE1}
"""The numbers of Table 1, of frozen-token models."""
MODES = {f"dst-kron{SINGLE}": "single", "dst-kron": "token-factor", f"dst-kron{FROZEN}": "frozen"}
"""Arms of Table 2; dst-kron is token-factor."""
TABLE4 = {"x_t → 0": "x-t-zero", "x_e → 0": "x-e-zero", "x_t → random vocabulary": "x-t-random"}
"""Definition -> its row in the ids of the ledger."""
TABLE4_PRESET = "dst-kron"
TABLE5 = {
    arm: tuple(printed(f"dst-t5-loss-{name}-a{alpha:g}") for alpha in PAPER_ALPHAS)
    for arm, name in (
        (f"dst-dense{FROZEN}", "dense"),
        (f"dst-kron{FROZEN}", "kron"),
        (f"dst-ind{FROZEN}", "ind"),
        (f"dst-dense+gate{FROZEN}", "gated"),
    )
}
"""Losses at the paper's α."""
STRAIGHT = ("linear", "log2")
"""Axes over which a curve may be straight, two readings of one claim: the paper does not say which is meant. Over α
itself its own Table 5 is not: r² .83. The limit of r², .95, is ours: a curve straight over one of the axes has .87
over the other."""
LAYER = 3
"""Of Fig. 4."""
PLACES = ("everywhere", "head")
"""Where a stream can be taken away; the paper does not say where it was."""
EACH, TWO_STREAMS = "each", "each of two streams"
"""Models of which compared.csv says a claim."""


def bounds(presets: Sequence[str], dual: Iterable[str], alphas: Iterable[float] = PAPER_ALPHAS) -> list[Bound]:
    """The claims about one model, of every preset; those of streams, at either place, of the presets that have two;
    that a curve is straight only over the paper's α, and of its model.

    Of a model in another mode than the paper's they are confounded, and show the other mode too (`factors.MODES`).
    16 % and 27 % are printed without decimals: the paper's own largest is 27.3 %. 2 and 3 tokens are ln 2 and ln 3.
    """
    every = [claim for claim in claims_to_judge("dst") if isinstance(claim, Bound)]
    same = tuple(sorted(alphas)) == PAPER_ALPHAS
    found = [c for c in every if c.preset in presets and (same or not c.quantity.startswith("straight"))]
    for which, models in ((TWO_STREAMS, dual), (EACH, presets)):
        found += [claim._replace(preset=preset) for preset in models for claim in every if claim.preset == which]
    return found


def orders(alphas: Iterable[float] = PAPER_ALPHAS) -> list[Order]:
    """The claims about two presets; of areas only over the paper's α."""
    same = tuple(sorted(alphas)) == PAPER_ALPHAS
    every = [claim for claim in claims_to_judge("dst") if isinstance(claim, Order)]
    return [order for order in every if same or not order.quantity.startswith("area.")]


def printed_value(preset: str, quantity: str, where: str = "") -> float:
    """The printed value of a quantity of `papers.dst.measure`, NaN where there is none. Of areas: as printed.

    `where` says of which table a loss is, for they have different ones for one model; by default of Table 1, and of a
    frozen-token model of Table 8.
    """
    if where == "Table 2":
        return printed(f"dst-t2-loss-{MODES[preset]}") if preset in MODES else float("nan")
    if where == "Table 3":
        return printed(f"dst-t3-{quantity}-{preset.removeprefix('dst-kron+').removesuffix('heads')}")
    if quantity == "loss":
        return {**TABLE1, **TABLE8}.get(preset, float("nan"))
    if quantity == "degradation.16" and preset in TABLE5:
        return TABLE5[preset][-1] / TABLE5[preset][0] - 1
    name = preset.removesuffix(FROZEN)
    of_areas = quantity.startswith("area.") and preset in TABLE5 and name in (CONTROL, "dst-kron", IND)
    return printed(name.replace("dst-", "dst-s42-area-")) if of_areas else float("nan")


def straightness(losses: Iterable[float], alphas: Iterable[float] = PAPER_ALPHAS, axis: str = "linear") -> float:
    """r² of the line through losses over α on an axis of `interventions.amplify.measure`."""
    return float(np.corrcoef(AXES[axis](np.asarray(list(alphas))), np.asarray(list(losses)))[0, 1] ** 2)
