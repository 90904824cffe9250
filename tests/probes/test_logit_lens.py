"""The logit lens against the model's own logits, `layer_logits` and TransformerLens' cache; ranks; a bridge."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import Text, build, load
from streamscope.instruments.table import Table
from streamscope.models import readout
from streamscope.models.hooks import Captures, Query
from streamscope.models.transformer import StreamTransformer
from streamscope.probes import LogitLens
from streamscope.probes.logit_lens.measure import candidates, observed, read
from tests.probes.planted import gpt2_and_bridge, tables_of
from tests.tiny import randomise

PROMPTS = [[0, 5, 9, 9, 200, 31], [0, 7, 8]]


def summary(found: pd.DataFrame) -> Table:
    """The table of layers of `read`."""
    return tables_of(LogitLens(), observed(found))["layers"]


@pytest.fixture(scope="module", params=["std-t", "lfa", "pls", "own norms"])
def model(request: pytest.FixtureRequest) -> StreamTransformer:
    own = {"readout.layer_norms": "own"} if request.param == "own norms" else {}
    return randomise(build("pls" if own else request.param, "tiny", init_std=0.3, **own), std=0.2)


def spread(table: pd.DataFrame, prompt: int, layer: int) -> torch.Tensor:
    """Probabilities [positions, V] from a table that keeps the whole vocabulary."""
    one = table[(table["prompt"] == prompt) & (table["layer"] == layer)]
    return torch.tensor(one.pivot(index="position", columns="id", values="probability").to_numpy())


def test_equals_layer_logits_and_the_models_own(model: StreamTransformer) -> None:
    """Whole distributions, of every layer: those of `layer_logits`; of the last: of the model's output."""
    table = candidates(model, LogitLens(k=256), PROMPTS)
    for i, ids in enumerate(PROMPTS):
        tokens = torch.tensor([ids])
        expected = model.layer_logits(tokens, torch.arange(len(ids))[None])[0].double().softmax(-1)
        for layer in range(2):
            torch.testing.assert_close(spread(table, i, layer), expected[:, layer], rtol=0, atol=1e-6)
        with torch.no_grad():
            own = model(tokens)[0].double().softmax(-1)
        torch.testing.assert_close(spread(table, i, 1), own, rtol=0, atol=1e-6)
    if model.config.readout.layer_norms == "own":
        return
    # read with the final norm, from TransformerLens' cache: resid_post -> norm by its definition -> W_U
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor(PROMPTS[:1]))
        x = cache["resid_post", 0][0].double()
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        logits = (x * model.ln_final.weight + model.ln_final.bias) @ model.W_U.double()
    torch.testing.assert_close(spread(table, 0, 0), logits.softmax(-1), rtol=0, atol=1e-5)
    # with the last layer's updates removed, its prediction is that of the layer before
    edits = {f"blocks.1.hook_{part}_out": lambda x, hook: torch.zeros_like(x) for part in ("attn", "mlp")}
    table = candidates(model, LogitLens(k=256), PROMPTS[:1], edits=edits)
    torch.testing.assert_close(spread(table, 0, 0), spread(table, 0, 1), rtol=0, atol=1e-6)


def test_candidates_and_ranks(model: StreamTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top k in order, the next token in or beside them with its rank; the same in chunks of three positions."""
    probe = LogitLens(k=4)
    table = candidates(model, probe, PROMPTS)
    monkeypatch.setattr(readout, "chunk_rows", lambda d_vocab, budget=0: 3)
    pd.testing.assert_frame_equal(table, candidates(model, probe, PROMPTS))
    for i, ids in enumerate(PROMPTS):
        p = model.layer_logits(torch.tensor([ids]), torch.arange(len(ids))[None])[0].double().softmax(-1)
        for (position, layer), one in table[table["prompt"] == i].groupby(["position", "layer"]):
            here, order = p[position, layer], p[position, layer].argsort(descending=True).tolist()
            top = one[one["top"] > 0]
            assert top["id"].tolist() == order[:4]
            assert top["rank"].tolist() == [1, 2, 3, 4]
            np.testing.assert_allclose(one["probability"], here[one["id"].tolist()], atol=1e-6)
            actual = one[one["actual"]]
            if position == len(ids) - 1:
                assert actual.empty and len(one) == 4
            else:
                assert actual["id"].tolist() == [ids[position + 1]]
                assert actual["rank"].item() == order.index(ids[position + 1]) + 1
                assert len(one) == 4 + (actual["rank"].item() > 4)
            assert one["read"].unique().tolist() == [str(ids[position])]


def planted(rows: Any, ids: list[int], pieces: Any = "abcd") -> pd.DataFrame:
    """The table of streams that are the logarithms of known probabilities."""
    captures = Captures({"blocks.0.hook_resid_post": [torch.tensor(rows).log()]}, None)
    query = Query(tokens=[ids], hooks=("blocks.0.hook_resid_post",))
    return read(LogitLens(k=3), captures, query, lambda layer, x: x, lambda ids: [pieces[int(i)] for i in ids], 9)


def test_planted_probabilities_and_ties() -> None:
    """Streams that are the logarithms of known probabilities; equal ones share a rank."""
    rows = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]]
    table = planted(rows, [0, 3, 2])
    first, second, third = (one for _, one in table.groupby("position"))
    assert first["token"].tolist() == ["d", "c", "b"]
    np.testing.assert_allclose(first["probability"], [0.4, 0.3, 0.2], rtol=1e-6)
    assert first["actual"].tolist() == [True, False, False]
    assert second["rank"].tolist()[:3] == [1, 1, 3]
    assert second[second["actual"]]["rank"].item() == 3
    assert third["rank"].tolist() == [1, 1, 1]
    layers = summary(table)
    found = layers.frame.iloc[0]
    assert found["loss"] == pytest.approx(-(np.log(0.4) + np.log(0.2)) / 2, rel=1e-6)
    assert (found["hit"], found["median_rank"], found["positions"], found["n"]) == (0.5, 2.0, 2, 1)
    assert {layers.missing[0, f"loss_{end}"] for end in ("sd", "low", "high")} == {"one independent case"}


def test_summary_is_the_models_loss(model: StreamTransformer) -> None:
    probe = LogitLens(k=1)
    last = summary(candidates(model, probe, PROMPTS)).frame.iloc[-1]
    losses = [model.token_losses(torch.tensor([r[:-1]]), torch.tensor([r[1:]])).sum() for r in PROMPTS]
    assert last["loss"] == pytest.approx(float(sum(losses)) / 7, abs=1e-5)
    assert (last["positions"], last["n"]) == (7, 2)
    assert last["loss_low"] <= last["loss"] <= last["loss_high"]


def test_a_text_given_twice_is_one_independent_text_and_one_that_is_cut_says_so() -> None:
    model, long = load("stories/lfa"), "Once there was a dog . " * 100
    result = LogitLens().measure(model, Text(text=("the cat sat", "she ran", "she ran")))
    assert result.blocks["loss"].units["cluster"].nunique() == 2 and " cut at " not in result.about["title"]
    for most, said in ((20, "20 of {n} tokens (--max-tokens)"), (500, "128 of {n} tokens (the context)")):
        title = LogitLens().measure(model, Text(text=("she ran", long), max_tokens=most)).about["title"]
        assert f"text 2 cut at {said.format(n=len(model.tokenizer.encode(long)))}" in title


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_on_a_bridge() -> None:
    """The last layer is the library's own prediction; layer 0 is ln_f and lm_head of its hidden state."""
    inner, bridge = gpt2_and_bridge()
    tokens = torch.tensor([[3, 4, 90, 2]])
    with torch.no_grad():
        out = inner(tokens, output_hidden_states=True)
        first = inner.lm_head(inner.transformer.ln_f(out.hidden_states[1]))
    table = candidates(bridge, LogitLens(k=100), tokens.tolist())
    for layer, logits in enumerate((first, out.logits)):
        torch.testing.assert_close(spread(table, 0, layer), logits[0].double().softmax(-1), rtol=0, atol=1e-5)
