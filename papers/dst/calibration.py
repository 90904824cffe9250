"""Split the cost of sharpened attention into over-confidence and changed predictions (DST §5.1).

    python -m papers.dst.calibration runs/dst-kron-frozen-* --out results/dst_calibration
    python -m papers.dst.calibration runs/dst-kron-frozen-* --alpha 8 16 --documents 50
    python -m papers.dst.calibration --tables results/dst_calibration --out results/dst_calibration

The paper: degradation "represents a change in calibration rather than computational collapse", and stems "from
over-confidence in predictions rather than failure to identify relevant tokens". One number mends over-confidence:
logits divided by a temperature. Per run, over validation documents, with all heads' scores times α:

    sharp.α        L(α) − L(1), nats per token
    recovered.α    the share of it that a hotter output gives back: 1 − (L*(α) − L*(1)) / (L(α) − L(1)), L* the loss at
                   the temperature that is best on the other half of the documents; at α none that is cooler than at 1
    hotter.α       the best temperature of all over the one at α = 1, mean over the halves; over 1: over-confident
                   both undefined where the best is the lowest or the highest that is tried, .5 and 4
    kept.α         share of tokens of which the most probable word is right, over that share at α = 1

Units are training seeds. Above one half, over-confidence is more of the cost than all else; .9 of the right words kept
is no collapse: both limits are ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from streamscope.cli.bounds import Bounds
from streamscope.cli.parse import command, parse
from streamscope.papers.comparison.options import RunsOptions

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.papers.comparison.report import Tables
    from streamscope.papers.comparison.runs import Run
    from streamscope.papers.dst.factors import Cells

TEMPERATURES, STEPS = (0.5, 4.0), 61
"""The lowest and the highest temperature that is tried, and how many, in equal ratios."""
PLACE = "§5.1"
HALF, KEPT = "0.5", "0.9"
UNIT = {"sharp": "nats/token", "recovered": "share", "hotter": "factor", "kept": "share"}
LEAST = 0.01
"""Nats per token that sharpening has to cost, so that there is something of which to recover a share."""
NOTHING = f"sharpening costs less than {LEAST:g} nats"
AT_END = "the best temperature is the {} of those tried, {:g}: a better one may lie beyond"


@dataclass(frozen=True, kw_only=True)
class Options(RunsOptions):
    """Arguments of `python -m papers.dst.calibration`."""

    alpha: tuple[Annotated[float, Bounds(above=1)], ...] = (8.0, 16.0)
    """Factors on the scores, above 1."""
    documents: Annotated[int, Bounds(low=4, high=1_000_000)] = 100
    """Validation documents to measure on."""


def temperatures() -> "np.ndarray":
    """The temperatures that are tried, 1 among them."""
    import numpy as np

    return np.geomspace(*TEMPERATURES, STEPS)


def sums(model: Any, batches: Iterable[Any], n: int, edits: Mapping[str, Any]) -> "tuple[np.ndarray, np.ndarray]":
    """Loss [temperatures, documents] in nats and right words [documents], summed over a document's tokens."""
    import numpy as np
    import torch

    from streamscope.models.hooks import edit
    from streamscope.text.shards import NO_TARGET

    loss, right = np.zeros((STEPS, n)), np.zeros(n)
    with torch.no_grad(), edit(model, edits):
        for index, tokens, targets in batches:
            logits = model(tokens.to(model.cfg.device)).float().cpu()
            real, at = targets != NO_TARGET, targets.clamp_min(0)[..., None]
            mine = logits.gather(-1, at)[..., 0]
            right[index] = ((logits.argmax(-1) == targets) & real).sum(1).numpy()
            for i, t in enumerate(temperatures()):
                nats = torch.logsumexp(logits / t, -1) - mine / t
                loss[i, index] = torch.where(real, nats, 0.0).double().sum(1).numpy()
    return loss, right


def tempered(loss: "np.ndarray", tokens: "np.ndarray", least: Sequence[int] = (0, 0)) -> tuple[float, list[int]]:
    """(loss per token at the temperatures that are best on the other half, which these are of `temperatures`).

    `loss` [temperatures, documents] and `tokens` [documents] are sums; halves are the even and the odd documents. No
    temperature before that of `least`, one for each half, is chosen.
    """
    import numpy as np

    even = np.arange(len(tokens)) % 2 == 0
    total, chosen = 0.0, []
    for half, first in zip((even, ~even), least, strict=True):
        best = first + int(loss[first:, ~half].sum(1).argmin())
        total += float(loss[best, half].sum())
        chosen.append(best)
    return total / float(tokens.sum()), chosen


def at_end(chosen: Sequence[int]) -> str:
    """Why nothing is known where one of these temperatures is the lowest or the highest; "" where none is."""
    for end, i in (("lowest", 0), ("highest", STEPS - 1)):
        if i in chosen:
            return AT_END.format(end, TEMPERATURES[i > 0])
    return ""


def measure_run(model: Any, shards: Any, alphas: Sequence[float], documents: int) -> "pd.DataFrame":
    """The quantities of one run, a row each: quantity, unit, value, undefined."""
    import numpy as np
    import pandas as pd

    from streamscope.instruments.undefined_cells import note
    from streamscope.interventions.edits.amplification import amplification
    from streamscope.papers.comparison.seeds import NAN
    from streamscope.text.shards import NO_TARGET, document_batches

    batches = list(document_batches(shards, model.config.n_ctx, 16, documents))
    n = min(documents, shards.n_documents)
    tokens = np.zeros(n)
    for index, _, targets in batches:
        tokens[index] = (targets != NO_TARGET).sum(1).numpy()
    one = int(np.abs(np.log(temperatures())).argmin())
    sums_of = {
        alpha: sums(model, batches, n, {} if alpha == 1 else amplification(model, alpha)) for alpha in (1.0, *alphas)
    }
    plain = {alpha: float(loss[one].sum() / tokens.sum()) for alpha, (loss, _) in sums_of.items()}
    right = {alpha: float(hits.sum()) for alpha, (_, hits) in sums_of.items()}
    base, own = tempered(sums_of[1.0][0], tokens)
    rows = []
    for alpha in alphas:
        sharp = plain[alpha] - plain[1.0]
        warm, chosen = tempered(sums_of[alpha][0], tokens, own)
        _, free = tempered(sums_of[alpha][0], tokens)
        hotter = float(np.exp(np.mean(np.log(temperatures()[free]) - np.log(temperatures()[own]))))
        values = {
            "sharp": (sharp, ""),
            "recovered": (1 - (warm - base) / sharp, at_end(own + chosen)) if sharp >= LEAST else (NAN, NOTHING),
            "hotter": (hotter, at_end(own + free)),
            "kept": (right[alpha] / right[1.0], "") if right[1.0] else (NAN, "no word is right at α = 1"),
        }
        for name, (value, why) in values.items():
            undefined = note({"value": why}) if why else ""
            row = {"quantity": f"{name}.{alpha:g}", "unit": UNIT[name], "value": NAN if why else value}
            rows.append({**row, "undefined": undefined})
    return pd.DataFrame(rows)


def measured(runs: "Sequence[Run]", alphas: Sequence[float], documents: int) -> "pd.DataFrame":
    """One row per run and quantity, as `papers.comparison.seeds` reads them."""
    import pandas as pd

    from streamscope.papers.comparison.report import each_model

    parts = []
    for run, model, shards, progress in each_model(runs, "cpu"):
        for _ in progress("α")([None]):
            parts.append(measure_run(model, shards, alphas, documents).assign(preset=run.arm, seed=run.seed))
    table = pd.concat(parts, ignore_index=True)
    return table[["preset", "seed", "quantity", "unit", "value", "undefined"]]


def claims(quantities: "pd.DataFrame", cells: "Cells | None" = None) -> "dict[str, pd.DataFrame]":
    """What §5.1 says, of every arm at the largest α, of which it speaks; one correction over all rows.

    `claims` and `factors` as of `papers.dst.report`: a model that was begun in several ways, or measured at several
    lengths, has a verdict where all agree.
    """
    from streamscope.papers.comparison.printed import Bound
    from streamscope.papers.comparison.verdicts import bound_row, with_verdicts
    from streamscope.papers.dst.factors import Cells, factors

    cells = cells or Cells()
    largest = max(quantities["quantity"].str.partition(".")[2], key=float)
    least = {"recovered": 0.05, "kept": 0.01}
    bounds = [
        Bound(f"{name}.{largest}", arm, "above", limit, PLACE, least[name])
        for name, limit in (("recovered", HALF), ("kept", KEPT))
        for arm in cells.models(list(dict.fromkeys(quantities["preset"])))
    ]
    by_cell = factors(quantities, bounds, cells)
    rows = [bound_row(one, quantities) for one in bounds]
    each = [*enumerate(zip(bounds, rows, strict=True))]
    instead = {i: text for i, (one, row) in each if (text := cells.instead(one, row, by_cell))}
    withheld = {i: text for i, (one, row) in each if i not in instead and (text := cells.withheld(one, row, by_cell))}
    return {"claims": with_verdicts(rows, instead, quantities, withheld), "factors": by_cell}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, judge, print, write."""
    options = parse(Options, argv, __doc__)
    options.check("papers.dst.calibration runs/dst-kron-frozen-0")

    from streamscope.papers.comparison.report import compare, of_quantities
    from streamscope.papers.dst.factors import Cells
    from streamscope.papers.dst.report import in_arms, open_runs

    def measure(options: Options) -> "tuple[list[Run], pd.DataFrame]":
        runs = open_runs(options.runs)
        return runs, measured(runs, options.alpha, options.documents)

    title = "what sharpened attention costs, and what a temperature gives back"
    plain = of_quantities("papers.dst.calibration", title, measure, lambda rows: claims(rows)["claims"], in_arms)

    def judged(runs: "Sequence[Run]", tables: "Tables", facts: Mapping[str, Any]) -> "Tables":
        return {**plain.judge(runs, tables, facts), **claims(tables["runs"], Cells(runs))}

    compare(replace(plain, judge=judged), options)


if __name__ == "__main__":
    command(main)
