"""What paper DST prints of losses, streams and amplification, what it prints twice, and the claims it makes.

Tables 1 and 4 are of token-factor models, as the presets dst-* are; Tables 5 and 8 and Figs. 2 and 4 of frozen-token
ones, the arms +frozen_token, whose token stream attention leaves alone (residual=frozen_token). The gated row is the
dense one with attention.gate=gate. Table 3 names no mode; its vocabulary and epochs are those of Table 1.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from streamscope.interventions.amplify.areas import AXES, trapezoid
from streamscope.papers.comparison.losses import Printed
from streamscope.papers.comparison.printed import Bound, Order

PAPER_ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
CONTROL = "dst-dense"
IND, FULL_IND = "dst-ind", "dst-full-ind"
FROZEN, SINGLE = "+frozen_token", "+single"
TABLE1 = {
    "dst-dense": Printed(2.42, "Table 1"),
    "dst-kron": Printed(2.48, "Table 1"),
    "dst-ind": Printed(2.50, "Table 1"),
    "dst-full-ind": Printed(2.62, "Table 1"),
}
TABLE8 = {f"{preset}{FROZEN}": Printed(loss.value, "Table 8") for preset, loss in TABLE1.items()}
"""The numbers of Table 1, of frozen-token models."""
TABLE2 = {"dst-kron+single": 2.58, "dst-kron": 2.67, "dst-kron+frozen_token": 2.66}
"""Losses of the modes; dst-kron is token-factor."""
TABLE3 = {
    "dst-kron+4heads": {"loss": 2.86, "specialization": 0.42, "entropy": 3.2},
    "dst-kron+8heads": {"loss": 2.82, "specialization": 0.64, "entropy": 2.6},
    "dst-kron+16heads": {"loss": 2.80, "specialization": 0.85, "entropy": 2.1},
}
"""Heads at one width; 6 and 12, which it has as well, do not divide its width of 512."""
TABLE4 = {"x_t → 0": (3.89, "+36%"), "x_e → 0": (3.12, "+9.5%"), "x_t → random vocabulary": (3.65, "+28%")}
"""Definition -> loss and change as printed; the baseline is 2.85."""
TABLE4_PRESET = "dst-kron"
TABLE5 = {
    f"dst-dense{FROZEN}": (1.80, 1.86, 1.98, 2.09, 2.16),
    f"dst-kron{FROZEN}": (1.84, 1.90, 2.00, 2.09, 2.14),
    f"dst-ind{FROZEN}": (1.87, 1.96, 2.12, 2.28, 2.38),
    f"dst-dense+gate{FROZEN}": (1.88, 1.98, 2.15, 2.30, 2.39),
}
"""Losses at α = 1, 2, 4, 8, 16."""
AREAS = {f"dst-dense{FROZEN}": 99.8, f"dst-kron{FROZEN}": 97.2, f"dst-ind{FROZEN}": 107.4}
"""§4.2, "area under the loss curve from α=1 to α=16"."""
RANDOM_TEXT = "degrades performance more than zeroing it (28% versus 36%)"
ROBUST = "bounded degradation ranging from 16% to 27%"
STREAMS = "removing the token stream causes severe degradation (36%), while removing the context stream has moderate"
MAJORITY = "one token receives the majority of attention weight"
DOMINATES = "one token dominates each query position"
FFN = "FFN mixing contributes more to performance than attention mixing"
UNIFORM = "attention spreads across multiple tokens with relatively uniform weights"
CONCENTRATE = "patterns begin to concentrate on specific positions"
FOCUSED = "attention becomes highly focused"
FEW = "attention typically spreads across 2-3 tokens per position"
"""As ln 2 and ln 3 nats of entropy."""
NEAR_LINEAR = "Kronecker mixing maintains near-linear growth in loss"
STRAIGHT = ("linear", "log2")
"""Axes over which a curve may be straight; the paper says of neither that it is meant."""
STRAIGHT_FROM = "0.95"
"""r² of a nearly straight curve, ours. A curve straight over one of the axes has .87 over the other."""
LAYER = 3
"""Of Fig. 4."""
PLACES = ("everywhere", "head")
"""Where a stream can be taken away; the paper does not say where it was."""


def bounds(presets: Sequence[str], dual: Iterable[str], alphas: Iterable[float] = PAPER_ALPHAS) -> list[Bound]:
    """The claims about one model, of every preset; those of streams, at either place, of the presets that have two;
    that a curve is straight only over the paper's α, and of its model.

    Of a model in another mode than the paper's they are confounded, and show the other mode beside (`factors.MODES`).
    16 % and 27 % are printed without decimals: the paper's own largest is 27.3 %.
    """
    found = []
    if (kron := f"{TABLE4_PRESET}{FROZEN}") in presets and tuple(sorted(alphas)) == PAPER_ALPHAS:
        found += [
            Bound(f"straight.{axis}", kron, "above", STRAIGHT_FROM, "§4.2, Fig. 2", NEAR_LINEAR) for axis in STRAIGHT
        ]
    if FULL_IND in presets:
        found.append(Bound("cost.ffn", FULL_IND, "above", "0", "§3.2", FFN))
    for preset in dual:
        for place in PLACES:
            found += [
                Bound(f"gap.zero.{place}", preset, "above", "0", "Table 4, §4.1", STREAMS),
                Bound(f"gap.random.{place}", preset, "above", "0", "§4.1", RANDOM_TEXT),
            ]
    for preset in presets:
        found += [
            Bound("degradation.16", preset, "above", "15.5%", "§4.2", ROBUST),
            Bound("degradation.16", preset, "below", "27.5%", "§4.2", ROBUST),
            Bound("peak.16", preset, "above", "0.5", "§4.2", MAJORITY),
            Bound(f"peak.L{LAYER}.1", preset, "below", "0.5", "§4.4, Fig. 4", UNIFORM),
            Bound(f"peak.L{LAYER}.4", preset, "above", "0.5", "§4.4, Fig. 4", CONCENTRATE),
            Bound(f"peak.L{LAYER}.8", preset, "above", "0.5", "§4.4, Fig. 4", FOCUSED),
            Bound(f"peak.L{LAYER}.16", preset, "above", "0.5", "§4.4, Fig. 4", DOMINATES),
            Bound("spread.1", preset, "above", "0.693", "§4.2", FEW),
            Bound("spread.1", preset, "below", "1.099", "§4.2", FEW),
        ]
    return found


def orders(alphas: Iterable[float]) -> list[Order]:
    """The claims about two presets; of areas only over the paper's α."""
    same = tuple(sorted(alphas)) == PAPER_ALPHAS
    return [order for order in ORDERS if same or not order.quantity.startswith("area.")]


ORDERS: tuple[Order, ...] = (
    Order("loss", "dst-kron", "dst-dense", "Table 1"),
    Order("loss", "dst-ind", "dst-kron", "Table 1"),
    Order("loss", "dst-full-ind", "dst-ind", "Table 1"),
    Order("loss", f"dst-kron{FROZEN}", f"dst-dense{FROZEN}", "Table 8"),
    Order("loss", f"dst-ind{FROZEN}", f"dst-kron{FROZEN}", "Table 8"),
    Order("loss", f"dst-full-ind{FROZEN}", f"dst-ind{FROZEN}", "Table 8"),
    Order("loss", "dst-kron", "dst-kron+single", "Table 2"),
    Order("loss", "dst-kron+frozen_token", "dst-kron+single", "Table 2"),
    Order("loss", "dst-kron", "dst-kron+frozen_token", "Table 2"),
    Order("loss", "dst-kron+4heads", "dst-kron+16heads", "Table 3"),
    Order("loss", "dst-kron+4heads", "dst-kron+8heads", "Table 3"),
    Order("specialization", "dst-kron+16heads", "dst-kron+4heads", "Table 3", 0.05),
    Order("specialization", "dst-kron+8heads", "dst-kron+4heads", "Table 3", 0.05),
    Order("entropy", "dst-kron+4heads", "dst-kron+16heads", "Table 3"),
    Order("degradation.16", f"dst-dense{FROZEN}", f"dst-kron{FROZEN}", "Table 5"),
    Order("degradation.16", f"dst-ind{FROZEN}", f"dst-dense{FROZEN}", "Table 5"),
    Order("degradation.16", f"dst-ind{FROZEN}", f"dst-kron{FROZEN}", "Table 5"),
    Order("degradation.16", f"dst-dense+gate{FROZEN}", f"dst-dense{FROZEN}", "Table 5"),
    *(
        Order(f"area.{kind}.linear", f"{more}{FROZEN}", f"dst-kron{FROZEN}", "§4.2")
        for kind in ("raw", "excess", "relative")
        for more in ("dst-dense", "dst-ind")
    ),
)


def printed(preset: str, quantity: str, where: str = "") -> float:
    """The printed value of a quantity of `papers.dst.measure`, NaN where there is none. Of areas: as printed.

    `where` says of which table a loss is, for they have different ones for one model; by default of Table 1, and of a
    frozen-token model of Table 8.
    """
    if where == "Table 2":
        return TABLE2.get(preset, float("nan"))
    if where == "Table 3":
        return TABLE3.get(preset, {}).get(quantity, float("nan"))
    if quantity == "loss":
        return {**TABLE1, **TABLE8}[preset].value if preset in {**TABLE1, **TABLE8} else float("nan")
    if quantity == "degradation.16" and preset in TABLE5:
        return TABLE5[preset][-1] / TABLE5[preset][0] - 1
    return AREAS.get(preset, float("nan")) if quantity.startswith("area.") else float("nan")


def straightness(losses: Iterable[float], alphas: Iterable[float] = PAPER_ALPHAS, axis: str = "linear") -> float:
    """r² of the line through losses over α on an axis of `interventions.amplify.areas`."""
    return float(np.corrcoef(AXES[axis](np.asarray(list(alphas))), np.asarray(list(losses)))[0, 1] ** 2)


def degradation(losses: Sequence[float]) -> list[float]:
    """100 (loss / loss[0] − 1), in percent."""
    return [100 * (x / losses[0] - 1) for x in losses]


def area(losses: Iterable[float], kind: str, axis: str) -> float:
    """Area under printed losses at α = 1, 2, 4, 8, 16 in a reading of `interventions.amplify.areas`."""
    y, a = np.asarray(list(losses)), np.asarray(PAPER_ALPHAS)
    values = {"raw": y, "excess": y - y[0], "relative": 100 * (y / y[0] - 1), "perplexity": np.exp(y)}
    return float(a @ y if kind == "weighted" else trapezoid(AXES[axis](a)) @ values[kind])
