"""What the arms of `papers.krom` say about the blog's claim that saturation freezes mixing, in plain sentences."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05


def direction(row: "pd.Series") -> str:
    """Where the loss moved a run's factors: towards or away from mixing, or neither, by a sign test over factors."""
    from scipy.stats import binomtest

    if binomtest(int(row["towards"]), int(row["factors"])).pvalue >= LEVEL:
        return "neither"
    return "towards" if row["towards"] > row["factors"] / 2 else "away"


def conclusion(mixing: "pd.DataFrame") -> list[str]:
    """One sentence per part of the question that the runs can answer, every number a column of `mixing`."""
    rows = mixing.assign(direction=mixing.apply(direction, axis=1), rises=mixing["swap_without_gradient"])
    adamw, fp32 = rows["optimizer"] == "adamw", rows["storage"] == "fp32"
    parts = {
        "AdamW, stored in fp32": rows[adamw & fp32], "AdamW, stored in bf16": rows[adamw & ~fp32],
        "SGD, stored in fp32": rows[~adamw & fp32],
    }  # fmt: skip
    said = [
        f"{name}: the loss moves the gaps {_ways(some)} ({_span(some['by_loss'], '+.3f')} logits beyond decay; "
        f"{_span(some['towards'], '.0f')} of {_span(some['factors'], '.0f')} factors towards mixing)."
        for name, some in parts.items()
        if len(some)
    ]
    decayed = parts["AdamW, stored in fp32"].query("decay > 0")
    for bias, some in decayed.groupby("b_res"):
        said.append(
            f"Weight decay alone would carry the swap from bias {bias:g} to {_span(some['rises'], '.4f')}; trained it "
            f"ends at {_span(some['swap'], '.4f')}."
        )
    excess = rows["stream_cosine"] - rows["shuffled_cosine"]
    said.append(
        f"Per-stream cosines, in which the blog sees the contrast in all streams, are "
        f"{_span(rows['stream_cosine'], '.3f')}; directions between shuffled labels, which hold no contrast, have "
        f"{_span(rows['shuffled_cosine'], '.3f')}, {_span(excess, '.3f')} less."
    )
    return [*said, _verdict(parts["AdamW, stored in fp32"])]


def _verdict(runs: "pd.DataFrame") -> str:
    """Saturation would leave the gaps where they are; a loss that mixes would move them up where steps can."""
    if runs.empty or len(runs) < 2 or runs["direction"].nunique() > 1 or (runs["direction"] == "neither").all():
        return "Whether the loss wants mixing where it could have it is not resolved by these runs."
    if (runs["direction"] == "away").all():
        return (
            "So with steps that do not depend on the size of the gradient, and storage that keeps them, the loss does "
            "not mix the streams: it moves their gaps away from mixing, from every bias tried. Neither saturation of "
            "the softmax nor bf16 is needed to explain streams that do not mix, at this size and number of steps."
        )
    return (
        "So with steps that do not depend on the size of the gradient, and storage that keeps them, the loss mixes "
        "the streams, from every bias tried: what keeps them apart elsewhere is storage or the size of the gradient."
    )


def _ways(runs: "pd.DataFrame") -> str:
    counts = runs["direction"].value_counts()
    words = {"away": "away from mixing", "towards": "towards mixing", "neither": "neither way"}
    return ", ".join(f"{words[k]} in {counts[k]} of {len(runs)} runs" for k in words if k in counts)


def _span(values: "pd.Series", form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"
