"""What predictions need: a model that reads one token, a head that looks a known way back, and plain loops."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import Tokens, load
from streamscope.features import NeededContext
from streamscope.features.needed_context.measure import bins_of, group_cells, pair_contrasts
from streamscope.instruments.observations import Measure, Observations, estimate
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import pack
from tests.tiny import refused, untrained

LEAST = 8


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained PLS, whose layers disagree more than those of a trained one."""
    return untrained("pls", tiny_run, tmp_path_factory.mktemp("runs") / "pls")


def data(corpus: tuple[Path, Path]) -> Tokens:
    return Tokens(data=str(corpus[1]), stride=0, max_tokens=160)


def said(model: Any, ids: list[int]) -> list[int]:
    """What every layer predicts behind the last of the tokens."""
    return model.layer_logits(torch.tensor([ids]))[0, -1].argmax(-1).tolist()


def test_a_model_that_reads_one_token_keeps_all(run: Path, corpus: tuple[Path, Path]) -> None:
    """Attention writes nothing: the last token alone has it say the same, at any depth, and no group differs."""
    model = load(run)
    with torch.no_grad():
        for block in model.blocks:
            for weights in block.attn.o.parameters():
                weights.zero_()
    result = NeededContext(windows=(1, 3), least=LEAST).measure(model, data(corpus))
    table, pair_cells = result.table().frame, result.table("pairs").frame
    assert (table["kept"] == 1).all() and (table["beyond"].abs() < 1e-12).all()
    assert (pair_cells[["kept", "beyond"]].abs() < 1e-12).all().all()
    assert result.table().missing[0, "kept_low"].startswith("the same in every")


def test_numbers_are_those_of_plain_loops(run: Path, corpus: tuple[Path, Path]) -> None:
    model, windows, depths = load(run), (1, 4, LEAST), ("0", "1-2", "0-2")
    result = NeededContext(windows=windows, depths=depths, least=LEAST).measure(model, data(corpus))
    table = result.table().frame.set_index(["depths", "window"])
    shards, left, rows = pack(open_corpus(str(corpus[1])), model.tokenizer), 160, []
    for d in range(shards.n_documents):
        ids = shards.document(d)[: min(model.config.n_ctx, max(left, 0)) + 1].tolist()
        left -= len(ids) - 1
        for q in range(LEAST, len(ids) - 1):
            whole = said(model, ids[: q + 1])
            same = [layer == whole[-1] for layer in whole]
            last = max([k + 1 for k, hit in enumerate(same) if not hit], default=0)
            k_star = len(same) if last == len(same) - 1 else last
            logits = model(torch.tensor([ids[: q + 1]]))[0, -1].detach()
            kept = [said(model, [ids[0], *ids[q + 1 - w : q + 1]])[-1] == whole[-1] for w in windows]
            rows.append((k_star, float(logits.softmax(-1).max()), kept))
    k_star = np.array([row[0] for row in rows])
    bins = bins_of(np.array([row[1] for row in rows], np.float32))
    groups = {"0": k_star == 0, "1-2": (k_star >= 1) & (k_star <= 2), "0-2": k_star <= 2}
    assert 0 < groups["0"].sum() < len(rows)
    for (name, inside), (i, window) in product(groups.items(), enumerate(windows)):
        kept = np.array([row[2][i] for row in rows], float)
        over = kept - np.array([kept[bins == b].mean() for b in bins])
        row = table.loc[(name, window)]
        assert row["tokens"] == inside.sum()
        assert row["kept"] == pytest.approx(kept[inside].mean())
        assert row["beyond"] == pytest.approx(over[inside].mean(), abs=2e-3)  # ties at the edges of bins
    pair_cells = result.table("pairs").frame.set_index(["depths", "other", "window"])
    assert len(pair_cells) == 9
    for (one, other, window), row in pair_cells.iterrows():
        for name in ("kept", "beyond"):
            assert row[name] == pytest.approx(table.loc[(one, window), name] - table.loc[(other, window), name])


def test_intervals_of_pairs_hold_what_words_decide() -> None:
    """Whether a prediction stays is decided by its word alone, and words by chance fall into one group or the other:
    no true difference. Documents alone would find one in a third of the cases."""
    wrong, alone = 0, 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        document, word = np.repeat(np.arange(30), 20), rng.integers(25, size=600)
        first = (rng.random(25) < 0.5)[word]
        y = (rng.random(25) < 0.5)[word].astype(float)
        if not 0 < first.sum() < 600 or np.ptp(y) == 0:
            continue
        names, of = np.unique(np.stack([document, word], 1), axis=0, return_inverse=True)
        cells, total, n = group_cells({4: y}, {"a": first, "b": ~first}, of.ravel())
        p = []
        for clusters in ([tuple(one) for one in names.tolist()], names[:, 0].tolist()):
            units = pd.DataFrame({"unit": range(len(names)), "cluster": clusters})
            one = Observations(
                measure=Measure(name="kept", unit="share", resolution=1e-9), cells=cells, units=units, total=total,
                size=n,
            )  # fmt: skip
            found = estimate(one, pair_contrasts("kept", one)).frame
            assert found["value"].iloc[0] == pytest.approx(y[first].mean() - y[~first].mean())
            p.append(found["p"].iloc[0])
        wrong, alone = wrong + (p[0] < 0.05), alone + (p[1] < 0.05)
    assert wrong <= 14 < 40 < alone  # at 5 % of 120 that many or more have a probability of .002


def test_bins_hold_as_many_and_equal_ones_together() -> None:
    rng = np.random.default_rng(0)
    assert np.bincount(bins_of(rng.random(1000))).tolist() == [100] * 10
    assert bins_of(np.full(5, 0.5)).tolist() == [0] * 5


def test_groups_are_the_papers_and_bad_input_is_one_line(run: Path, corpus: tuple[Path, Path]) -> None:
    small: dict[str, Any] = {"windows": (1, 4), "least": LEAST}
    table = NeededContext(**small).measure(load(run), data(corpus)).table().frame
    assert set(table["depths"]) <= {"early", "middle", "late"}
    for how, message in (({"windows": (16,), "least": 8}, "at most --least 8"),
                         (small | {"depths": ("2-1",)}, "give K or K-K")):  # fmt: skip
        with refused(message):
            NeededContext(**how).measure(load(run), data(corpus))
