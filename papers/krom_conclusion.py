"""What the arms of `papers.krom` say about the blog's claim that saturation freezes mixing, in plain sentences.

Two questions: what keeps streams apart in the blog's recipe, and what the loss does to the logits where they can move.
The units are training runs: factors of one model share their gradients and are counted, not tested.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

RECIPE = ["preset", "b_res", "optimizer", "lr", "decay", "steps"]


def conclusion(mixing: "pd.DataFrame") -> list[str]:
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
    less = mixing["stream_cosine"] - mixing["shuffled_cosine"]
    said.append(
        f"Per-stream cosines, in which the blog sees the contrast in all streams, are "
        f"{_span(mixing['stream_cosine'], '.3f')}; directions between shuffled labels, which hold no contrast, have "
        f"{_span(mixing['shuffled_cosine'], '.3f')}, {_span(less, '.3f')} less."
    )
    return [*said, _verdict(moving)]


def _storage(adamw: "pd.DataFrame") -> list[str]:
    """One sentence per recipe that ran in both storages."""
    said = []
    for recipe, runs in adamw.groupby(RECIPE, sort=False):
        parts = {name: runs[runs["storage"] == name] for name in ("fp32", "bf16")}
        if any(part.empty for part in parts.values()):
            continue
        preset, bias, _, _, decay, _ = recipe
        ends = "; ".join(
            f"stored in {name} it ends at {_span(part['swap'], '.4f')} where decay and storage alone give "
            f"{_span(part['swap_without_gradient'], '.4f')} ({_runs(part)}; the monitor says "
            f"{' and '.join(sorted(set(part['streams'])))})"
            for name, part in parts.items()
        )
        said.append(f"{preset} from bias {bias:g}, AdamW, decay {decay:g}: the swap starts at {_start(bias)}; {ends}.")
    return said


def _moved(name: str, runs: "pd.DataFrame") -> str:
    away = int((runs["by_loss"] < 0).sum())
    return (
        f"{name}: beyond decay the mean static gap moves away from mixing in {away} of {len(runs)} runs "
        f"({_span(runs['by_loss'], '+.3f')} logits); {_span(runs['towards'], '.0f')} of "
        f"{_span(runs['factors'], '.0f')} factors go towards it, the furthest by {_span(runs['by_loss_max'], '+.3f')}."
    )


def _in_use(runs: "pd.DataFrame") -> str:
    above = int((runs["swap_dynamic"] > runs["swap_without_gradient"]).sum())
    return (
        f"With the dynamic term, the mean swap in use lies above what decay alone gives in {above} of {len(runs)} of "
        f"these runs ({_span(runs['swap_dynamic'], '.4f')}): few factors that mix more can outweigh many that mix less."
    )


def _verdict(runs: "pd.DataFrame") -> str:
    """What fp32 AdamW runs say of the claim that streams would mix if the softmax were not saturated."""
    biases = runs["b_res"].nunique() if len(runs) else 0
    signs = set((runs["by_loss"] < 0).tolist()) if len(runs) else set()
    if biases < 2 or len(signs) != 1 or runs.groupby("b_res").size().min() < 2:
        return "Whether the loss would mix the streams where it can is not resolved by these runs."
    where = " and ".join(f"{b:g}" for b in sorted(runs["b_res"].unique()))
    if signs == {True}:
        return (
            f"So from biases {where} alike, and with logits that do move, the mean static logit moves away from "
            "mixing: saturation at −8 does not hide a general pull to mix, in these runs. Not shown: that the mean of "
            "the gradient points there (AdamW also drifts under skewed noise), other sizes, biases, numbers of steps."
        )
    return (
        f"So from biases {where} alike, and with logits that do move, the mean static logit moves towards mixing: what "
        "keeps streams apart elsewhere is storage, or the size of the gradient."
    )


def _start(bias: float) -> str:
    import math

    return f"{1 / (1 + math.exp(-bias)):.4f}"


def _runs(part: "pd.DataFrame") -> str:
    return f"{len(part)} run{'s' * (len(part) > 1)}"


def _span(values: "pd.Series", form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"
