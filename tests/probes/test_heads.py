"""Head scores on planted heads: by edits of the pattern, and by weights set by hand; a naive reference."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from streamscope.aliases import folder_of
from streamscope.instruments.table import Table
from streamscope.models.hooks import run
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.heads import Heads
from streamscope.probes.heads.measure import SCORES, observed
from streamscope.probes.probe import measure
from streamscope.text.tokenizer import Tokenizer
from tests.probes.planted import even, set_pattern, tables_of

N = 6


def random_ids(d_vocab: int) -> Any:
    """As much of a tokenizer as the probe asks for."""
    return SimpleNamespace(bos_id=0, adds_bos=True, d_vocab=d_vocab)


@pytest.fixture(scope="module")
def model() -> StreamTransformer:
    return build("std-t", "tiny", init_std=0.3)


def summary(rows: pd.DataFrame) -> Table:
    """The table of the rows of `read`."""
    names = [str(i) for i in sorted(rows["prompt"].unique())]
    return tables_of(Heads(), observed(rows, pd.DataFrame({"unit": names, "cluster": names})))["scores"]


def scores(summary: pd.DataFrame, kind: str = "random") -> dict[tuple[str, str], float]:
    return summary[summary["kind"] == kind].set_index(["head", "score"])["mean"].to_dict()


def test_planted_heads(model: StreamTransformer) -> None:
    """Each head of layer 0 looks where one score asks for: that score is 1 and the others are 0."""
    back = [lambda i: i - 1, lambda i: 0, lambda i: i - N or i, lambda i: i - N + 1 or i]  # not at BOS by chance

    def look(pattern: Tensor, hook: Any) -> Tensor:
        """Head h looks from i at position back[h](i) alone, at itself where there is none."""
        keys = [[key if (key := at(i)) >= 0 else i for i in range(pattern.shape[2])] for at in back]
        return one_hot(torch.tensor(keys), pattern.shape[3]).to(pattern).expand_as(pattern).clone()

    edits = {"blocks.0.attn.hook_pattern": look}
    probe = Heads(sequences=3, length=N)
    table = measure(model, probe, [[0, 5, 6, 7, 8], [0, 9, 9, 9]], edits=edits, tokenizer=random_ids(256))
    found = scores(summary(table).frame)
    for (h, own), score in product(enumerate(SCORES), SCORES):
        assert found[f"L0.H{h}", score] == (1.0 if own == score else 0.0), (own, score)
    text = scores(summary(table).frame, "text")
    assert [text[head, score] for head in ("L0.H0", "L0.H1") for score in ("previous", "first")] == [1, 0, 0, 1]
    assert ("L0.H0", "induction") not in text


def test_uniform_head_has_the_uniform_score(model: StreamTransformer) -> None:
    """Σ over i of 1/(i+1), worked out by hand, and equal to the column `uniform`."""
    probe, edits = Heads(sequences=2, length=N), set_pattern(even)
    found = summary(measure(model, probe, [], edits=edits, tokenizer=random_ids(256))).frame
    all_of, second = range(2, 2 * N + 1), range(N + 1, 2 * N + 1)
    for score, over in (("previous", all_of), ("first", all_of), ("duplicate", second), ("induction", second)):
        expected = np.mean([1 / (i + 1) for i in over])
        one = found[found["score"] == score]
        np.testing.assert_allclose(one["mean"], expected, rtol=1e-6)
        np.testing.assert_allclose(one["uniform"], expected, rtol=1e-6)
        np.testing.assert_allclose(one["mean_sd"], 0, atol=1e-7)


def test_heads_with_weights_set_by_hand() -> None:
    """Embeddings are positions only, one-hot; W_K keeps them and W_Q of head h turns position i into what it seeks."""
    model = build("std-t", "tiny", n_layers=1, d_model=64, n_ctx=16)
    seek = [lambda i: i - 1, lambda i: 0, lambda i: i - N, lambda i: i - N + 1]
    q, k = torch.zeros(4, 64, 16), torch.zeros(4, 64, 16)
    for h in range(4):
        k[h, :16] = torch.eye(16)
        for i in range(16):
            q[h, i, max(seek[h](i), 0)] = 20.0
    with torch.no_grad():
        model.embed.weight.zero_()
        model.pos_embed.weight.copy_(torch.eye(16, 64))
        for name, value in (("q", q), ("k", k)):
            weight = getattr(model.blocks[0].attn, name).weight
            weight.copy_(value.transpose(0, 1).flatten(1).mT)
        torch.testing.assert_close(model.blocks[0].attn.W_Q, q)
    probe = Heads(sequences=2, length=N)
    found = scores(summary(measure(model, probe, [], tokenizer=random_ids(256))).frame)
    for h, own in enumerate(SCORES):
        assert found[f"L0.H{h}", own] == pytest.approx(1, abs=1e-4)


def test_equals_a_naive_loop(model: StreamTransformer) -> None:
    """Plain sums over positions of the patterns that `model.patterns` returns."""
    probe = Heads(sequences=2, length=N, seed=3)
    query = probe.plan([[0, 4, 4, 2, 9]], random_ids(256))
    table = probe.read(run(model, query), query)
    for row in table.sample(60, random_state=0).itertuples():
        ids = query.tokens[row.prompt]
        a = model.patterns(torch.tensor([ids]))[0, row.layer, row.index]
        over = range(2, len(ids)) if row.score in ("previous", "first") else range(N + 1, 2 * N + 1)
        key = {"previous": lambda i: i - 1, "first": lambda i: 0, "duplicate": lambda i: i - N}
        picked = [float(a[i, key.get(row.score, lambda i: i - N + 1)(i)]) for i in over]
        assert row.value == pytest.approx(np.mean(picked), abs=1e-6)
        if row.score == "duplicate":
            assert all(ids[i] == ids[i - N] for i in over)
        if row.score == "induction":  # what followed the same token the last time
            assert all(ids[i - N + 1 - 1] == ids[i] for i in over)


def test_sequences_are_random_and_seeded() -> None:
    probe = Heads(sequences=20, length=N)
    query = probe.plan(None, random_ids(30))
    assert query.tokens == probe.plan([], random_ids(30)).tokens
    assert query.tokens != Heads(sequences=20, length=N, seed=1).plan([], random_ids(30)).tokens
    for ids in query.tokens:
        assert ids[0] == 0 and ids[1 : N + 1] == ids[N + 1 :]
        assert len(set(ids)) == N + 1
    assert len({tuple(ids) for ids in query.tokens}) == 20


def test_a_context_below_the_length_of_texts() -> None:
    tokenizer = Tokenizer.load(folder_of("models") / "zoo" / "lfa")
    model = build("std-t", "tiny", n_ctx=20, d_vocab=tokenizer.d_vocab, tokenizer=tokenizer)
    found = Heads(sequences=2, length=N, texts=False).measure(model, progress=iter).table().frame
    assert set(found["kind"]) == {"random"} and found["mean"].notna().all()
