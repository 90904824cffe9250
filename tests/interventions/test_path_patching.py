"""Path patching against runs that freeze all else by hand (Wang et al. 2022)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits.graph import Node
from streamscope.interventions.patch.paths import edges_of, hook_of, parse_senders, patch_edges
from streamscope.models.hooks import capture, edit
from tests.interventions.passes import captured, under
from tests.interventions.swapped import CLEAN, PAIRS, make, odds


def frozen_run(model: Any, sender: Node, base: Tensor, other: Tensor, read: str | None) -> tuple[Tensor | None, Tensor]:
    """Wang et al. (2022): the sender from the other run, every other component held; what the reader then reads."""
    hooks = [n for n in model.hook_dict if n.endswith(("hook_attn_out", "hook_mlp_out")) or "_hc.hook_" in n]
    own = captured(model, base, [*hooks, (hook_sent := hook_of(sender))])
    source = captured(model, other, hook_sent)
    branch = f"blocks.{sender.layer}.hook_{'mlp' if sender.part == 'mlp' else 'attn'}_out"
    edits = {n: (lambda x, hook, y=own[n]: y) for n in hooks if n != branch}

    def send(x: Tensor, hook: Any) -> Tensor:
        if sender.part != "head":
            return source[hook_sent]
        new = x.clone()
        new[:, :, sender.head] = source[hook_sent][:, :, sender.head]
        return new

    names = [read] if read else []
    with torch.no_grad(), edit(model, {**edits, hook_sent: send}), capture(model, names) as seen:
        logits = model(base)
    return (seen[read] if read else None), logits


PATH_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("std-t", "lfa", "dst-kron", "pls", "kromcanon")},
    "parallel": ("dst-kron", {"residual.order": "parallel"}),
}


@pytest.mark.parametrize("name", PATH_MODELS)
def test_paths_are_runs_with_all_else_frozen(name: str) -> None:
    preset, overrides = PATH_MODELS[name]
    model = make(preset, **overrides)
    if name == "kromcanon":
        with torch.no_grad():
            for parameter, p in model.named_parameters():
                if "_hc" in parameter and p.ndim == 2:
                    p.normal_(std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    pair, base, other = PAIRS[0], CLEAN[1:], CLEAN[:1]
    edges = edges_of(model, parse_senders(["L0.H1", "L1.attn", "L0.mlp"], model))
    found = patch_edges(model, [pair], edges)
    assert np.isnan(found.patched).any() and np.isfinite(found.patched).sum() >= 8
    for e, edge in enumerate(edges):
        hook = f"blocks.{edge.reader.layer}.hook_{edge.kind}"
        if np.isnan(found.patched[e, 0]):  # what has no edge reads nothing of the sender
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            torch.testing.assert_close(read, captured(model, base, hook)[hook], rtol=0, atol=1e-12)
            continue
        if edge.kind == "head":
            _, logits = frozen_run(model, edge.sender, base, other, None)
        else:
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            logits = under(model, base, {hook: lambda x, hook, y=read: y})
        assert found.patched[e, 0] == pytest.approx(odds(logits), abs=1e-8), edge
        assert abs(found.effect[e, 0]) > 1e-7


def test_senders() -> None:
    model = make("std-t")
    labels = [s.name for s in parse_senders(["L0.H1-2", "L1.mlp", "L1attn", "L0.H1"], model)]
    assert labels == ["L0.H1", "L0.H2", "L1 mlp", "L1 attn"]
    with pytest.raises(InputError, match="this model has layers 0 to 1"):
        parse_senders(["L2.mlp"], model)
    with pytest.raises(InputError, match=r"L2\.attn"):
        edges_of(make("hdpl", **{"attention.o": "hdpl"}), parse_senders(["L0.H1"], model))
