"""Loss, degradation and attention against α: the tables and figures of `python -m interventions.amplify`."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.amplification import Patterns
    from streamscope.interventions.sweep import Losses
    from streamscope.models.head_spec import Head
    from streamscope.models.text.shards import TokenShards
    from streamscope.models.transformer import StreamTransformer

PAPER = {
    "Dense": (1.80, 1.86, 1.98, 2.09, 2.16),
    "Kronecker-Dense": (1.84, 1.90, 2.00, 2.09, 2.14),
    "Independent-Dense": (1.87, 1.96, 2.12, 2.28, 2.38),
    "Gated (Dense)": (1.88, 1.98, 2.15, 2.30, 2.39),
}
"""DST Table 5, FTS mode, at α = 1, 2, 4, 8, 16."""
PAPER_ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
BASELINE = "alpha 1 is the baseline itself"
KEPT = "by construction, the scores of the first amplified layer keep their order"
NAN = float("nan")
UNITS = {
    **dict.fromkeys(("loss", "baseline", "delta", "ci_low", "ci_high"), "nats/token"),
    "sd": "nats/token, between documents",
    **dict.fromkeys(("percent", "percent_low", "percent_high"), "percent of the loss at α = 1"),
    **dict.fromkeys(("entropy", "entropy_low", "entropy_high"), "nats, mean over queries and heads"),
    **dict.fromkeys(("unchanged", "unchanged_low", "unchanged_high"), "share of queries with the same first key"),
    "peak": "share of attention, largest key",
    "n": "documents",
    "tokens": "tokens",
}
AREA_UNITS = {"area": "by kind, see interventions.areas", "n": "documents"}


def measure_losses(
    model: "StreamTransformer",
    shards: "TokenShards",
    alphas: Sequence[float],
    heads: "Sequence[Head] | None" = None,
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "Losses":
    """Losses of every document at each α; the baseline is the model itself."""
    from streamscope.interventions.amplification import amplified
    from streamscope.interventions.sweep import document_losses

    sweep = [amplified(model, alpha, heads) for alpha in alphas]
    return document_losses(model, shards, sweep, max_documents=max_documents, batch_size=batch_size, progress=progress)


def by_construction(heads: "Sequence[Head] | None") -> int:
    """The last layer whose first keys no α can change: the first amplified one, where scores keep their order."""
    return min((head.layer for head in heads), default=0) if heads is not None else 0


def curve(
    alphas: Sequence[float], losses: "Losses", patterns: "Patterns", heads: "Sequence[Head] | None" = None
) -> "pd.DataFrame":
    """One row per α: loss, its change in nats and percent, entropy and unchanged keys, 95 % intervals over documents.

    percent = 100 (Σ_d loss_d(α) / Σ_d loss_d(1) − 1), the degradation of DST Table 5. `unchanged` is over the layers
    after the first amplified one: up to it, the key with most attention is the same at every α, by construction.
    """
    import pandas as pd

    from streamscope.interventions.effects import holm
    from streamscope.probes.stats.estimators import ratio_of_sums
    from streamscope.probes.stats.t_tests import clustered_t
    from streamscope.probes.undefined import note

    tokens, base = losses.tokens.astype(float), losses.baseline
    rows = []
    for i, alpha in enumerate(alphas):
        y = losses.edited[i]
        effect, ratio, why = ratio_of_sums(y - base, tokens), ratio_of_sums(y, base), dict[str, str]()
        row: dict[str, Any] = {
            "alpha": float(alpha),
            "loss": float(y.sum() / tokens.sum()),
            "baseline": float(base.sum() / tokens.sum()),
            "delta": effect.mean,
            "sd": effect.sd,
            "ci_low": effect.ci_low,
            "ci_high": effect.ci_high,
            "p": float(clustered_t(y - base, tokens).p),
            "percent": 100 * (ratio.mean - 1),
            "percent_low": 100 * (ratio.ci_low - 1),
            "percent_high": 100 * (ratio.ci_high - 1),
        }
        if alpha == 1:
            empty = ("sd", "ci_low", "ci_high", "p", "percent_low", "percent_high")
            row, why = row | dict.fromkeys(empty, NAN), dict.fromkeys(empty, BASELINE)
        row |= _of_patterns(patterns, i, slice(None), slice(by_construction(heads) + 1, None), why, alpha)
        rows.append({**row, "n": effect.n, "tokens": int(tokens.sum()), "undefined": note(why)})
    return holm(pd.DataFrame(rows).assign(all=""), ("all",)).drop(columns="all")


def by_head(alphas: Sequence[float], patterns: "Patterns", heads: "Sequence[Head] | None" = None) -> "pd.DataFrame":
    """One row per α and head: entropy, peak and unchanged keys, 95 % intervals over documents."""
    import pandas as pd

    from streamscope.probes.undefined import note

    rows = []
    n_layers, n_heads = patterns.entropy.shape[1:3]
    fixed = by_construction(heads)
    for i, alpha in enumerate(alphas):
        for layer in range(n_layers):
            for head in range(n_heads):
                why: dict[str, str] = {}
                at = slice(layer, layer + 1)
                changing = at if layer > fixed else slice(0, 0)
                row: dict[str, Any] = {"alpha": float(alpha), "head": f"L{layer}H{head}", "layer": layer, "index": head}
                row |= _of_patterns(patterns, i, at, changing, why, alpha, slice(head, head + 1))
                queries = int(patterns.queries.sum())
                rows.append({**row, "n": len(patterns.queries), "queries": queries, "undefined": note(why)})
    return pd.DataFrame(rows)


def _of_patterns(
    patterns: "Patterns", i: int, layers: slice, changing: slice, why: dict[str, str], alpha: float,
    heads: slice = slice(None),
) -> dict[str, float]:  # fmt: skip
    """Means of entropy and peak over the layers, of unchanged over those where it can change; reasons go into `why`."""
    from streamscope.probes.stats.estimators import ratio_of_sums

    def estimate(sums: np.ndarray) -> Any:
        return ratio_of_sums(sums.mean((0, 1)), patterns.queries)

    entropy = estimate(patterns.entropy[i, layers, heads])
    row = {"entropy": entropy.mean, "entropy_low": entropy.ci_low, "entropy_high": entropy.ci_high}
    row["peak"] = estimate(patterns.peak[i, layers, heads]).mean
    names = ("unchanged", "unchanged_low", "unchanged_high")
    sums = patterns.unchanged[i, changing, heads]
    if sums.shape[0] == 0 or alpha == 1:
        why |= dict.fromkeys(names, BASELINE if alpha == 1 else KEPT)
        return row | dict.fromkeys(names, NAN)
    share = estimate(sums)
    return row | dict(zip(names, (share.mean, share.ci_low, share.ci_high), strict=True))


def degradation(losses: Sequence[float]) -> list[float]:
    """100 (loss / loss[0] − 1), in percent."""
    return [100 * (x / losses[0] - 1) for x in losses]


def check_alphas(alphas: Sequence[float]) -> list[float]:
    """α ascending, each once, 1 among them. Raises `InputError` for one that is not above 0, and for none."""
    from streamscope.interventions.amplification import check_alpha

    if not alphas:
        raise InputError("give at least one --alpha")
    return sorted({1.0, *map(check_alpha, alphas)})
