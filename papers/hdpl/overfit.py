"""Compare how much HDPL and its dense twin overfit a small text that they read many times (§4.1).

    python -m models.grid papers/hdpl/overfit.toml --out runs/overfit
    python -m papers.hdpl.overfit runs/overfit/* --out results/hdpl_overfit
    python -m papers.hdpl.overfit --tables results/hdpl_overfit --out results/hdpl_overfit

The paper: a bottleneck filters "noise that a full-rank matrix might otherwise overfit", in trainings that read a text
once, where nothing is overfitted. Per run, cross-entropies in nats per token, of what was trained (a run of hdpl adds
its KL term to that):

    overfit   loss on validation text at the end, less the lowest of the run
    gap       loss on validation text at the end, less the mean of the last tenth of the training steps
    train     that mean
    matched   loss on validation text, less the lowest of the run, at the first evaluation where the training loss, mean
              over the steps since the evaluation before, is no higher than hdpl's `train` of the same seed
    lowest    the lowest loss on validation text

Units are training seeds, both models of a seed on the same text in the same order. Judged are `overfit`, and `matched`,
for the hybrid has fewer parameters and fits the training text less in as many steps. The `gap` is described alone: what
hdpl loses in training has the noise of z = μ + σ ε in it, which validation has not, so that its gap is smaller by
construction, and where the two are matched hdpl has fitted more than its training loss says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.cli.parse import command, parse
from streamscope.papers.comparison.options import RunsOptions

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.papers.comparison.runs import Run

WHERE = "§4.1"
UNIT = "nats/token"
NEVER = "its training loss never comes so low"
LAST = 0.1
"""The share of the steps, the last ones, whose training losses are averaged."""


@dataclass(frozen=True, kw_only=True)
class Options(RunsOptions):
    """Arguments of `python -m papers.hdpl.overfit`."""


def numbers(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The quantities of a run, from the rows of its metrics.jsonl."""
    valid = [row["loss"] for row in rows if row["kind"] == "eval"]
    trained = [row for row in rows if row["kind"] == "train"]
    end = max(row["step"] for row in trained)
    late = [row.get("ce", row["loss"]) for row in trained if row["step"] > end * (1 - LAST)]
    train = sum(late) / len(late)
    return {"overfit": valid[-1] - min(valid), "gap": valid[-1] - train, "train": train, "lowest": min(valid)}


def matched(rows: Sequence[dict[str, Any]], train: float) -> float:
    """Validation loss less the lowest of the run at the first evaluation with a training loss of `train` or less since
    the evaluation before; NaN where there is none."""
    valid = [(row["step"], row["loss"]) for row in rows if row["kind"] == "eval"]
    before = 0
    for step, loss in valid:
        since = [row.get("ce", row["loss"]) for row in rows if row["kind"] == "train" and before < row["step"] <= step]
        if since and sum(since) / len(since) <= train:
            return loss - min(loss for _, loss in valid)
        before = step
    return float("nan")


def measured(runs: "Sequence[Run]") -> "pd.DataFrame":
    """One row per run and quantity, as `papers.comparison.seeds` reads them."""
    import pandas as pd

    from streamscope.instruments.undefined_cells import note
    from streamscope.models.training.run import read_metrics

    logs = [(run, read_metrics(run.folder)) for run in runs]
    numbers_of = {(run.arm, run.seed): numbers(rows) for run, rows in logs}
    rows = [(*key, name, UNIT, value, "") for key, one in numbers_of.items() for name, value in one.items()]
    for run, log in logs:
        if (hybrid := numbers_of.get(("hdpl", run.seed))) is not None:
            own = hybrid["overfit"] if run.arm == "hdpl" else matched(log, hybrid["train"])
            rows.append((run.arm, run.seed, "matched", UNIT, own, "" if own == own else note({"value": NEVER})))
    return pd.DataFrame(rows, columns=["preset", "seed", "quantity", "unit", "value", "undefined"])


def claims(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """That the dense model overfits more, at the end and where it fits the training text as well; one correction."""
    import pandas as pd

    from streamscope.papers.comparison.printed import Order
    from streamscope.papers.comparison.verdicts import judge

    if not {"llama", "hdpl"} <= set(quantities["preset"]):
        return pd.DataFrame()
    there = set(quantities["quantity"])
    return judge([Order(name, "llama", "hdpl", WHERE) for name in ("overfit", "matched") if name in there], quantities)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, judge, print, write."""
    options = parse(Options, argv, __doc__)
    options.check("papers.hdpl.overfit runs/overfit/llama-s0 runs/overfit/hdpl-s0")

    from streamscope.cli.errors import InputError
    from streamscope.papers.comparison.curves import has_short_windows
    from streamscope.papers.comparison.report import compare, of_quantities
    from streamscope.papers.hdpl.report import in_arms, open_runs

    def measure(options: Options) -> "tuple[list[Run], pd.DataFrame]":
        runs = open_runs(options.runs)
        if has_short_windows(runs):
            raise InputError(
                "most steps of these runs had windows shorter than the context, in which they were validated; what "
                "rises there may be of positions that nothing trained. Train with n_ctx of that length"
            )
        return runs, measured(runs)

    compare(of_quantities("papers.hdpl.overfit", "overfitting, over seeds", measure, claims, in_arms), options)


if __name__ == "__main__":
    command(main)
