"""HSS and entropy where they follow on paper, against naive loops, streamed, and on a bridge."""

import re
from math import lgamma, log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from streamscope import Documents, InputError, build
from streamscope.aliases import folder_of
from streamscope.instruments.observations import compare
from streamscope.instruments.table import with_reasons
from streamscope.models.hooks import Captures, run
from streamscope.models.transformer import StreamTransformer
from streamscope.probes import Specialization
from streamscope.probes.roles import sinks_sentence
from streamscope.probes.specialization import measure
from streamscope.probes.specialization.measure import Sums, distances, observed, stream
from streamscope.text.tokenizer import Tokenizer
from tests.probes.planted import even, gpt2_and_bridge, tables_of

T = 8
SAMPLES = torch.randint(1, 256, (23, T + 3), generator=torch.Generator().manual_seed(0)).tolist()


def summary(sums: Sums) -> pd.DataFrame:
    """Both tables in one, a row per `measure` (HSS, entropy) and scope: value, its interval, undefined."""
    made = tables_of(Specialization(), observed(sums))
    parts = [with_reasons(made[name.lower()]).assign(measure=name) for name in ("HSS", "entropy")]
    renamed = [part.rename(columns=lambda column: re.sub("^(hss|entropy)", "value", column)) for part in parts]
    return pd.concat(renamed, ignore_index=True)


def sums_of(captures: Captures) -> Sums:
    sums = Sums(10)
    sums.add(captures)
    return sums


def summed(captures: Captures) -> pd.DataFrame:
    return summary(sums_of(captures))


EVEN, SELF, SINK = even(T), torch.eye(T), torch.eye(T)[torch.zeros(T, dtype=torch.long)]


@pytest.fixture(scope="module")
def model() -> StreamTransformer:
    return build("std-t", "tiny", init_std=0.5)


def values(summary: pd.DataFrame, measured: str) -> dict[str, float]:
    one = summary[summary["measure"] == measured]
    return dict(zip(one["scope"], one["value"], strict=True))


def shown(*heads: Tensor) -> Captures:
    """Captures of one layer whose heads have these patterns, in each of three samples."""
    return Captures({"blocks.0.attn.hook_pattern": [torch.stack(heads)] * 3}, None)


def hss(patterns: Tensor) -> float:
    """The mean distance over pairs of different heads (DST Eq. 18)."""
    found = distances(patterns.double().flatten(1))
    i, j = torch.triu_indices(len(found), len(found), 1)
    return float(found[i, j].mean())


def test_hss_on_paper() -> None:
    """Identical patterns 0, orthogonal ones 1, two of three alike 2/3, an angle of 60 degrees 1/2."""
    a, b = torch.eye(4), torch.eye(4).roll(1, 0)
    assert hss(torch.stack([a, a, 3 * a])) == pytest.approx(0, abs=1e-12)
    assert hss(torch.stack([a, b, a.roll(2, 0)])) == 1
    assert hss(torch.stack([a, a, b])) == pytest.approx(2 / 3)
    assert hss(torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])) == pytest.approx(0.5)
    with pytest.raises(InputError, match="zero everywhere"):
        hss(torch.zeros(2, 3, 3))
    # two heads that swap their patterns from sample to sample look alike on average (the formula averages first)
    swapped = [torch.stack([a, b]), torch.stack([b, a])]
    table = summed(Captures({"blocks.0.attn.hook_pattern": swapped}, None))
    assert values(table, "HSS")["L0"] == pytest.approx(0, abs=1e-12)
    # to itself and to the one before share only the first row: the ceiling of one-hot causal patterns
    before = torch.stack([SELF[max(i - 1, 0)] for i in range(T)])
    assert values(summed(shown(SELF, before)), "HSS")["L0"] == pytest.approx(1 - 1 / T)


def test_hss_and_entropy_of_planted_heads() -> None:
    """To itself, evenly, to two keys: entropy 0, the mean of ln(q + 1), ln 2 but for the first query. HSS of the first
    two is 1 − sqrt(Σ_q 1/(q + 1) / T)."""
    two = torch.zeros(T, T)
    two[0, 0] = 1
    two[1:, 0] = two[torch.arange(1, T), torch.arange(1, T)] = 0.5
    found = values(summed(shown(EVEN, SELF, two)), "entropy")
    assert found["L0.H0"] == pytest.approx(lgamma(T + 1) / T, rel=1e-6)
    assert found["L0.H1"] == 0
    assert found["L0.H2"] == pytest.approx(log(2) * (T - 1) / T, rel=1e-6)
    assert found["all"] == pytest.approx((found["L0.H0"] + found["L0.H2"]) / 3)
    h = sum(1 / (q + 1) for q in range(T))
    assert values(summed(shown(SELF, EVEN)), "HSS")["L0"] == pytest.approx(1 - (h / T) ** 0.5, rel=1e-6)


def test_bos_sinks_are_counted_and_left_out_of_one_scope() -> None:
    """Two heads attend to BOS alone: they pull HSS down, and the scope without sinks is that of the other two. A model
    without sinks has the same scopes, so that the control's HSS can be subtracted."""
    with_sinks = summed(shown(SELF, SINK, EVEN, 0.95 * SINK + 0.05 * SELF))
    others = values(summed(shown(SELF, EVEN)), "HSS")
    assert values(with_sinks, "HSS")["without sinks"] == pytest.approx(others["all"], rel=1e-6)
    assert values(with_sinks, "HSS")["all"] != pytest.approx(others["all"], rel=0.05)
    assert others["without sinks"] == others["all"], "no head is a sink"
    alone = summed(shown(SELF, SINK)).set_index(["measure", "scope"]).loc[("HSS", "without sinks")]
    assert np.isnan(alone["value"]) and "fewer than two heads are not BOS sinks" in alone["undefined"]
    assert sinks_sentence(["L0.H1", "L0.H3"], 4) == "; 2 of 4 heads are BOS sinks (at least 90% of attention to BOS)"
    assert sinks_sentence([], 4) == ""
    sums = sums_of(shown(SELF, SINK, 0.89 * SINK + 0.11 * SELF))
    assert observed(sums, [[0]] * 3).about["sinks"] == ["L0.H1"], "the attention of BOS to itself does not count"
    assert observed(sums, [[0]] * 3, has_bos=False).about["sinks"] == [], "the first token is a word then"
    one, other = (observed(sums_of(shown(SELF, EVEN, last)), [[0]] * 3) for last in (SINK, EVEN))
    found = compare(one.blocks["hss"], other.blocks["hss"], one.contrasts["hss"], other.contrasts["hss"])
    rows = found.where(quantity="hss_difference").frame["value"]
    assert len(rows) == 4 and rows.notna().all()


def test_edited_model_with_identical_heads(model: StreamTransformer) -> None:
    """All heads of layer 0 made equal: HSS 0 there, and elsewhere what it was."""
    probe = Specialization(length=T)
    edits = {"blocks.0.attn.hook_pattern": lambda a, hook: a[:, :1].expand_as(a).clone()}
    edits |= {"blocks.0.attn.hook_z": lambda z, hook: torch.zeros_like(z)}
    plain = {"blocks.0.attn.hook_z": lambda z, hook: torch.zeros_like(z)}
    got = values(summary(stream(model, probe, SAMPLES, edits=edits)), "HSS")
    before = values(summary(stream(model, probe, SAMPLES, edits=plain)), "HSS")
    assert got["L0"] == pytest.approx(0, abs=1e-6)
    assert before["L0"] > 0.01
    assert got["L1"] == pytest.approx(before["L1"], abs=1e-6)
    assert got["layers"] == pytest.approx((got["L0"] + got["L1"]) / 2)


def naive(patterns: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """(HSS, entropy) by scope of patterns [samples, L, H, T, T] without sinks: loops and the formulas as printed."""
    n, layers, heads = patterns.shape[:3]
    a = {(layer, h): patterns[:, layer, h].double().mean(0).flatten() for layer in range(layers) for h in range(heads)}

    def score(keys: list[tuple[int, int]]) -> float:
        terms = [1 - float(a[i] @ a[j] / (a[i].norm() * a[j].norm())) for i in keys for j in keys if i != j]
        return sum(terms) / (len(keys) * (len(keys) - 1))

    found = {f"L{layer}": score([(layer, h) for h in range(heads)]) for layer in range(layers)}
    found |= {"layers": sum(found.values()) / layers, "all": score(list(a)), "without sinks": score(list(a))}
    entropy = {}
    for layer in range(layers):
        for h in range(heads):
            rows = [r[r > 0].double() for s in range(n) for r in patterns[s, layer, h]]
            entropy[f"L{layer}.H{h}"] = sum(float(-(r * r.log()).sum()) for r in rows) / len(rows)
    return found, entropy


def test_equals_naive_loops_and_jackknife(model: StreamTransformer) -> None:
    probe = Specialization(length=T, blocks=4)
    found = summary(stream(model, probe, SAMPLES))
    patterns = model.patterns(torch.tensor(SAMPLES)[:, :T])
    expected, entropy = naive(patterns)
    assert values(found, "HSS") == pytest.approx(expected, abs=1e-6)
    assert {k: v for k, v in values(found, "entropy").items() if "H" in k} == pytest.approx(entropy, abs=1e-5)
    left = [naive(patterns[torch.arange(23) % 4 != g])[0]["all"] for g in range(4)]
    se = np.sqrt(3 / 4 * np.square(np.array(left) - np.mean(left)).sum())
    row = found[(found["measure"] == "HSS") & (found["scope"] == "all")].iloc[0]
    spread = np.exp(3.182446 * se / row["value"])  # of four blocks, on the logarithmic scale: never below 0
    assert (row["value_low"], row["value_high"]) == pytest.approx(
        (row["value"] / spread, row["value"] * spread), rel=1e-3
    )
    assert (row["n"], row["blocks"]) == (23, 4)


def test_stream_holds_few_samples(model: StreamTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Specialization(length=T, blocks=5)
    whole = summary(stream(model, probe, SAMPLES))
    monkeypatch.setattr(measure, "CHUNK_NUMBERS", 3 * 2 * 4 * T * T)
    sizes, chunk_run = list[int](), lambda model, query, edits: sizes.append(len(query.tokens)) or run(model, query)
    monkeypatch.setattr(measure, "run", chunk_run)
    streamed = summary(stream(model, probe, (row for row in [[1, 2], *SAMPLES])))
    assert sizes == [3] * 7 + [2]
    pd.testing.assert_frame_equal(whole, streamed, atol=1e-6)


def test_one_head() -> None:
    alone = summed(Captures({f"blocks.{n}.attn.hook_pattern": [torch.eye(T)[None]] * 2 for n in range(2)}, None))
    alone = alone.set_index(["measure", "scope"])
    assert np.isnan(alone.loc[("HSS", "layers"), "value"])
    assert "no other" in alone.loc[("HSS", "layers"), "undefined"]
    assert alone.loc[("HSS", "all"), "value"] == pytest.approx(0, abs=1e-12)


def test_windows_of_one_document_are_one_independent_case(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_of("models") / "zoo" / "lfa")
    model = build("std-t", "tiny", init_std=0.5, d_vocab=tokenizer.d_vocab, tokenizer=tokenizer)
    texts = ["The cat saw a dog and ran. " * 40, "A bird sang to us. " * 50]
    for n in (1, 2):
        path = tmp_path / f"{n}.txt"
        path.write_text("\n<|endoftext|>\n".join(texts[:n]))
        found = Specialization(length=T, blocks=5).measure(model, Documents(str(path)), progress=iter)
        hss = found.table("hss")
        assert hss.frame["blocks"].eq(5).all() and hss.frame["hss"].notna().all()
        assert found.blocks["hss"].units["cluster"].nunique() == n and hss.frame["hss_low"].isna().all() == (n == 1)
        assert (n == 1) == ("one independent case" in hss.missing.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_on_a_bridge() -> None:
    """The same as from the attentions that the library itself returns."""
    inner, bridge = gpt2_and_bridge(256, of_a_copy=True)
    with torch.no_grad():
        attentions = inner(torch.tensor(SAMPLES)[:, :T], output_attentions=True).attentions
    probe = Specialization(length=T)
    got = values(summary(stream(bridge, probe, SAMPLES)), "HSS")
    assert got == pytest.approx(naive(torch.stack(list(attentions), 1))[0], abs=1e-6)
