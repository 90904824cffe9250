"""Plain loops over prompts and heads, and means of the committed rows, for the tests of the papers' numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.models.checkpoint import run_folder
from streamscope.models.hooks import capture
from streamscope.papers import paper as measuring
from streamscope.papers.paper import Run, load

Place = tuple[int, int]


def committed_mean(
    paper: str, arm: str, quantity: str, part: str = "", x: float = float("nan"), grid: str = "long"
) -> float:
    """The mean over seeds of what a paper's table says."""
    table = load(paper)
    at = (table["grid"] == grid) & (table["arm"] == arm) & (table["quantity"] == quantity) & (table["part"] == part)
    at &= table["x"].isna() if np.isnan(x) else np.isclose(table["x"].astype(float), x)
    return float(table.loc[at, "value"].mean())


def small(name: str) -> Run:
    """A bundled model with forty pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "PAIRS", 40)
        found = Run(run_folder(name))
        assert len(found.pairs.prompts) < 100, "read once, while it is small"
    return found


def looks(run: Run, without: Sequence[Place] = ()) -> list[dict[Place, dict[str, float]]]:
    """Of each prompt and head: attention of the last query token to the right noun and its competitor, and whether the
    right noun has the largest of all keys. `without`: heads whose z is set to 0."""
    found = []

    def silence(z: Any, hook: Any) -> Any:
        z = z.clone()
        for layer, head in without:
            if hook.name == f"blocks.{layer}.attn.hook_z":
                z[:, :, head] = 0
        return z

    handles = [(f"blocks.{layer}.attn.hook_z", silence) for layer in {layer for layer, _ in without}]
    for ids, at in zip(run.pairs.tokens, run.pairs.positions, strict=True):
        tokens = torch.tensor([list(ids)])
        with torch.no_grad(), capture(run.model, "blocks.*.attn.hook_pattern") as patterns:
            run.model.run_with_hooks(tokens, fwd_hooks=handles) if handles else run.model(tokens)
        here = {}
        for layer, pattern in enumerate(patterns.values()):
            for head in range(pattern.shape[1]):
                row = pattern[0, head, max(at["query"])]
                others = [k for k in range(max(at["query"]) + 1) if k not in at["target"]]
                here[layer, head] = {
                    "target": float(sum(row[k] for k in at["target"])),
                    "distractor": float(sum(row[k] for k in at["distractor"])),
                    "hit": float(max(row[k] for k in at["target"]) > max(row[k] for k in others)),
                }
        found.append(here)
    return found


def by_pair(run: Run) -> dict[str, dict[str, int]]:
    """Pair -> order -> number of the prompt, pairs of competing nouns."""
    found: dict[str, dict[str, int]] = {}
    for i, prompt in enumerate(run.pairs.prompts):
        if prompt.category == "competing-nouns":
            found.setdefault(prompt.pair, {})[prompt.order] = i
    return {pair: orders for pair, orders in found.items() if len(orders) == 2}


def moved(seen: Sequence[dict[Place, dict[str, float]]], pairs: Sequence[dict[str, int]]) -> dict[Place, float]:
    """Head -> mean change of its attention to the right noun from one order of a pair to the other."""
    return {
        place: float(np.mean([seen[o["target_last"]][place]["target"] - seen[o["target_first"]][place]["target"]
                              for o in pairs]))
        for place in seen[0]
    }  # fmt: skip
