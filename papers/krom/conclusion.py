"""What the arms of `papers.krom` say about the blog's claims, in plain sentences that are no stronger than the tables.

Order of losses, per-stream cosines, and what freezes mixing: what keeps streams apart where the blog sees saturation,
what the loss does to the logits where they can move, and what saturation does under SGD. The units are training runs:
factors of one model share their gradients and are counted, not tested.
"""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from streamscope.papers.comparison.losses import contradictions, curves
from streamscope.papers.comparison.runs import Run
from streamscope.papers.krom.curves import sentences
from streamscope.probes.mixing import LEAST

CONTROL = "gpt2"
BUNDLED = ("canon", "kromcanon")
"""Bundled models, trained alike, whose loss curves stand beside the order of losses; gpt2 has another recipe there."""


@dataclass(frozen=True)
class Found:
    """The runs, their tables, and who made them."""

    runs: list[Run]
    about: dict[str, Any]
    losses: pd.DataFrame
    curves: pd.DataFrame
    """Every evaluation of the runs; of comparisons from before it was kept, empty, as `gaps`."""
    gaps: pd.DataFrame
    online: pd.DataFrame
    """The loss of the training text at the end of the runs; empty as `curves`, as `online_gaps`."""
    online_gaps: pd.DataFrame
    comparison: pd.DataFrame
    order: pd.DataFrame
    factors: pd.DataFrame
    mixing: pd.DataFrame
    ways: pd.DataFrame
    """Mean static swap over the steps; of comparisons from before it was kept, empty."""
    topologies: pd.DataFrame
    """Runs of several streams that do not mix by Kronecker factors; of comparisons from before there were, empty."""
    bundled: pd.DataFrame
    """Loss curves of the bundled models."""


RECIPE = ["preset", "b_res", "optimizer", "lr", "decay", "steps"]
MOVED = 0.1
"""Logits: a mean gap that lies less beyond decay than this, a tenth of the odds of a swap, has not moved."""


def cosines(mixing: pd.DataFrame, dose: str) -> str:
    """What of the per-stream cosines there is without any contrast; `dose` is how much text the runs saw."""
    less = mixing["stream_cosine"] - mixing["shuffled_cosine"]
    return (
        f"**Per-stream cosines**, in which the blog sees one contrast in all streams, are "
        f"{_span(mixing['stream_cosine'], '.3f')} here ({_runs(mixing)}, {dose}). Directions between *shuffled* "
        f"labels, which hold no contrast, have {_span(mixing['shuffled_cosine'], '.3f')}; run by run the difference is "
        f"{_span(less, '+.3f')}. The cosine says how alike the streams are, not that they hold the contrast; the "
        "blog's control are random directions (0 ± .044)."
    )


def of_losses(found: Found) -> list[str]:
    """The blog's order of losses: the verdict of every pair, the seeds against it, and the curves, those of the bundled
    models where the runs' own were not kept."""

    if found.order.empty:
        return []
    pairs = "; ".join(f"{r.claim}: {r.direction.split(' (')[0]}" for r in found.order.itertuples())
    said = [f"The blog's order of losses, pair by pair: {pairs}.", *contradictions(found.order, found.losses)]
    if len(found.gaps):
        return [*said, *sentences(found.gaps, found.online_gaps)]
    if crossing := curves(found.bundled, *BUNDLED):
        said.append(f"{crossing} The blog has {BUNDLED[1]} below {BUNDLED[0]}.")
    return said


def conclusion(mixing: pd.DataFrame) -> list[str]:
    """One sentence per part of the question that the runs can answer, every number a column of `mixing`."""
    adamw, fp32 = mixing["optimizer"] == "adamw", mixing["storage"] == "fp32"
    said = [*_storage(mixing[adamw])]
    if len(moving := mixing[adamw & fp32]):
        said.append(_moved("AdamW, stored in fp32", moving))
        said.append(_in_use(moving))
    if len(sgd := mixing[~adamw & fp32]):
        said.append(
            f"{_moved('SGD, whose step is proportional to the gradient', sgd)} Rates {_span(sgd['lr'], 'g')}, biases "
            f"{_span(sgd['b_res'], 'g')}."
        )
    return [*said, _verdict(moving), *_saturation(sgd)]


def _storage(adamw: pd.DataFrame) -> list[str]:
    """One sentence per recipe that ran in fp32 and in bf16, with what it did where bf16 was rounded stochastically."""
    said = []
    for recipe, runs in adamw.groupby(RECIPE, sort=False):
        every = {name: runs[runs["storage"] == name] for name in ("fp32", "bf16", "bf16, stochastic")}
        parts = {name: part for name, part in every.items() if len(part)}
        if not {"fp32", "bf16"} <= set(parts):
            continue
        preset, bias, _, _, decay, _ = recipe
        ends = "; ".join(
            f"stored in {name} it ends at {_span(part['swap'], '.4f')} where decay and storage alone give "
            f"{_span(part['swap_without_gradient'], '.4f')} ({_runs(part)}; {_span(part['n_mix'], '.0f')} of "
            f"{_span(part['factors'], '.0f')} factors mix beyond decay alone)"
            for name, part in parts.items()
        )
        said.append(
            f"{preset} from bias {bias:g}, AdamW, decay {decay:g}: the mean swap of the factors that can act starts at "
            f"{_start(bias)}; {ends}."
        )
    return said


def _moved(name: str, runs: pd.DataFrame) -> str:
    away, near = int((runs["by_loss"] < -MOVED).sum()), int((runs["by_loss"] > MOVED).sum())
    recipes = len(runs.groupby([*RECIPE, "storage"]))
    return (
        f"{name}: against what decay and storage alone give, the mean static gap ends further from mixing in {away} of "
        f"{_runs(runs)}, closer in {near}, and within {MOVED:g} logits in {len(runs) - away - near} "
        f"({_span(runs['by_loss'], '+.3f')} logits; {recipes} recipe{'s' * (recipes > 1)}; counted, not tested). "
        f"{_span(runs['towards'], '.0f')} of {_span(runs['factors'], '.0f')} factors end closer, the furthest by "
        f"{_span(runs['by_loss_max'], '+.3f')}."
    )


def _in_use(runs: pd.DataFrame) -> str:

    more = runs["swap_dynamic"] - runs["swap_without_gradient"]
    return (
        f"With the dynamic term, the mean swap in use exceeds what decay alone gives by {LEAST:g} or more in "
        f"{int((more >= LEAST).sum())} of {_runs(runs)} (by any amount in {int((more > 0).sum())}; the swap in use is "
        f"{_span(runs['swap_dynamic'], '.4f')}, the difference {_span(more, '+.4f')})."
    )


def _verdict(runs: pd.DataFrame) -> str:
    """What fp32 AdamW runs say of the claim that streams would mix if the softmax were not saturated."""
    biases = runs["b_res"].nunique() if len(runs) else 0
    one_side = len(runs) and ((runs["by_loss"] < -MOVED).all() or (runs["by_loss"] > MOVED).all())
    if biases < 2 or not one_side or runs.groupby("b_res").size().min() < 2:
        return "Whether the loss would mix the streams where it can is not resolved by these runs."
    where = " and ".join(f"{b:g}" for b in sorted(runs["b_res"].unique()))
    start = f"From biases {where} alike, and with logits that do move, the mean static logit ends"
    if (runs["by_loss"] < 0).all():
        return (
            f"{start} further from mixing than decay alone takes it, in all {_runs(runs)}: they show no general "
            "pull to mix that saturation at −8 would hide. Not shown: that the mean of the gradient points away (AdamW "
            "also drifts under skewed noise), that no factor is pulled to mix, other recipes, sizes, biases and "
            "numbers of steps; the few seeds of each recipe are too few for a test."
        )
    return (
        f"{start} closer to mixing than decay alone takes it, in all {_runs(runs)}: saturation at −8 does not keep "
        "these logits where they are. What keeps streams apart elsewhere is not shown; the few seeds of each recipe "
        "are too few for a test."
    )


def _saturation(sgd: pd.DataFrame) -> list[str]:
    """What SGD, whose step has p(1−p) as a factor, says of the claim that saturation holds logits at −8: a sentence per
    recipe, from −8 against a milder bias. How far a run's gaps went is their root mean square over factors: in the mean
    those that go either way cancel."""
    said, alone = [], []
    for (preset, lr, decay, _), runs in sgd.groupby(["preset", "lr", "decay", "steps"], sort=False):
        spread = runs["by_loss_sd"] ** 2 * (runs["factors"] - 1) / runs["factors"]
        went = (runs["by_loss"] ** 2 + spread) ** 0.5
        deep, mild = went[runs["b_res"] == -8], went[runs["b_res"] > -8]
        if min(len(deep), len(mild)) < 2:
            alone.append(f"{lr:g}")
            continue
        start = f"SGD at the rate {lr:g}, decay {decay:g}, {preset}: whether saturation holds the logits at −8"
        biases = " and ".join(f"{b:g}" for b in sorted(runs.loc[mild.index, "b_res"].unique()))
        ways = (
            f"gaps end {_span(deep, '.3f')} logits from where decay and storage leave them in {_runs(deep)} from −8, "
            f"{_span(mild, '.3f')} in {_runs(mild)} from {biases} (root mean square over factors; counted, not tested)"
        )
        far = [bool((one > MOVED).all()) for one in (deep, mild)]
        near = [bool((one <= MOVED).all()) for one in (deep, mild)]
        if near[0] and far[1]:
            said.append(f"{start}: {ways}. At this rate it does, as the blog says; AdamW is another matter.")
        elif all(far):
            said.append(f"{start}: {ways}. At this rate it does not.")
        else:
            said.append(f"{start} is not resolved by these runs: {ways}.")
    if alone:
        said.append(
            f"Whether saturation holds the logits at −8 under SGD is not resolved at rates {', '.join(alone)}: it "
            "needs two runs from −8 and two from a milder bias in one recipe."
        )
    return said


def _start(bias: float) -> str:

    return f"{1 / (1 + math.exp(-bias)):.4f}"


def _runs(part: pd.DataFrame | pd.Series) -> str:
    return f"{len(part)} run{'s' * (len(part) > 1)}"


def _span(values: pd.Series, form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"
