"""Direct, compensated and total effects: planted ones on paper, contributions against plain loops, exact sums."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.loaders import SentencePair, SentencePairs
from streamscope.instruments.prompts.tasks import OpenTasks, Task, sentence_task, token_task
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.hydra.measure import decompose
from streamscope.interventions.selection import Group
from streamscope.models.head_spec import Head
from streamscope.probes.direct_logit_attribution.contributions import contributions, directions, observe
from tests.interventions import copiers
from tests.interventions.copiers import BACKUP, COPIER, DELTA, A
from tests.interventions.passes import captured, under

COPY = [Group("copier", (COPIER,)), Group("backup", (BACKUP,)), Group("both", (COPIER, BACKUP))]


def planted(kappa: float) -> tuple[Any, Task]:
    net = copiers.model(backup=kappa)
    return net, token_task(copiers.suite(), net.tokenizer)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_planted_backup_makes_up_what_it_is_set_to(kappa: float) -> None:
    net, task = planted(kappa)
    copier, backup, both = decompose(net, task, COPY)
    c = np.where(task.cases["relation"] == "capital", 1, -1)
    s = np.array([copiers.scale(x) for x in c * DELTA])  # the norm's scale with the copier at work
    s_after, added = np.array([copiers.scale(x) for x in kappa * c * DELTA]), 2 * A * DELTA
    for found, expected in (
        (copier.direct, -added / s),
        (copier.attn[1], kappa * added / s),
        (copier.heads[1, BACKUP.head], copier.attn[1]),
        (copier.norm, kappa * added * (1 / s_after - 1 / s)),
        (copier.total, added * (kappa / s_after - 1 / s)),
        (both.direct, copier.direct),
        *((x, 0 * x) for x in (copier.mlp, copier.mixing, backup.total, backup.direct, both.compensation)),  # it sleeps
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_share_made_up_is_that_of_the_backup_and_rows_say_what_is_undefined() -> None:
    net, task = planted(0.5)
    how = Hydra(heads=("L0.H1", "L1.H0"), groups=("both=L0.H1+L1.H0",))
    result = how.measure(net, OpenTasks([task], net.tokenizer))
    table, layers = result.table(), result.table("layers").frame
    assert table.frame["group"].tolist() == ["L0.H1", "L1.H0", "both"]
    assert table.frame["made_up"][0] == pytest.approx(0.5, abs=1e-5)
    assert table.missing[1, "made_up"] == "the direct effect is not significantly different from 0"  # it sleeps
    assert table.frame["unexplained"].max() < 1e-5
    mine = layers[(layers["group"] == "L0.H1") & (layers["layer"] == 1)].set_index("place")["compensation"]
    assert mine["L1 attn"] == pytest.approx(mine["L1.H0"], abs=1e-5)
    assert mine.drop(["L1 attn", "L1.H0"]).abs().max() < 1e-5
    assert not ((layers["group"] == "L1.H0") & (layers["layer"] == 0)).any()  # nothing before the head compensates


PRESETS = ["std-t", "lfa", "dst-kron", "pls", "c2", "llama", "hdpl", "gpt2", "kromcanon"]


def awake(preset: str, **overrides: Any) -> Any:
    """A tiny model in float64 whose weights are large enough for every term to count."""
    model = streamscope.models.build(preset, scale="tiny", seed=1, **overrides).double().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.15)
    return model


def random_task(n: int = 6) -> Task:
    """Cases of random tokens."""
    import pandas as pd

    from streamscope.instruments.prompts.tasks import Reads

    rng = np.random.default_rng(3)
    tokens = [[0, *rng.integers(1, 250, 4 + i).tolist()] for i in range(n)]
    ids = [(int(a), int(b)) for a, b in rng.integers(1, 250, (n, 2))]
    cases = pd.DataFrame({"id": [str(i) for i in range(n)], "cluster": [str(i) for i in range(n)]})
    reads = Reads(tokens, [len(row) - 1 for row in tokens], ids, np.arange(n), np.ones((n, 2), bool))
    return Task("random", "here", "token", cases, reads, [])


@pytest.mark.parametrize("preset", [*PRESETS, "hc"])
def test_parts_add_up_to_the_total_effect(preset: str) -> None:
    model = awake("kromhc", residual="hc") if preset == "hc" else awake(preset)
    task = random_task()
    groups = [Group("one", (Head(0, 1),)), Group("two", (Head(0, 0), Head(1, 2)))]
    for one in decompose(model, task, groups):
        assert np.abs(one.unexplained).max() < 1e-9
        assert np.abs(one.total).max() > 1e-3
        assert np.abs(one.compensation).max() > 1e-3
        assert np.abs(one.norm).max() > 1e-4
        mixing = np.abs(one.mixing).max()
        assert mixing > 1e-3 if preset == "hc" else mixing < 1e-9  # doubly stochastic mixing keeps the streams' mean


def plain(model: Any, tokens: list[int], pair: tuple[int, int]) -> dict[str, Any]:
    """Contributions of one case, written out: each update sent through the streams on its own, then the linear norm."""
    residual, L = model.config.residual, model.config.n_layers
    kept = r"hook_z$|hook_(attn|mlp)_out$|blocks.0.hook_resid_pre$|_hc.hook_(res|post)$|ln_final.hook_scale$"
    seen = captured(model, torch.tensor([tokens]), [name for name in model.hook_dict if re.search(kept, name)])
    at = {name: x[0, -1] for name, x in seen.items()}
    updates = [(layer, part) for layer in range(L) for part in ("attn", "mlp")]
    hyper = [f"blocks.{layer}.{part}_hc.hook_" for layer, part in updates if "streams" in residual.streams]
    norm, u = model.ln_final, (model.head[pair[0]] - model.head[pair[1]]).detach()

    def c(v: torch.Tensor, module: int) -> float:
        """What v adds to the difference of logits, written by update `module`, −1 for the embedding."""
        if hyper:
            X = v.repeat(residual.n, 1) if module < 0 else at[hyper[module] + "post"][:, None] * v
            for m in range(module + 1, 2 * L):
                X = at[hyper[m] + "res"] @ X
            v = X.sum(0) if residual.reduce == "sum" else X.mean(0)
        g = v.reshape(norm.groups, -1)
        g = g - g.mean(-1, keepdim=True) if norm.centred else g
        return float(u @ ((g / at["ln_final.hook_scale"].reshape(-1, 1)).flatten() * norm.weight.detach()))

    embedding = at["blocks.0.hook_resid_pre"]
    if hyper and residual.reduce == "sum":
        embedding = embedding / residual.n
    W_O = [block.attn.W_O.detach() for block in model.blocks]
    z = [at[f"blocks.{layer}.attn.hook_z"] for layer in range(L)]
    return {
        "embed": c(embedding, -1),
        "attn": [c(at[f"blocks.{layer}.hook_attn_out"], 2 * layer) for layer in range(L)],
        "mlp": [c(at[f"blocks.{layer}.hook_mlp_out"], 2 * layer + 1) for layer in range(L)],
        "heads": [[c(z[layer][h] @ W_O[layer][h], 2 * layer) for h in range(len(z[layer]))] for layer in range(L)],
    }


CASES = [(p, {}) for p in ("std-t", "lfa", "dst-kron", "c2", "llama", "kromcanon")] + [
    ("kromhc", {"residual.reduce": "sum"}),
    ("kromhc", {"residual": "hc"}),
    ("lfa", {"readout.norm": "channel"}),
]


@pytest.mark.parametrize(("preset", "overrides"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_contributions_are_those_of_a_plain_loop(preset: str, overrides: dict[str, str]) -> None:
    model, task = awake(preset, **overrides), random_task(3)
    seen = observe(model, task.reads.tokens, task.reads.positions)
    found = contributions(model, seen, directions(model, task.reads.ids, seen.scale))
    for i, (tokens, pair) in enumerate(zip(task.reads.tokens, task.reads.ids, strict=True)):
        for part, expected in plain(model, tokens, pair).items():
            np.testing.assert_allclose(getattr(found, part)[..., i], expected, rtol=0, atol=1e-9, err_msg=part)


def test_total_is_the_models_own_and_not_the_sum() -> None:
    """Else `unexplained` would be 0 whatever is wrong."""
    model, task = awake("lfa"), random_task(4)
    (one,) = decompose(model, task, [Group("h", (Head(1, 3),))])

    def odds(edits: dict[str, Any]) -> np.ndarray:
        rows = [under(model, torch.tensor([t]), edits)[0, -1] for t in task.reads.tokens]
        return np.array([float(r[a] - r[b]) for r, (a, b) in zip(rows, task.reads.ids, strict=True)])

    remove = {"blocks.1.attn.hook_z": lambda z, hook: z * torch.tensor([1.0, 1, 1, 0])[:, None]}
    np.testing.assert_allclose(one.total, odds(remove) - odds({}), atol=1e-9)


def test_sentences_and_nonlinear_outputs_are_refused_in_a_line() -> None:
    net, _ = planted(0.0)
    pair = SentencePair(id="p", good="I see rose", bad="I see Rose", category="c")
    with pytest.raises(InputError, match="whole sentences"):
        decompose(net, sentence_task(SentencePairs("s", (pair,), "here"), net.tokenizer), COPY)
    nonlinear = streamscope.models.build("hdpl", scale="tiny", **{"attention.o": "hdpl"}).eval()
    with pytest.raises(InputError, match="not linear in z"):
        Hydra().check(nonlinear)
