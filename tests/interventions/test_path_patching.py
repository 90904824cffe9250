"""Path patching against runs that freeze all else by hand (Wang et al. 2022)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.patch.paths import READERS, Edge, Sender, connected, edges_of, parse_senders, patch_edges
from streamscope.models.hooks import capture, edit
from tests.interventions.passes import captured, under
from tests.interventions.swapped import CLEAN, PAIRS, make, odds


def frozen_run(
    model: Any, sender: Sender, base: Tensor, other: Tensor, read: str | None
) -> tuple[Tensor | None, Tensor]:
    """Wang et al. (2022): the sender from the other run, every other component held; what the reader then reads."""
    hooks = [n for n in model.hook_dict if n.endswith(("hook_attn_out", "hook_mlp_out")) or "_hc.hook_" in n]
    own = captured(model, base, [*hooks, sender.hook])
    source = captured(model, other, sender.hook)
    branch = f"blocks.{sender.layer}.hook_{'mlp' if sender.ffn else 'attn'}_out"
    edits = {n: (lambda x, hook, y=own[n]: y) for n in hooks if n != branch}

    def send(x: Tensor, hook: Any) -> Tensor:
        if sender.head is None:
            return source[sender.hook]
        new = x.clone()
        new[:, :, sender.head] = source[sender.hook][:, :, sender.head]
        return new

    names = [read] if read else []
    with torch.no_grad(), edit(model, {**edits, sender.hook: send}), capture(model, names) as seen:
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
    senders = [Sender(0, 1), Sender(1, None), Sender(0, ffn=True)]
    every = [Edge(s, reader, layer) for s in senders for reader in READERS for layer in range(2)]
    edges = [e for e in [*every, *(Edge(s, "head", 2) for s in senders)] if connected(model, e)]
    found = patch_edges(model, [pair], edges)
    for e, edge in enumerate(edges):
        if edge.reader == "head":
            _, logits = frozen_run(model, edge.sender, base, other, None)
        else:
            hook = f"blocks.{edge.layer}.hook_{edge.reader}"
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            logits = under(model, base, {hook: lambda x, hook, y=read: y})
        assert found.patched[e, 0] == pytest.approx(odds(logits), abs=1e-8), edge
        assert abs(found.effect[e, 0]) > 1e-7
    for edge in every:  # what has no edge reads nothing of the sender
        if not connected(model, edge):
            hook = f"blocks.{edge.layer}.hook_{edge.reader}"
            read, _ = frozen_run(model, edge.sender, base, other, hook)
            own = captured(model, base, hook)
            torch.testing.assert_close(read, own[hook], rtol=0, atol=1e-12)


def test_senders() -> None:
    model = make("std-t")
    labels = [s.label for s in parse_senders(["L0.H1-2", "L1.mlp", "L1attn", "L0.H1"], model)]
    assert labels == ["L0.H1", "L0.H2", "L1 mlp", "L1 attn"]
    with pytest.raises(InputError, match="this model has layers 0 to 1"):
        parse_senders(["L2.mlp"], model)
    with pytest.raises(InputError, match=r"L2\.attn"):
        edges_of(make("hdpl", **{"attention.o": "hdpl"}), [Sender(0, 1)])
