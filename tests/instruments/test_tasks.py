"""Task suites: the bundled data and its card, the two rules against plain implementations, what cannot be scored."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.instruments.data import Tasks
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts import TASKS, load_suite
from streamscope.instruments.prompts.loaders import SentencePair, SentencePairs, winobias_pairs, wsc273_pairs
from streamscope.instruments.prompts.suite import Prompt, Suite, units
from streamscope.instruments.prompts.tasks import (
    FIRST,
    LONG,
    MERGED,
    NONE,
    SAME,
    Task,
    load_task,
    load_tasks,
    sentence_task,
    token_task,
)
from streamscope.interventions.observe import answer_log_probs
from streamscope.models.checkpoint import load
from streamscope.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.load(ROOT / "models" / "zoo" / "lfa")


@pytest.fixture(scope="module")
def model() -> Any:
    return streamscope.models.build("lfa", scale="tiny", d_vocab=2048, n_ctx=64, seed=4).double().eval()


def prompt(name: str, text: str, answer: str | None, foil: str | None, cluster: str | None = None) -> Prompt:
    roles = {"query": (len(text) - 1, len(text))}
    return Prompt(id=name, text=text, roles=roles, category="c", cluster=cluster, coherent=answer, incoherent=foil)


COUNTS = {
    "capitalization": (64, 40), "capitalization-8": (8, 8), "gender": (64, 32), "gender-16": (16, 8),
    "winograd": (50, 25),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_counts_are_those_of_the_card_and_every_prompt_is_scored(name: str, bpe: Tokenizer) -> None:
    suite, (cases, clusters) = load_suite(name), COUNTS[name]
    assert (len(suite.prompts), len(set(units(suite.prompts)))) == (cases, clusters)
    assert f"| `{name}` | {cases} | {clusters} |" in (ROOT / "datasets" / "tasks" / "README.md").read_text()
    assert {p.category for p in suite.prompts} == {name.split("-")[0]}
    assert len({p.text for p in suite.prompts}) == cases
    task = token_task(suite, bpe, 128)
    assert len(task.cases) == cases and not task.filtered
    for p in suite.prompts:
        words = {role: p.text[slice(*span)] for role, span in p.roles.items()}
        assert p.text.rstrip(".").endswith(words["query"]) and not p.text.endswith(" ")
        assert str(p.coherent).startswith(" ") and p.coherent != p.incoherent
        assert p.roles["target"][1] <= p.roles["query"][0]


def test_gender_twins_differ_in_who_is_meant_and_in_nothing_else() -> None:
    for name in ("gender", "gender-16"):
        twins: dict[str, list[Prompt]] = {}
        for p in load_suite(name).prompts:
            twins.setdefault(str(p.cluster), []).append(p)
        for one, other in twins.values():
            assert (one.coherent, one.incoherent) == (other.incoherent, other.coherent)
            assert {one.coherent, one.incoherent} in ({" he", " she"}, {" his", " her"}, {" him", " her"})
            a, b = (p.text[slice(*p.roles["target"])].lower() for p in (one, other))
            pieces = re.split(rf"\b({a}|{b})\b", one.text.lower())
            swapped = "".join({a: b, b: a}.get(piece, piece) for piece in pieces)
            assert swapped == other.text.lower()


def scored(task: Task, model: Any) -> dict[str, np.ndarray]:
    reads = task.reads
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, [])
    return {measure: values[0] for measure, values in task.scores(log_p).items()}


def test_small_sets_share_no_text_with_large_ones() -> None:
    for small, large in (("capitalization-8", "capitalization"), ("gender-16", "gender")):
        assert not {p.text for p in load_suite(small).prompts} & {p.text for p in load_suite(large).prompts}


def test_an_answer_is_scored_at_its_first_differing_token_given_those_before(bpe: Tokenizer, model: Any) -> None:
    prompts = (
        prompt("short", "Lily saw a", " dog", " cat"), prompt("long", "Lily saw a", " zebra zigzag", " zebra dog"),
        prompt("twin", "Ben saw a", " cat", " dog", cluster="x"),
        prompt("other", "Tom saw a", " cat", " dog", cluster="x"),
    )  # fmt: skip
    task = token_task(Suite("mine", prompts, "here"), bpe)
    assert task.cases["given"].tolist()[0] == 0 < task.cases["given"][1]
    assert task.cases["cluster"].tolist() == ["short", "short", "x", "x"]  # one text is one unit
    found = scored(task, model)
    for i, p in enumerate(prompts):
        a, b = (bpe.encode(p.text + str(x)) for x in (p.coherent, p.incoherent))
        n = 0
        while a[n] == b[n]:
            n += 1
        with torch.no_grad():
            probabilities = model(torch.tensor([a[:n]]))[0, -1].softmax(-1)
        assert found["probability"][i] == pytest.approx(float(probabilities[a[n]]), abs=1e-12)
        odds = math.log(probabilities[a[n]]) - math.log(probabilities[b[n]])
        assert found["log_odds"][i] == pytest.approx(odds, abs=1e-9)
    assert "1 with tokens given" in task.title
    assert task.cases["cut"].tolist() == [False, True, False, False]
    assert "1 of them by one token of a longer answer or foil" in task.title


def test_what_cannot_be_scored_is_filtered_with_its_reason_and_counted(bpe: Tokenizer) -> None:
    fine = prompt("merged", "Lily saw a", " dog", " cat")
    prompts = (
        prompt("good", "Lily saw a", " dog", " cat"), prompt("none", "Lily saw a big", None, None),
        prompt("same", "Lily saw the", " dog", " dog"),
        replace(fine, text="Lily saw a ", coherent="dog", incoherent="cat"),
        prompt("long", " ".join(["Lily ran home."] * 12) + " The", " dog", " cat"),
    )  # fmt: skip
    suite = Suite("mine", prompts, "here", (("x", "odd"),))
    task = token_task(suite, bpe, 24)
    assert task.cases["id"].tolist() == ["good"]
    assert dict(task.filtered) == {"x": "odd", "none": NONE, "same": SAME, "merged": MERGED, "long": LONG}
    assert f"1 left out: {LONG}" in task.title
    line = r"no case of 'mine' can be scored: longer than the context of 3 tokens \(2 of 6"
    with pytest.raises(InputError, match=line):
        token_task(suite, bpe, 3)


def test_sentences_are_scored_by_the_difference_of_their_log_probabilities(bpe: Tokenizer, model: Any) -> None:
    texts = [("The dog saw herself.", "The dog saw itself here."), ("Lily ran.", "Lily ran. Tom."), ("A b", "C d e f")]
    pairs = tuple(SentencePair(id=str(i), good=a, bad=b, category="c") for i, (a, b) in enumerate(texts))
    task = sentence_task(SentencePairs("s", pairs, "here"), bpe)
    found = scored(task, model)

    def log_p(text: str) -> float:
        ids = torch.tensor([bpe.encode(text)])
        with torch.no_grad():
            return -float(model.token_losses(ids[:, :-1], ids[:, 1:]).sum())

    for i, (good, bad) in enumerate(texts):
        odds = log_p(good) - log_p(bad)
        assert found["log_odds"][i] == pytest.approx(odds, abs=1e-9)
        assert found["probability"][i] == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-12)
    assert task.reads.sides.sum(1).tolist() == [1] * len(task.reads.tokens)  # a token counts for one sentence


def test_sentences_that_are_too_long_or_equal_are_counted(bpe: Tokenizer) -> None:
    pairs = [("a", "Lily ran.", "Lily sat."), ("b", "Lily " * 40, "Tom"), ("c", "Lily ran.", "Lily ran.")]
    made = tuple(SentencePair(id=n, good=x, bad=y, category="c") for n, x, y in pairs)
    task = sentence_task(SentencePairs("s", made, "here"), bpe, 20)
    assert task.cases["id"].tolist() == ["a"]
    assert dict(task.filtered) == {"b": LONG, "c": SAME}
    two = (made[0], made[0]._replace(id="d", good="He ran."))
    bare = sentence_task(SentencePairs("s", two, "here"), bpe.with_bos("no"))
    assert bare.cases["id"].tolist() == ["a"] and dict(bare.filtered) == {"d": FIRST}, "nothing predicts a first token"


def test_schemas_are_filled_with_either_mention(tmp_path: Path) -> None:
    keys, path = ("qID", "sentence", "option1", "option2", "answer"), tmp_path / "w.jsonl"
    rows = [
        ("w0", "The cup fell on the plate because _ slid.", "The cup", "The plate", "1"),
        ("w1", "Ann hid. _ was shy, said Sue.", "Sue", "Ann", "2"),
    ]
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    one, two = wsc273_pairs(path).pairs
    assert (one.good, one.bad) == (
        "The cup fell on the plate because the cup slid.", "The cup fell on the plate because the plate slid.",
    )  # fmt: skip
    assert (two.good, two.bad) == ("Ann hid. Ann was shy, said Sue.", "Ann hid. Sue was shy, said Sue.")
    assert one.cluster == "the cup / the plate"
    path.write_text(json.dumps(dict(zip(keys, ("w", "no blank", "a", "b", "1"), strict=True))))
    with pytest.raises(InputError, match="w.jsonl:1: expected one blank"):
        wsc273_pairs(path)


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("1 [The nurse] met the guard because [she] was late.", "The nurse met the guard because the nurse was late."),
        ("2 The nurse met [the guard] and took [his] hat.", "The nurse met the guard and took the guard's hat."),
        ("3 The nurse met [the guard] and told [her] to go.", "The nurse met the guard and told the guard to go."),
        ("4 The nurse met [the guard] and saw [her] dog.", "The nurse met the guard and saw the guard's dog."),
        ("5 The nurse met [the guard] and saw [her].", "The nurse met the guard and saw the guard."),
    ],
)
def test_pronouns_are_replaced_by_either_occupation(tmp_path: Path, line: str, good: str) -> None:
    path = tmp_path / "pro.txt.dev"
    path.write_text(line + "\n")
    (pair,) = winobias_pairs(path).pairs
    assert pair.good == good
    assert pair.bad != good and Counter(pair.bad.split()) != Counter(good.split())
    assert pair.cluster == "guard / nurse" and sorted(pair.words) == ["guard", "nurse"]


def test_sentences_that_share_an_occupation_are_not_independent(tmp_path: Path, bpe: Tokenizer) -> None:
    people = ("nurse", "guard", "baker", "clerk")
    lines = [f"{i} [The {a}] met the {b} because [she] was late." for i, (a, b) in enumerate(permutations(people, 2))]
    path = tmp_path / "pro.txt.dev"
    path.write_text("\n".join(lines) + "\n")
    task = load_task(f"winobias:{path}", bpe)
    labels = task.cases["cluster"].tolist()
    assert labels[0] == ("guard / nurse", "nurse", "guard") and len({unit for unit, *_ in labels}) == 6
    assert "12 cases in 6 units, 95 % for new words (4 of a kind or more)" in task.title


def test_names_are_checked(tmp_path: Path, bpe: Tokenizer) -> None:
    row = {"id": "a", "text": "I saw a", "roles": {"query": [6, 7]}, "category": "c"}
    same = [tmp_path / folder / "t.jsonl" for folder in ("x", "y")]
    for path in same:
        path.parent.mkdir()
        path.write_text(json.dumps({**row, "coherent": " b", "incoherent": " c"}))
    for names, message in (
        (["capitalisation"], "did you mean capitalization"), ([], "at least one task"),
        (["coreference"], "no case of 'coreference' can be scored: no answer and foil"),
        (["blimp:nowhere"], "nowhere is missing: "), (list(map(str, same)), "two tasks are called 't'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            load_tasks(names, bpe)
    assert [t.name for t in load_tasks(["gender-16", "gender-16", str(same[0])], bpe)] == ["gender-16", "t"]


def test_tasks_are_opened_for_a_model_and_cases_have_names_that_models_share() -> None:
    spec = Tasks(tasks=("capitalization-8", "gender-16"))
    one = open_data(spec, load("lfa"))
    assert [len(task.cases) for task in one.tasks] == [8, 16]
    assert one.about()["gender-16"][1] in one.title()
    first = one.units(one.tasks[0])
    assert first["unit"].is_unique and set(first["cluster"]) == set(one.tasks[0].cases["cluster"])
    assert first["unit"].tolist() == one.units(open_data(spec, load("hdpl")).tasks[0])["unit"].tolist()
    with pytest.raises(InputError, match="at least one task"):
        open_data(Tasks(tasks=()), load("lfa"))
