"""Halves of every kind of data share no cluster, and what is selected on one is no luck on the other."""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Data, Documents, Labels, Prompts, Sets, Tasks, Text, Tokens
from streamscope.instruments.observations import each, estimate
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts.alignment import OpenPrompts, given_prompts
from streamscope.instruments.prompts.suite import units
from streamscope.instruments.prompts.tasks import OpenTasks
from streamscope.instruments.result import compare
from streamscope.instruments.stats.held_out import unit_of
from streamscope.interventions.ablate import Ablate
from streamscope.models.checkpoint import load
from streamscope.probes.directions import Directions
from streamscope.probes.pds import Pds
from tests.instruments.estimates import block
from tests.tiny import refused

ROOT = Path(__file__).resolve().parents[2]
KINDS = [
    Documents(max_documents=9), Tokens(max_tokens=1000), Prompts(), Prompts("stories", n=60),
    Prompts("stories-words", n=40), Tasks(), Tasks(("gender-16",)), Text(text=("a b", "c d", "e f")), Sets(),
    Labels(stories=100),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return load("lfa")


def cases(data: Data, model: Any) -> list[tuple[str, Any]]:
    """(content, cluster) of every case."""
    opened: Any = open_data(data, model)
    if isinstance(opened, OpenTasks):
        rows = [(i, case) for i, task in enumerate(opened.tasks) for case in task.cases.itertuples()]
        return [(f"{i} {case.id}", (i, unit_of(case.cluster))) for i, case in rows]
    if isinstance(opened, OpenPrompts):
        prompts = opened.aligned.prompts
        return [(one.id, unit_of(unit)) for one, unit in zip(prompts, units(prompts), strict=True)]
    if hasattr(opened, "examples"):
        return [(str(one), one.group) for one in opened.examples]
    if hasattr(opened, "a"):  # text i of both sets is a cluster
        content = list(zip(opened.a.texts, opened.b.texts, strict=True))
    elif hasattr(opened, "documents"):
        content = [one.ids for one in opened.documents()]
    else:
        content = opened.names if hasattr(opened, "names") else opened.rows()
    return [(str(one), str(one)) for one in content]


@pytest.mark.parametrize("data", KINDS, ids=lambda data: f"{type(data).__name__}-{getattr(data, 'suite', '')}")
def test_halves_share_no_cluster_and_are_everything(model: Any, data: Data) -> None:
    whole, first, second = (cases(one, model) for one in (data, data.half(0), data.half(1)))
    assert sorted(content for content, _ in first + second) == sorted(content for content, _ in whole)
    assert first and second and not {cluster for _, cluster in first} & {cluster for _, cluster in second}
    assert abs(len(first) - len(second)) <= max(2, len(whole) / 4)
    assert cases(data.half(0), model) == first


@pytest.mark.slow
def test_halves_are_the_same_in_another_process(model: Any) -> None:
    code = (
        "from streamscope.models.checkpoint import load\nfrom streamscope import Prompts\n"
        "from streamscope.instruments.open_data import open_data\n"
        "one = open_data(Prompts('stories', n=60).half(0), load('lfa'))\nprint(*[p.id for p in one.aligned.prompts])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == [p.id for p in open_data(Prompts("stories", n=60).half(0), model).aligned.prompts]


def test_halves_of_halves_and_another_column(model: Any) -> None:
    data = Documents(max_documents=9)
    quarters = [list(open_data(data.half(i).half(j), model).rows()) for i in (0, 1) for j in (0, 1)]
    assert [len(one) for one in quarters] == [3, 2, 2, 2]
    assert sorted(str(row) for one in quarters for row in one) == sorted(map(str, open_data(data, model).rows()))
    words = [{one.word for one in open_data(Labels(stories=60).half(i, by="word"), model).examples} for i in (0, 1)]
    assert words[0] and words[1] and not words[0] & words[1]
    relations = [{p.relation for p in open_data(Prompts().half(i, "relation"), model).aligned.prompts} for i in (0, 1)]
    assert not relations[0] & relations[1]
    whole, half = open_data(Sets(), model), open_data(Sets().half(1), model)  # counterparts stay together
    at = [[some.texts.index(text) for text in one.texts] for some, one in ((whole.a, half.a), (whole.b, half.b))]
    assert at[0] == at[1] and len(at[0]) == len(whole.a.texts) // 2
    assert half.a.tokens == [whole.a.tokens[i] for i in at[0]]


def test_words_that_prompts_share_stay_on_one_side(model: Any) -> None:
    words = [
        {p.words["target"] for p in open_data(Prompts("stories-words", n=200).half(i), model).aligned.prompts}
        for i in (0, 1)
    ]
    assert words[0] and words[1] and not words[0] & words[1]


def test_what_a_half_says_of_itself(model: Any) -> None:
    result = Pds().measure(model, Prompts().half(1))
    assert result.about["data"]["Prompts"]["half"] == "half 1 by cluster"
    assert "competing: 30 of 30 prompts" in result.table().title
    assert (result.table().frame["n"] == 15).all(), "pairs"
    assert "half" not in Pds().measure(model, Prompts()).about["data"]["Prompts"]
    assert Prompts("stories", n=99).half(0).small() == Prompts("stories", n=60).half(0)
    opened = open_data(Prompts(), model)
    given = given_prompts(opened.aligned, model)  # halves of what is opened
    ids = [[p.id for p in given.half(i).aligned.prompts] for i in (0, 1)]
    assert sorted(ids[0] + ids[1]) == sorted(p.id for p in opened.aligned.prompts)
    assert Pds().measure(model, given.half(0)).table().frame["n"].unique() == len(ids[0]) / 2


def test_a_control_reads_the_same_half(model: Any) -> None:
    how, data = Ablate(heads=("L5.H0",), draws=0), Documents(max_documents=6).half(1)
    opened = how.open(model, data)
    result = how.run(opened)
    like = how.open(load("std-t-rope"), data, like=opened)
    both = compare(result, how.run(like))
    assert both.tables["loss-control"].frame["n"].tolist() == [3]
    assert list(like[Documents].rows()) == list(opened[Documents].rows())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Documents(max_documents=1).half(0), "Documents: 1 cluster has no two halves; give more data"),
        (Text(text=("a b",)).half(1), "Text: 1 cluster has no two halves"),
        (Prompts().half(0, by="colour"), "unknown column to split by 'colour': did you mean cluster"),
        (Prompts().half(0, by="category"), "Prompts: 1 category has no two halves"),
    ],
)
def test_what_has_no_halves_says_so(model: Any, data: Data, message: str) -> None:
    with refused(message):
        open_data(data, model)


@dataclass(frozen=True)
class Finished(Data):
    """A table that was measured before, as those of features."""

    def of(self, model: Any, like: Any = None) -> Any:
        return pd.DataFrame()


def test_a_half_is_0_or_1_of_what_has_cases(model: Any) -> None:
    with pytest.raises(InputError, match="side must be at most 1, got 2"):
        Documents().half(2)
    with pytest.raises(InputError, match="half 2: there are 0 and 1"):
        open_data(Documents(max_documents=4), model).half(2)
    with pytest.raises(InputError, match="pds takes Prompts, not Documents"):
        Pds().measure(model, Documents().half(0))
    with pytest.raises(InputError, match="Finished are no cases to split; halve the data that they are measured on"):
        open_data(Finished().half(0), None)


@dataclass(frozen=True)
class OpensItself(Documents):
    """A kind of the user with the options of ours."""

    def of(self, model: Any, like: Any = None) -> Any:
        return self.max_documents, like


def test_a_kind_that_opens_itself_may_inherit_the_options_of_ours() -> None:
    assert open_data(OpensItself(max_documents=3), None, "like") == (3, "like")


def test_an_instrument_that_splits_by_itself_measures_a_half(model: Any) -> None:
    found = Directions(draws=0).measure(model, Sets().half(0)).table().frame
    assert (found["n_a"] == 15).all()


def test_selected_and_measured_on_the_same_noise_there_is_an_effect_and_on_halves_there_is_none(model: Any) -> None:
    """A number for every text and head that has nothing to do with either."""
    data = Text(text=tuple(f"text {i}" for i in range(60)))

    def noise(part: Data, draw: int) -> pd.DataFrame:
        texts = [name.split(":")[1] for name in open_data(part, model).names]
        seeds = [int(hashlib.sha1(f"{draw} {text}".encode()).hexdigest()[:8], 16) for text in texts]
        seen = block(np.stack([np.random.default_rng(seed).normal(size=36) for seed in seeds], axis=1))
        return estimate(seen, each("noise", seen.cells)).frame

    found: dict[str, list[float]] = {"same": [], "halves": []}
    for draw in range(20):
        first, second, whole = (noise(part, draw) for part in (data.half(0), data.half(1), data))
        assert (first["n"] == 30).all() and (second["n"] == 30).all()
        found["same"].append(whole["p"][whole["value"].idxmax()])
        found["halves"].append(second["p"][first["value"].idxmax()])
    rejected = {name: np.mean(np.array(p) < 0.05) for name, p in found.items()}
    assert rejected["same"] > 0.5, "the best of 36 heads is 1 − .95^18 = .6 or more by luck"
    assert rejected["halves"] <= 3 / 20, "5 % and what 20 draws leave of it (p = .02 for more)"
