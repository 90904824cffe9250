"""Amplification against softmax(α · scores) written out, on planted attention, against the numbers of DST Table 5."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.observations import each, estimate
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.amplify.measure import amplification, amplify_heads, areas, pattern_sums
from streamscope.models import build, load
from streamscope.models.head_spec import Head
from streamscope.models.hooks import edit
from streamscope.models.layers.positions import alibi_slopes
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.dst.tables import PAPER_ALPHAS, TABLE5
from tests.interventions.passes import captured, losses_alone, under
from tests.probes import planted
from tests.tiny import randomise

TOKENS = torch.randint(1, 200, (3, 20), generator=torch.Generator().manual_seed(0))
GATED = {"attention.gate": "gate", "attention.gate.init": "normal"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("std-t", "lfa", "pls", "hdpl", "kromcanon")},
    "alibi": ("lfa", {"positions": "alibi"}),
    "alibi-gated": ("std-t", {"positions": "alibi", **GATED}),
    "gated-normed": ("lfa", {**GATED, "attention.gate.source": "normed", "attention.gate.shape": "vector"}),
    "partial-rope": ("std-t", {"positions": "rope", "positions.fraction": 0.25}),
}


def make(name: str) -> Any:
    preset, overrides = MODELS[name]
    return randomise(build(preset, "tiny", **overrides).eval(), std=0.2)


def written_out(model: Any, found: dict[str, torch.Tensor], layer: int, alpha: float, heads: list[int]) -> torch.Tensor:
    """softmax(α scores) V in float64, from the model's own q, k (rotated), v."""
    at = f"blocks.{layer}.attn.hook_"
    rotated = "rot_" if f"{at}rot_q" in found else ""
    q, k, v = (found[f"{at}{name}"].double() for name in (f"{rotated}q", f"{rotated}k", "v"))
    z = torch.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        slope = alibi_slopes(4)[h] if model.config.positions.kind == "alibi" else 0.0
        scores = torch.stack([q[b, t, h] @ k[b, s, h] / math.sqrt(8) - slope * (t - s) for s in range(t + 1)])
        z[b, t, h] = (scores * (alpha if h in heads else 1.0)).softmax(0) @ v[b, : t + 1, h]
    return z


@pytest.mark.parametrize("name", MODELS)
def test_fused_is_the_formula_and_the_explicit_path_agrees(name: str) -> None:
    """Statistics of attention are those of the explicit path, losses those of the fused one."""
    model, tokens = make(name), TOKENS[:2, :9]
    gated = model.config.attention.gate is not None
    z = f"blocks.1.attn.hook_z{'_ungated' if gated else ''}"
    names = ["blocks.1.attn.hook_q", "blocks.1.attn.hook_k", "blocks.1.attn.hook_v", z]
    names += ["blocks.1.attn.hook_gate"] if gated else []
    names += ["blocks.1.attn.hook_rot_q", "blocks.1.attn.hook_rot_k"] if model.config.positions.rotates else []
    plain = captured(model, tokens, names)
    for alpha, heads in ((16.0, [0, 1, 2, 3]), (0.5, [1, 3])):
        edits = amplification(model, alpha, [Head(1, h) for h in heads])
        expected = written_out(model, plain, 1, alpha, heads)
        with edit(model, edits):
            found = captured(model, tokens, names)
            with model.explicit_attention():
                explicit = captured(model, tokens, names)
        for one, rounding in ((found, 4e-6), (explicit, 1e-5)):
            error = (one[z].double() - expected).abs().max()
            assert error <= rounding * max(1.0, float(plain[z].abs().max())), (alpha, error)
        assert (found[z] - plain[z]).abs().max() > 1e-4
        if gated:
            assert torch.equal(found["blocks.1.attn.hook_gate"], plain["blocks.1.attn.hook_gate"])
        rest = [h for h in range(4) if h not in heads]
        torch.testing.assert_close(found[z][:, :, rest], plain[z][:, :, rest], rtol=0, atol=1e-6)
    assert torch.equal(under(model, tokens, amplification(model, 1.0)), under(model, tokens, {})), "bit for bit"


def test_planted_attention_sharpens_as_on_paper() -> None:
    """Weights to the powers: 3/4 and 1/4 become 9/10 and 1/10 at α = 2, 4/5 and 1/5 become 16/17 and 1/17."""
    model = planted.model()
    prompt = planted.prompt(0, True)
    ids = model.tokenizer.encode(prompt.text)
    first, last, query = ids.index(model.to_single_token("key")), ids.index(model.to_single_token("box")), 10
    for alpha, mixture, leaning in ((1.0, 3 / 4, 4 / 5), (2.0, 9 / 10, 16 / 17), (3.0, 27 / 28, 64 / 65)):
        with edit(model, amplification(model, alpha)):
            A = model.patterns(torch.tensor([ids]))[0, 0, :, query]
        nouns = A[:, [first, last]] / A[:, [first, last]].sum(-1, keepdim=True)
        assert nouns[2, 1].item() == pytest.approx(mixture, abs=1e-4)
        assert nouns[3, 0].item() == pytest.approx(leaning, abs=1e-4)
        assert A[4, : query + 1].tolist() == pytest.approx([1 / (query + 1)] * (query + 1), abs=1e-6)
    found, _ = pattern_sums(model, [ids], [1.0, 2.0])
    constant = sum(math.log(t + 1) for t in range(1, len(ids)))
    assert found["entropy"][:, 0, 4, 0] == pytest.approx([constant, constant], rel=1e-5)
    assert (found["unchanged"][:, 0] == len(ids) - 1).all()  # in the first layer the order of scores stays


def test_pattern_sums_as_in_the_loop() -> None:
    model, rows = make("lfa"), [[0, 5, 9, 2, 30], [0], [0, 7, 8]]
    found, queries = pattern_sums(model, rows, [4.0], chunk=1)
    assert queries.tolist() == [4, 2]
    for d, row in enumerate([rows[0], rows[2]]):
        plain = model.patterns(torch.tensor([row]))[0].double()
        with edit(model, amplification(model, 4.0)):
            A = model.patterns(torch.tensor([row]))[0].double()
        for layer, h in np.ndindex(2, 4):
            entropy = peak = same = 0.0
            for t in range(1, len(row)):
                p = A[layer, h, t, : t + 1].tolist()
                entropy -= sum(x * math.log(x) for x in p if x > 0)
                peak += max(p)
                same += p.index(max(p)) == plain[layer, h, t].argmax().item()
            at = (0, layer, h, d)
            sums = [found[name][at] for name in ("entropy", "peak", "unchanged")]
            assert sums == pytest.approx((entropy, peak, same), abs=1e-5)
    with pytest.raises(InputError, match="two tokens"):
        pattern_sums(model, [[0]], [4.0])


def area_table(alphas: Sequence[float], losses: np.ndarray, tokens: np.ndarray) -> pd.DataFrame:
    """Areas of losses [alphas, documents], by kind and axis."""
    units = pd.DataFrame({"unit": range(len(tokens)), "cluster": range(len(tokens))})
    block = areas(alphas, losses, tokens, units)
    return estimate(block, each("area", block.cells, null=None)).frame.set_index(["kind", "axis"])


def test_areas_of_the_paper() -> None:
    """SPEC §7.3: what each reading gives for DST Table 5, and that none gives 99.8, 97.2, 107.4."""
    expected = {
        ("raw", "linear"): (30.81, 30.87, 33.44, 33.72),
        ("raw", "log2"): (7.91, 7.98, 8.49, 8.57),
        ("raw", "ln"): (5.48, 5.53, 5.88, None),
        ("excess", "linear"): (3.81, 3.27, 5.39, 5.52),
        ("relative", "linear"): (211.7, 177.7, 288.0, 293.6),
        ("weighted", "linear"): (64.7, 64.6, 70.6, None),
        ("perplexity", "linear"): (117.6, 117.9, 140.8, None),
        ("perplexity", "log2"): (29.1, 29.6, 33.9, None),
    }
    tokens = np.full(9, 10.0)
    for i, losses in enumerate(TABLE5.values()):
        table = area_table(PAPER_ALPHAS, np.outer(losses, tokens), tokens)
        for key, values in expected.items():
            if values[i] is not None:
                assert table.loc[key, "value"] == pytest.approx(values[i], abs=0.06 if values[i] > 20 else 0.006), key
        assert not any(abs(table["value"] - x).min() < 0.05 for x in (99.8, 97.2, 107.4))
    found = [100 * (losses[-1] / losses[0] - 1) for losses in TABLE5.values()]
    assert [round(x, 1) for x in found] == [20.0, 16.3, 27.3, 27.1]


@pytest.mark.slow
def test_areas_have_the_intervals_of_their_documents() -> None:
    """raw and excess are linear: the interval is that of the per-document areas; perplexity's covers the truth."""
    rng = np.random.default_rng(0)
    x, hits = [1.0, 2.0, 4.0], 0
    truth = float(np.trapezoid(np.exp([1.0, 1.2, 1.5]), x))
    for _ in range(150):
        tokens = rng.integers(20, 200, 40).astype(float)
        per_token = np.array([[1.0], [1.2], [1.5]]) + rng.normal(0, 0.2, (1, 40)) + rng.normal(0, 0.05, (3, 40))
        row = area_table(x, per_token * tokens, tokens).loc[("perplexity", "linear")]
        hits += row["low"] <= truth <= row["high"]
    assert 0.9 <= hits / 150 <= 0.99


def test_the_curve(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    alphas, heads = [1.0, 8.0], [Head(1, 0), Head(1, 2)]
    result = Amplify(alpha=(8.0,), heads=("L1.H0", "L1.H2"), prompt="", text="").measure(
        model, Documents(max_documents=5)
    )
    assert list(result.tables) == ["amplify", "areas", "heads"]
    table, found = result.table().frame.set_index("alpha"), result.table()
    with model.explicit_attention():
        sums = [losses_alone(model, shards, edits, 5)[0] for edits in ({}, amplification(model, 8.0, heads))]
    row = table.loc[8.0]
    assert row["percent"] == pytest.approx(100 * (sums[1].sum() / sums[0].sum() - 1), abs=1e-3)
    assert row["delta"] == pytest.approx((sums[1] - sums[0]).sum() / row["tokens"], abs=1e-5)
    assert np.isnan(row["unchanged"]), "only the last layer is amplified"
    assert "by construction" in found.missing[1, "unchanged"]
    assert table.loc[1.0, "delta"] == 0 and "baseline" in found.missing[0, "delta_p"]
    of_heads = result.table("heads").frame.set_index(["alpha", "head"])
    both = [of_heads.loc[(a, "L1.H1"), "entropy"] for a in alphas]
    assert both[0] == pytest.approx(both[1], abs=1e-6) and len(of_heads) == 16
    assert of_heads["unchanged"].isna().all(), "up to the amplified layer orders stay by construction"
    mean = of_heads.loc[8.0]["entropy"].mean()
    assert row["entropy"] == pytest.approx(mean, abs=1e-9) and row["entropy"] < table.loc[1.0, "entropy"]
    ends = {name: result.blocks[name].measure.limits for name in ("peak", "unchanged", "entropy")}
    assert ends == {"peak": (0, 1), "unchanged": (0, 1), "entropy": (0, np.inf)}, "where their intervals end"


def test_factors_are_above_0_and_1_is_among_them() -> None:
    with pytest.raises(InputError, match="above 0"):
        amplify_heads([Head(0, 0)], float("nan"))
    assert amplify_heads([], 2) == {} and Amplify(alpha=(4.0, 2.0, 4.0)).alphas == [1.0, 2.0, 4.0]
