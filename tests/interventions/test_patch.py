"""Pairs of prompts, the table and the command of `interventions.patch`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.observations import estimate
from streamscope.instruments.open_data import given_prompts
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.table import Table
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.activations import PatchResults, plan, spots
from streamscope.interventions.patch.measure import add_blocks, cell_labels, errors, tables
from streamscope.interventions.patch.pairs import PLACES, PatchPair, by_token, choose_pairs, make_pairs, own_pair
from streamscope.models import load
from tests.instruments.estimates import mean
from tests.interventions.swapped import PAIRS, make
from tests.probes import planted


def swept(cells: list, exact: np.ndarray, guessed: np.ndarray | None) -> PatchResults:
    zero = np.zeros(exact.shape[1])
    return PatchResults("denoise", zero, zero, exact, guessed, [cell_labels(c, "denoise") for c in cells])


def table_of(one: PatchResults, pairs: list[PatchPair], threshold: float) -> Table:
    """The table of a sweep that was made by hand."""
    seen = InstrumentData({}, {}, {"title": "by hand"}, extra=[one])
    add_blocks(seen, "effect", "recovery", [one], pairs, threshold, "hook")
    found = {name: estimate(block, seen.contrasts[name]) for name, block in seen.blocks.items()}
    return tables(Patch(threshold=threshold), seen, found)["patches"]


def test_error_table() -> None:
    model = make("std-t")
    cells = plan(model, PAIRS, spots(model, ["z", "mlp_out"]))
    exact = np.random.default_rng(0).normal(size=(len(cells), 2))
    table = errors(swept(cells, exact, exact * 2)).set_index("hook")
    assert table["correlation"].tolist() == pytest.approx([1, 1])
    at = [c for c, cell in enumerate(cells) if cell.spot.short == "z"]
    assert table.loc["z", "mean_abs"] == pytest.approx(np.abs(exact[at]).mean())
    assert table.loc["z", "max_abs"] == pytest.approx(np.abs(exact[at]).max())
    flat = errors(swept(cells, exact * 0, exact))
    assert flat["correlation"].isna().all() and flat["undefined"].str.contains("does not vary").all()


@pytest.mark.parametrize("contrast", ["corrupt", "noun", "order"])
def test_pairs_differ_where_they_should(contrast: Any) -> None:
    model = load("models/zoo/lfa")
    suite = load_suite("competing") if contrast == "noun" else load_suite("stories", n=150)
    aligned = align(suite, model.tokenizer, model.config.n_ctx)
    found = make_pairs(aligned, model.tokenizer, contrast)
    prompts = {p.id: p for p in aligned.prompts} | {p.pair: p for p in aligned.prompts if p.order == "target_first"}
    unit = len(aligned.prompts) if contrast != "order" else len(aligned.pairs())
    assert len(found.pairs) + len(found.filtered) == unit and len(found.pairs) >= 4
    for pair in found.pairs:
        prompt = prompts[pair.id]
        text, other = (model.tokenizer.decode(list(ids)) for ids in (pair.clean, pair.corrupt))
        assert text == prompt.text and text != other and len(pair.clean) == len(pair.corrupt)
        assert sorted(p for at in pair.places.values() for p in at) == list(range(len(pair.clean)))
        assert set(pair.places) <= set(PLACES) and pair.places["last"] == (pair.last,)
        assert pair.answers == (model.tokenizer.encode(text + prompt.coherent)[len(pair.clean)],)
        target, rival = (prompt.text[slice(*prompt.roles[role])] for role in ("target", "distractor"))
        differ = {name for name, at in pair.places.items() if any(pair.clean[p] != pair.corrupt[p] for p in at)}
        if contrast == "noun":
            start, end = prompt.roles["target"]
            assert differ == {"target"} and other.startswith(text[:start]) and other.endswith(text[end:])
        elif contrast == "order":
            articles = {"before", "between"}  # a and an
            assert differ - articles == {"first noun", "second noun"} and prompt.order == "target_first"
        else:
            assert differ <= {"after nouns", "query", "last"} and target in other and rival in other
            assert pair.foils == (model.tokenizer.encode(text + prompt.incoherent)[len(pair.clean)],)
    some = choose_pairs(found, 2)
    assert 0 < len(some.pairs) <= 4 and {p.cluster for p in some.pairs} < {p.cluster for p in found.pairs}


def test_pairs_of_your_own() -> None:
    tokenizer = planted.tokenizer()
    pair = own_pair(tokenizer, "Tim took a key", "Tim took a box", " and", " .")
    assert [tokenizer.pieces([i])[0].strip() for i in (*pair.answers, *pair.foils)] == ["and", "."]
    assert list(pair.places) == ["0 BOS", "1 Tim", "2 took", "3 a", "4 key |box"]
    for corrupt, answer, foil, line in (
        ("Tim took", " and", " .", r"the clean text has \d+ tokens, the corrupted \d+; make them equal"),
        ("Tim took a box", " and", " and", "share a token"),
        ("Tim took a box", "", " .", "--answer"),
        ("Tim took a box", " with", "and", "--foil: 'and' would run on from 'key': begin it with a space, ' and'"),
    ):
        with pytest.raises(InputError, match=line):
            own_pair(tokenizer, "Tim took a key", corrupt, answer, foil)
    short = PatchPair(id="a", cluster="a", clean=(0, 1), corrupt=(0, 2), answers=(1,), foils=(2,))
    with pytest.raises(InputError, match="one length"):
        by_token([pair, short], tokenizer)
    assert list(by_token([short, short], tokenizer)[0].places) == ["0", "1"]


def test_recovery_is_clustered_and_undefined_where_the_runs_agree() -> None:
    pairs = [
        PatchPair(id=str(i), cluster=str(i // 2), clean=(0, 1), corrupt=(0, 2), answers=(1,), foils=(2,))
        for i in range(6)
    ]
    model = make("std-t")
    (cell,) = plan(model, pairs, spots(model, ["mlp_out"]), "all", [0])
    clean, corrupt = np.array([2.0, 3, 1, 4, 0.2, 2]), np.array([0.0, 1, -1, 0, 0, 0.5])
    patched = np.array([1.0, 2.5, 0.5, 1, 9, 1])
    effect, labels = patched - corrupt, [cell_labels(cell, "denoise")]
    by_hand = PatchResults("denoise", clean, corrupt, patched[None], effect[None], labels)
    row = table_of(by_hand, pairs, 0.5).frame.iloc[0]
    assert (row["n"], row["defined"], row["clusters"]) == (6, 5, 3)
    differ = np.abs(clean - corrupt) >= 0.5
    for name, values, clusters in (
        ("recovery", (effect / (clean - corrupt))[differ], list("00112")), ("effect", effect, list("001122")),
    ):  # fmt: skip
        expected = mean(values, clusters)
        found = row[[name, f"{name}_low", f"{name}_high"]].tolist()
        assert found == pytest.approx([expected.mean, expected.low, expected.high])
    assert row["attributed"] == pytest.approx(row["recovery"])
    table = table_of(by_hand, pairs, 50.0)
    assert np.isnan(table.frame["recovery"][0]) and table.frame["defined"][0] == 0
    assert "differs by 50 nats" in table.missing[0, "recovery"]


def test_the_title_says_which_token_of_a_longer_answer_counts() -> None:
    """`--answer " electrician"` measured " e" and the title said electrician."""
    model, words = load("stories/gpt2"), {"answer": " electrician", "foil": " dog"}
    first = model.tokenizer.pieces([model.tokenizer.encode("The cat saw the electrician")[5]])[0]
    assert first != words["answer"]
    how = Patch(clean="The cat saw the", corrupt="The dog saw the", **words, hooks=("resid_pre",), layers=("0",))
    title = how.measure(model).about["title"]
    assert f"one pair, {first!r}, the first token of ' electrician', against ' dog':" in title
    turned = replace(how, answer=" dog", foil=" electrician").measure(model).about["title"]
    assert f"' dog' against {first!r}, the first token of ' electrician': log-odds" in turned
    how = Patch(contrast="order", pairs=4, hooks=("resid_pre",), layers=("0",))
    suite = planted.suite(6)
    long = [replace(p, coherent=f"{p.coherent} box") if p.pair in ("p0", "p1") else p for p in suite.prompts]
    net = planted.model()
    title = how.measure(net, given_prompts(replace(suite, prompts=tuple(long)), net)).about["title"]
    assert "of planted by order, " in title and "by the first token of a longer answer or foil" in title
