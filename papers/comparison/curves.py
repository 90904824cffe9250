"""Loss over the steps of training, run by run, and the claims of papers about whole curves.

A claim that one arm's curve lies below another's is judged on pairs: runs of one training seed, at one step. Its units
are the seeds. What is claimed of every evaluation is judged at the one that speaks least for it (the lowest t): where
the claim holds there it holds at all of them, and no correction for their number is needed. Where that evaluation lies
on the other side, its p is multiplied by their number, for it was picked out. A difference is negligible where it is at
every evaluation; where it is at this one only, the claim is not resolved. Otherwise the rule is that of all claims
(`comparison.verdicts`), but that fewer than three seeds give no verdict: evaluations of one run are no units.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.undefined_cells import note
from streamscope.models.checkpoint import load, run_folder, snapshots
from streamscope.models.runs import evaluations
from streamscope.models.training.config import phases_of
from streamscope.models.training.data import evaluation_shards, windows
from streamscope.models.training.run import read_metrics
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import NAN, against_zero, estimate
from streamscope.papers.comparison.verdicts import NEGLIGIBLE, measured, seeds_row, with_verdicts

LEAST_SEEDS = 3
LAST = 0.05
"""Of the steps, over which the loss of the training text is meaned."""
AT_ONCE = 4096
"""Tokens of a batch."""
OF_A_POINT = 20_480
"""Validation tokens of a point of a curve, the first ones."""
FEW = "fewer than three seeds"
NONE = "no evaluation there in all seeds"


def curves(runs: Sequence[Run], name: Callable[[Run], str] = lambda run: run.arm) -> pd.DataFrame:
    """Every evaluation of the runs, from their logs: preset (the arm's `name`), seed, step, tokens seen, loss."""
    return pd.DataFrame(_point(name(run), run, e["step"], e["loss"]) for run in runs for e in evaluations(run.folder))


def _point(name: str, run: Run, step: int, loss: float) -> dict[str, Any]:
    """The loss of a run at a step of its training."""
    return {
        "preset": name, "seed": run.seed, "step": int(step), "tokens": run.tokens_at(int(step)), "loss": loss,
    }  # fmt: skip


def online(runs: Sequence[Run], name: Callable[[Run], str] = lambda run: run.arm) -> pd.DataFrame:
    """The loss of the training text over the last `LAST` of the steps, of batches before they are learned; as `curves`.

    Runs of one seed read the same batches. Where a text is read once it is as new to a model as validation text is, and
    has the sources of the training text, which validation text need not have. Penalties are not in it. Runs without
    such a log have no row.
    """
    rows = []
    for run in runs:
        steps = int(run.manifest["steps"])
        last = [
            float(row.get("ce", row["loss"])) for row in read_metrics(run_folder(run.folder))
            if row["kind"] == "train" and row["step"] > (1 - LAST) * steps
        ]  # fmt: skip
        if last:
            rows.append(_point(name(run), run, steps, float(np.mean(last))))
    return pd.DataFrame(rows)


def wide(table: pd.DataFrame, arm: str) -> pd.DataFrame:
    """The losses of an arm, seeds downwards and steps across; NaN where a seed has no evaluation."""
    return table[table["preset"] == arm].pivot(index="seed", columns="step", values="loss")


def loss_gaps(table: pd.DataFrame, less: str, more: str, after: int = 0) -> pd.DataFrame:
    """Loss of `more` less that of `less`, seeds × steps after `after`, of the seeds and steps that both have wholly."""
    a, b = wide(table, less), wide(table, more)
    seeds = a.index.intersection(b.index)
    gaps = (b.loc[seeds] - a.loc[seeds]).dropna(axis=1)
    return gaps.loc[:, (gaps.columns > after) & (len(seeds) > 0)]


def token_gaps(table: pd.DataFrame, less: str, more: str, after: int = 0) -> pd.DataFrame:
    """How much sooner `less` comes to a loss than `more`, as ln of a ratio of tokens, in the form of `loss_gaps`.

    At every evaluation the loss is the higher one of the two, which both have come to by then: ln (tokens that the one
    that has it now has seen / tokens that the other had seen when it first had it), positive where `less` was sooner.
    Tokens between two evaluations lie on a straight line. What lies before the first evaluation is not known, so the
    first one is left out.
    """
    gaps, tokens = loss_gaps(table, less, more, after), table.groupby("step")["tokens"].first()
    losses = {arm: wide(table, arm) for arm in (less, more)}
    gaps = gaps.loc[:, gaps.columns > max(one.columns.min() for one in losses.values())]
    for seed in gaps.index:
        for step in gaps.columns:
            ahead, behind = (less, more) if gaps.loc[seed, step] >= 0 else (more, less)
            then = _tokens_to(losses[behind].loc[seed, step], losses[ahead].loc[seed].dropna(), tokens)
            gaps.loc[seed, step] = np.log(tokens[step] / then) * (1 if ahead == less else -1)
    return gaps


def _tokens_to(level: float, losses: pd.Series, tokens: pd.Series) -> float:
    """Tokens seen when a run's loss is first at most `level`; of its first evaluation where it is there at once."""
    i = int((losses.to_numpy() <= level).argmax())
    seen, loss = (one.to_numpy(float)[max(i - 1, 0) : i + 1] for one in (tokens[losses.index], losses))
    return float(np.interp(-level, -loss, seen))


def mean_over(gaps: pd.DataFrame, tokens: pd.Series) -> pd.DataFrame:
    """The mean of every seed's differences over the tokens between the first step and the last, in one column."""
    if gaps.shape[1] < 2:
        return gaps
    seen = tokens[gaps.columns].to_numpy(float)
    return pd.DataFrame({gaps.columns[-1]: np.trapezoid(gaps.to_numpy(), seen, axis=1) / (seen[-1] - seen[0])},
                        index=gaps.index)  # fmt: skip


def last_until(losses: pd.DataFrame, step: float) -> pd.DataFrame:
    """The last column of seeds × steps that is not after a step; none where all are."""
    return losses.loc[:, losses.columns <= step].iloc[:, -1:]


# ---- every evaluation, without a verdict -------------------------------------------------------


def gaps(table: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """One row per pair (less, more) and step: `more` less `less` over the seeds that both have, uncorrected."""
    if table.empty:
        return pd.DataFrame()
    tokens = table.groupby("step")["tokens"].first()
    rows = []
    for less, more in pairs:
        for step, values in loss_gaps(table, less, more).items():
            row = estimate(values.to_numpy(float))
            why, mean = row.pop("why"), row.pop("mean")
            front = {"claim": f"{less} < {more}", "step": step, "tokens": int(tokens[step]), "difference": mean}
            rows.append({**front, **row, "undefined": note(why)})
    return pd.DataFrame(rows)


def points(table: pd.DataFrame, at: dict[str, float]) -> pd.DataFrame:
    """Losses of every arm at points of its curve, over seeds: the lowest of each run, and at the last evaluation not
    after each step of `at`, by name."""
    rows = []
    for arm in dict.fromkeys(table["preset"]):
        losses = wide(table, arm)
        whole = losses.dropna(axis=1)
        of = {"lowest": losses.min(axis=1)} | {
            name: one.iloc[:, 0] for name, step in at.items() if (one := last_until(whole, step)).shape[1]
        }
        for name, values in of.items():
            row = estimate(values.to_numpy(float))
            ends = {"mean": "loss", "ci_low": "loss_low", "ci_high": "loss_high", "sd": "loss_sd"}
            why = {ends[column]: text for column, text in row.pop("why").items()}
            cells = {ends.get(column, column): value for column, value in row.items()}
            step = "" if name == "lowest" else f"{values.name:,}"
            rows.append({"preset": arm, "point": name, "step": step, **cells, "unit": "nats/token",
                         "undefined": note(why)})  # fmt: skip
    return pd.DataFrame(rows)


# ---- claims ------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """How a claim about curves is read: the quantity that is positive where it holds, seeds × evaluations."""

    id: str
    """The claim's row of the ledger."""
    claim: str
    quantity: str
    unit: str
    where: str
    gaps: pd.DataFrame
    holds: str
    """What has to be shown for the claim to hold, in words."""
    smallest: float = NAN
    printed: str = ""
    paper: float = NAN
    instead: str = ""
    """Why it cannot be judged."""


def judged(readings: Sequence[Reading]) -> pd.DataFrame:
    """One row per reading with its verdict; p is corrected over all of them (Holm)."""
    instead = {i: one.instead for i, one in enumerate(readings) if one.instead}
    table = with_verdicts([_row(one) for one in readings], instead)
    for i, one in enumerate(readings):
        if i not in instead and table.loc[i, "direction"].startswith(NEGLIGIBLE) and not negligible_throughout(one):
            seeds, step = table.loc[i, "seeds"], table.loc[i, "at"]
            why = f"negligible at {step}, but not at every evaluation"
            table.loc[i, "direction"] = f"not resolved at n={seeds} seeds: {why}"
    return table


def negligible_throughout(one: Reading) -> bool:
    """Whether at every evaluation the whole 95 % interval over seeds lies within ± the smallest effect of interest.

    Where all seeds have one number there is no interval, and the number itself must lie there.
    """
    for _, values in one.gaps.items():
        numbers = against_zero(values.to_numpy(float))
        low, high = (numbers[end] if numbers[end] == numbers[end] else numbers["mean"] for end in ("ci_low", "ci_high"))
        if not (-one.smallest <= low and high <= one.smallest):
            return False
    return True


def _row(one: Reading) -> dict[str, Any]:
    """The row of a reading without its verdict, of the evaluation that speaks least for it."""
    row = {
        "id": one.id, "claim": one.claim, "quantity": one.quantity, "unit": one.unit, "where": one.where,
        "paper": one.paper, "printed": one.printed, "smallest": one.smallest, "holds_where": one.holds,
        "evaluations": one.gaps.shape[1], "at": "",
    }  # fmt: skip
    if one.gaps.empty:
        return measured(row, NAN, NAN, NAN, NAN, str(len(one.gaps)), NONE if len(one.gaps) else FEW)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (one.gaps.mean() / one.gaps.std(ddof=1)).fillna(0.0) if len(one.gaps) > 1 else one.gaps.mean()
    values = one.gaps[t.idxmin()].to_numpy(float)
    row["at"] = str(t.idxmin())
    if len(values) < LEAST_SEEDS:
        return measured(row, float(values.mean()), NAN, NAN, NAN, str(len(values)), FEW)
    numbers = against_zero(values)
    if numbers["mean"] < 0 and numbers["p"] == numbers["p"]:
        numbers["p"] = min(1.0, numbers["p"] * len(t))
    return seeds_row(row, numbers)


# ---- windows of the length that most steps of a run had ----------------------------------------
#
# A run is validated in windows of its whole context. One that is trained in short windows, and in long ones at its end
# alone, is then asked about positions that it hardly saw: how a model takes these is another question than how well it
# fits text, and may be all of a difference between two architectures.


def usual_window(run: Run) -> tuple[int, float]:
    """Length of the windows that most steps had, and the share of the steps that had it."""
    n_ctx, phases = int(run.config["model"]["n_ctx"]), phases_of(run.config["training"].get("phases"))
    if not phases:
        return n_ctx, 1.0
    steps: Counter[int] = Counter()
    for phase in phases:
        steps[phase.n_ctx] += phase.steps
    length, n = steps.most_common(1)[0]
    return length, n / sum(steps.values())


def has_short_windows(runs: Sequence[Run]) -> bool:
    """Whether windows that most steps of the runs had are shorter than the context."""
    return any(usual_window(run)[0] < run.config["model"]["n_ctx"] for run in runs)


@torch.no_grad()
def by_position(model: Any, run: Run, length: int, most: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ loss and tokens [length] by position, on windows of the run's validation text; of its first `most` tokens."""
    text = windows(evaluation_shards(run.folder, model.tokenizer, None), length, run.config["training"]["packing"])
    stop = len(text) if most is None else min(len(text), -(-most // length))
    total, tokens = torch.zeros(length, dtype=torch.double), torch.zeros(length, dtype=torch.double)
    size = max(1, AT_ONCE // length)
    for first in range(0, stop, size):
        ids, targets = text.batch(range(first, min(first + size, stop)))
        real = targets != -100
        losses = model.token_losses(ids.to(model.cfg.device), targets.to(model.cfg.device)).cpu().reshape(real.shape)
        total += (losses.double() * real).sum(0)
        tokens += real.sum(0)
    return total, tokens


def lengths(runs: Sequence[Run], progress: Callable[..., Any] = lambda runs: runs) -> pd.DataFrame:
    """One row per run: `window` and `share` of `usual_window`; `loss` and `tokens` in such windows; in windows of the
    whole context the loss of all positions (`whole`), of those `within` that length and of those `beyond`.

    Raises `InputError` for a run most of whose steps had windows of the whole context: none of its positions is beyond.
    """
    rows = []
    for run in progress(list(runs)):
        model, (length, share) = load(run.folder, device="cpu"), usual_window(run)
        if length == run.config["model"]["n_ctx"]:
            raise InputError(f"most steps of {run.folder} had windows of its whole context; there is nothing beyond")
        total, tokens = by_position(model, run, length)
        every, n = by_position(model, run, int(run.config["model"]["n_ctx"]))
        rows.append({
            "preset": run.arm, "seed": run.seed, "window": length, "share": share,
            "loss": float(total.sum() / tokens.sum()), "tokens": int(tokens.sum()),
            "whole": float(every.sum() / n.sum()), "within": float(every[:length].sum() / n[:length].sum()),
            "beyond": float(every[length:].sum() / n[length:].sum()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def window_curves(runs: Sequence[Run], progress: Callable[..., Any] = lambda runs: runs) -> pd.DataFrame:
    """`curves` in windows of the usual length, of the first `OF_A_POINT` validation tokens: a row per
    snapshot behind warm-up. Raises `InputError` for a run without any."""
    rows = []
    for run in progress(list(runs)):
        (length, _), folder, last = usual_window(run), run_folder(run.folder), int(run.manifest["steps"])
        steps = [int(one["step"]) for one in snapshots(folder) if run.warmup <= one["step"] <= last]
        if not steps:
            raise InputError(f"{folder} has no snapshot behind warm-up, for its curve; train with --snapshots log:1000")
        for step in steps:
            total, tokens = by_position(load(Path(f"{folder}@{step}"), device="cpu"), run, length, OF_A_POINT)
            rows.append(_point(run.arm, run, step, float(total.sum() / tokens.sum())))
    return pd.DataFrame(rows)
