"""Losses in windows of the length that most steps of a run had.

    usual_window  that length; the whole context where a run has no --phases
    lengths       per run: the loss there, and in windows of the whole context, within that length and beyond
    curves        the loss there at every snapshot behind warm-up, not in windows of the whole context

A run is validated in windows of its whole context. One that is trained in short windows, and in long ones at its end
alone, is then asked about positions that it hardly saw: how a model takes these is another question than how well it
fits text, and may be all of a difference between two architectures.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load, run_folder, snapshots
from streamscope.models.training.config import phases_of
from streamscope.models.training.data import evaluation_shards, windows
from streamscope.papers.comparison.runs import Run

AT_ONCE = 4096
"""Tokens of a batch."""
OF_A_POINT = 20_480
"""Validation tokens of a point of a curve, the first ones."""


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


def curves(runs: Sequence[Run], progress: Callable[..., Any] = lambda runs: runs) -> pd.DataFrame:
    """`comparison.curves.curves` in windows of the usual length, of the first `OF_A_POINT` validation tokens: a row per
    snapshot behind warm-up. Raises `InputError` for a run without any."""
    rows = []
    for run in progress(list(runs)):
        (length, _), folder, last = usual_window(run), run_folder(run.folder), int(run.manifest["steps"])
        steps = [int(one["step"]) for one in snapshots(folder) if run.warmup <= one["step"] <= last]
        if not steps:
            raise InputError(f"{folder} has no snapshot behind warm-up, for its curve; train with --snapshots log:1000")
        for step in steps:
            total, tokens = by_position(load(Path(f"{folder}@{step}"), device="cpu"), run, length, OF_A_POINT)
            rows.append({"preset": run.arm, "seed": run.seed, "step": step, "tokens": run.tokens_at(step),
                         "loss": float(total.sum() / tokens.sum())})  # fmt: skip
    return pd.DataFrame(rows)
