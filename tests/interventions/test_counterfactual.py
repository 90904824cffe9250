"""Suites with corrupted prompts: what they say, how they are patched, and the metric over sets of answers."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from streamscope.aliases import folder_of
from streamscope.cli.errors import InputError
from streamscope.instruments.data import Prompts
from streamscope.instruments.prompts import COUNTERFACTUAL, load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.prompts.counterfactual import SUITES, templates
from streamscope.instruments.prompts.suite import Suite
from streamscope.interventions.patch import Patch, main
from streamscope.interventions.patch.activations import attribute_pairs, patch_pairs, plan, spots
from streamscope.interventions.patch.pairs import PatchPair, make_pairs
from streamscope.models import load

NAMES = {name for names in templates()["names"].values() for name in names}
CITIES = dict(templates()["capitals"]["cities"])


@pytest.mark.parametrize("name", sorted(SUITES))
def test_the_corrupted_prompt_calls_for_the_foil(name: str) -> None:
    """By rules of their own: who is named how often, which year is larger, what followed the name before."""
    suite = load_suite(name, n=60)
    assert 60 <= len(suite.prompts) <= 61 and len({p.text for p in suite.prompts}) == len(suite.prompts)
    assert load_suite(name, n=60) == suite != load_suite(name, n=60, seed=3)
    variants = 1 if name in ("greater-than", "induction", "capitals", "docstring") else 2
    assert set(Counter(p.cluster for p in suite.prompts).values()) == {variants}
    for p in suite.prompts:
        assert p.corrupt and len(p.corrupt.split()) == len(p.text.split()) and p.coherent in p.answers
        for text, right, wrong in ((p.text, p.answers, p.foils), (p.corrupt, p.foils, p.answers)):
            words = re.findall(r"\w+", text)
            named = [word for word in words if word in NAMES]
            if name == "ioi" or (name == "ioi-abc" and text == p.text):
                assert [one.strip() for one in right] == [who for who in named if named.count(who) == 1]
                assert [one.strip() for one in wrong] == [named[2]] and named.count(named[2]) == 2
            elif name == "ioi-abc":
                assert len(set(named)) == 3 and not {one.strip() for one in (*right, *wrong)} & set(named)
            elif name == "greater-than":
                year = int(next(word for word in words if len(word) == 4 and word.isdecimal())[2:])
                assert year == 1 if text == p.corrupt else [int(one) for one in right] == [*range(year + 1, 100)]
                assert text == p.corrupt or [int(one) for one in wrong] == [*range(year)]
            elif name in ("induction", "docstring"):
                once, again = named[:6], named[6:]
                assert once[: len(again)] == again and right == (f" {once[len(again)]}",)
            elif name == "agreement":
                subject = words[2 if words[0] == "Yesterday" else 1]
                assert (subject.endswith("s")) == (" are" in right)
            elif name == "name-copying":
                assert right == (f" {named[0]}",) and len(named) == 1 and wrong[0].strip() not in words
            elif name == "letter-case":
                assert all(one.strip().istitle() == (text[-1] == ".") for one in right) and text[-1] in ".,"
                assert [one.lower() for one in right] == [one.lower() for one in wrong]
            elif name == "pronouns":
                assert right == ((" she",) if named[0] in templates()["names"]["female"] else (" he",))
            else:
                assert [CITIES[word] for word in words if word in CITIES] == [one.strip() for one in right]


@pytest.mark.parametrize("name", sorted(SUITES))
def test_roles_stand_at_the_words_that_decide(name: str) -> None:
    for p in load_suite(name, n=60).prompts:
        words = re.findall(r"\w+", p.text)
        role = {which: p.text[slice(*at)] for which, at in p.roles.items()}
        assert p.roles["query"][1] == len(p.text) and role["query"] == p.text.split()[-1]
        if name in ("ioi", "ioi-abc", "induction", "docstring"):
            assert (role["target"], role["distractor"]) == (p.answers[0].strip(), p.foils[0].strip())
            assert all(p.roles[which][0] == p.text.index(role[which]) for which in ("target", "distractor"))
        elif name == "greater-than":
            assert role["target"] == next(word for word in words if len(word) == 4 and word.isdecimal())
        elif name == "agreement":
            assert role["target"] == words[2 if words[0] == "Yesterday" else 1]
            same = role["target"].endswith("s") == words[-1].endswith("s")
            assert p.relation == ("same number" if same else "other number")
        elif name == "name-copying":
            assert role["target"] == p.answers[0].strip()
        elif name == "letter-case":
            assert list(role) == ["query"] and p.relation == {".": "capital", ",": "small"}[role["query"][-1]]
        elif name == "pronouns":
            assert role["target"] in NAMES and p.relation == ("female" if p.answers == (" she",) else "male")
        else:
            assert f" {CITIES[role['target']]}" in p.answers


def test_every_suite_has_its_row_in_the_card() -> None:
    card = (folder_of("datasets") / "counterfactual" / "README.md").read_text()
    assert tuple(SUITES) == COUNTERFACTUAL
    for name in SUITES:
        row = next(line for line in card.splitlines() if line.startswith(f"| {name} |"))
        first = load_suite(name, n=1).prompts[0]
        assert first.text in row and (first.corrupt or "") in row, "the example of the card is the suite's first prompt"


def test_pairs_keep_what_the_tokenizer_serves() -> None:
    model = load("stories/gpt2")
    for name in ("ioi", "ioi-abc", "induction", "pronouns", "docstring", "name-copying", "letter-case"):
        aligned = align(load_suite(name, n=60), model.tokenizer, model.config.n_ctx)
        pairs = make_pairs(aligned, model.tokenizer, "corrupt")
        assert len(pairs.pairs) + len(pairs.filtered) + len(aligned.filtered) >= 60 and len(pairs.pairs) >= 20, name
        for pair in pairs.pairs:
            assert len(pair.clean) == len(pair.corrupt) and not set(pair.answers) & set(pair.foils)
            assert sorted(p for at in pair.places.values() for p in at) == list(range(len(pair.clean)))
    with pytest.raises(InputError, match="it has no corrupted text"):
        make_pairs(align(load_suite("competing"), model.tokenizer), model.tokenizer, "corrupt")


def test_the_metric_of_sets_is_the_log_odds_of_their_sums() -> None:
    """Against softmax by hand, patched and guessed: one position of one layer, the whole residual stream."""
    model = load("stories/gpt2")
    ids = torch.tensor([model.tokenizer.encode(f"Then {who} went home because") for who in ("Lily", "Tom")])
    answers, foils = (tuple(model.to_single_token(w) for w in side) for side in ((" she", " Lily"), (" he", " Tom")))
    pair = PatchPair(
        id="a", cluster="a", clean=tuple(ids[0].tolist()), corrupt=tuple(ids[1].tolist()), answers=answers, foils=foils,
        places={"name": (2,), "last": (ids.shape[1] - 1,)},
    )  # fmt: skip

    def odds(logits: torch.Tensor) -> torch.Tensor:
        p = logits[-1].double().softmax(-1)
        return (p[list(answers)].sum() / p[list(foils)].sum()).log()

    cells = plan(model, [pair], spots(model, ["resid_pre"]), "role", [0])
    found, x = patch_pairs(model, [pair], cells), (model.W_E[ids] + model.W_pos[: ids.shape[1]]).detach()
    want = [odds(row).item() for row in model(ids)]
    assert [found.clean[0], found.corrupt[0]] == pytest.approx(want, abs=1e-5)
    assert found.patched[:2, 0].tolist() == pytest.approx([want[0], want[1]], abs=1e-4), "the name is all that differs"
    own = x[1:].requires_grad_()
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda value, hook: own)]):
        (gradient,) = torch.autograd.grad(odds(model(ids[1:])[0]), own)
    guess = ((x[0] - x[1])[2] @ gradient[0, 2]).item()
    assert attribute_pairs(model, [pair], cells)[0, 0] == pytest.approx(guess, abs=1e-4)


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    row = {
        "clean": "Then Lily went home because", "corrupt": "Then Tom went home because", "answers": [" she"],
        "foils": [" he"],
    }  # fmt: skip
    path.write_text("\n".join(json.dumps({**row, "clean": row["clean"].replace("home", w)}) for w in ("home", "away")))
    suite = load_suite(path)
    assert isinstance(suite, Suite) and suite.prompts[0].roles["query"] == (20, 27)
    result = Patch(pairs=2, hooks=("resid_pre",), layers=("0",)).measure("stories/gpt2", Prompts(suite=str(path)))
    assert "2 pairs of mine by corrupt" in result.about["title"]
    main(["stories/gpt2", "--suite", str(path), "--hooks", "resid_pre", "--layers", "0"])
    assert "by corrupt" in capsys.readouterr().out
    for change, message in (
        ({"answers": []}, "needs 'answers', a list"),
        ({"answers": " she"}, "needs 'answers', a list"),
        ({"answers": [" she", 1]}, "answers.1: Input should be a valid string"),
        ({"answers": [" he"]}, "' he' among its answers and among its foils"),
        ({"foils": [" he", "they"]}, "mine.jsonl:1: .*'they' would run on from 'because'"),
        ({"corrupt": None}, "must be text"),
        ({"corrupt": row["clean"]}, "its corrupted text is the text"),
        ({"clean": " "}, "empty"),
    ):
        path.write_text(json.dumps({**row, **change}))
        with pytest.raises(InputError, match=message):
            load_suite(path)
    with pytest.raises(InputError, match="not 99999: ask for a smaller n"):
        load_suite("capitals", n=99999)
