"""The parts of the contract: what options become, what data are, what a result says it was measured on."""

import hashlib
import importlib
import json
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest
import torch
from annotated_types import Ge

from streamscope.cli.bounds import Names
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import code
from streamscope.instruments.contract import (
    Instrument,
    InstrumentData,
    checkpoint_of,
    instrument,
    need_parts,
    options_of,
    readable,
    recipe_of,
    title_of,
)
from streamscope.instruments.data import Data, Documents, Labels, Opened, Prompts
from streamscope.instruments.figures import HeadMap
from streamscope.instruments.observations import Measure
from streamscope.instruments.open_data import open_data
from streamscope.instruments.registry import REGISTERED, discover, named
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, key, quantity
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.patch import Patch
from streamscope.models import build
from streamscope.models.checkpoint import ZOO, SnapshotPath, load
from streamscope.models.tensors import digest
from streamscope.probes.heads import Heads
from streamscope.probes.linear import Linear


class Mine(Instrument):
    """What it does.

    And how.
    """

    heads: Names = ("all",)
    """Which heads: L4.*
    and so on."""
    scales: tuple[Annotated[float, Ge(0)], ...] = (0.0,)
    """By what."""
    k: Annotated[int, Ge(1)] = 3
    """How many."""
    where: Path | None = None
    """A folder."""
    name_or_path: str | Path = "x"
    """Either."""

    def observe(self, model: Any, data: Any, progress: Any) -> InstrumentData:
        seen = InstrumentData(about={"left": data[Given].like, "model": "renamed"}, arrays={"x": np.ones(2)})
        units = pd.DataFrame({"unit": list(progress("abc")), "cluster": list("abc")})
        measure = Measure(name="v", unit="nats", resolution=1e-9)
        seen.add(measure, pd.DataFrame({"head": ["a"]}), units, np.array([[1.0, 2.0, 3.0]]))
        return seen

    def tables(self, seen: InstrumentData, estimates: Any) -> dict[str, Table]:
        frame, missing = estimates["v"].wide(["head"])
        columns = (key("head", "head", "its name"), *quantity("v", "v", "nats", "a value"), *COUNTED)
        return {"main": Table(frame, columns, missing, "mine")}


def made(called: str = "made", /, *takes: Data, base: type = Instrument, **members: Any) -> Any:
    """An instrument that does nothing, and is not registered."""
    parts = {"__annotations__": {}, "__doc__": "It does nothing.", **members}
    try:
        return instrument(called, *takes)(type(called.title(), (base,), parts))
    finally:
        REGISTERED.pop(called, None)


COUNTED = (key("n", "n", "letters", "letters", "d"), key("clusters", "c", "letters", "letters", "d"))


class OpenGiven(SimpleNamespace):
    def about(self) -> dict[str, Any]:
        return {"what": "given"}


class Given(Data):
    """Data that say what they were opened for."""

    def of(self, model: Any, like: Any = None) -> Any:
        OPENED.append(model)
        return OpenGiven(kind=Given, model=model, like=None if like is None else like.model)


OPENED: list[Any] = []
MINE = instrument("mine", Given(), Prompts("competing"))(Mine)
REGISTERED.pop("mine")


@pytest.fixture(autouse=True)
def opened() -> Iterator[list[Any]]:
    OPENED.clear()
    yield OPENED


def test_options_become_what_they_mean() -> None:
    made = MINE(heads="L4.*", scales=[0, np.float64(0.5)], k=np.int64(2), where="a/b", name_or_path="a/b")
    assert (made.heads, made.scales, made.k) == (("L4.*",), (0.0, 0.5), 2)
    assert made.where == Path("a/b") and made.name_or_path == "a/b" and type(made.k) is int
    assert MINE(scales=np.array([1.0, 2.0])).scales == (1.0, 2.0) and MINE(heads=["a", "b"]).heads == ("a", "b")
    assert MINE(name_or_path=Path("a")).name_or_path == Path("a") and MINE(where=None).where is None
    for given, line in (
        ({"k": "2"}, "^k: input should be a valid integer, got '2'$"),
        ({"k": 0}, "^k must be at least 1, got 0$"),
        ({"scales": (0.5, -1.0)}, "^scales must be at least 0, got -1"),
        ({"scales": "1"}, r"^scales: input should be a valid number, got \('1',\)$"),
        ({"heads": {"a"}}, r"^heads: input should be a valid tuple, got \{'a'\}$"),
        ({"scales": (float("nan"),)}, "^scales must be .*got nan$"),
    ):
        with pytest.raises(InputError, match=line):
            MINE(**given)


def test_options_that_were_typed_into_a_shell_have_no_source_to_read() -> None:
    for home in (__name__, "a shell"):
        typed = made("typed", __annotations__={"j": int}, j=1, __module__=home)
        assert options_of(typed) == [("j", 1, "")]


@dataclass(frozen=True, kw_only=True)
class Half_Said(Instrument):
    """Some options say what they are, and so they do where they are inherited."""

    a: int = 1
    b: int = 2
    """About b: not about a."""
    c: tuple[int, ...] = ()
    """About c,
    in two lines."""
    d: int = 4


def test_what_an_option_means_stands_right_below_it() -> None:
    class Margin(Instrument):
        """Some text of it is at the margin, so that its source alone is no code."""

        a: str = """x
y"""
        """About a."""

    class More(Half_Said):
        """One option more."""

        e: int = 5
        """About e."""

    margin, more = (instrument(cls.__name__)(cls) for cls in (Margin, More))
    for cls in (Margin, More):
        REGISTERED.pop(cls.__name__)
    assert options_of(margin) == [("a", "x\ny", "About a.")]
    assert {name: meaning for name, _, meaning in options_of(more)} == {
        "a": "", "b": "About b: not about a.", "c": "About c, in two lines.", "d": "", "e": "About e."}  # fmt: skip


def test_data_are_opened_once_and_when_they_are_asked_for(opened: list[Any]) -> None:
    first = Opened("m", [Given(), Prompts()])
    assert list(first.specs) == [Given, Prompts] and not first and not opened and first.work is None
    one = first[Given]
    assert first[Given] is one and opened == ["m"] and one.like is None
    assert Opened("c", [Given()], like=first)[Given].like == "m"
    unread = Opened("m", [Given()])
    assert Opened("c", [Given()], like=unread)[Given].like is None and opened == ["m", "c", "c"], "it is not opened now"
    ready = OpenGiven(kind=Given, model="before")
    assert Opened("m", [ready])[Given] is ready and len(opened) == 3
    line = "Documents are not among the data of this instrument; name them in @instrument"
    with pytest.raises(KeyError, match=line):
        _ = first[Documents]


class Plain:
    """A model that is ours in nothing."""

    config = SimpleNamespace(name="plain")


def test_what_a_result_says_of_itself() -> None:
    model, seen = Plain(), []

    def progress(some: Any) -> Any:
        return (seen.append(x) or x for x in some)

    found = MINE(where="a/b").measure(model, progress=progress)
    assert seen == list("abc")
    about = {
        "instrument": "mine", "data": {"Given": {"what": "given"}}, "edited_at": [], "recipe": "Plain", "step": None,
        "hooked_at": [], "checkpoint": None, "dtype": None, "autocast": None, "bos": None,
        "left": None, "model": "renamed", **code(),
        "options": {"heads": ["all"], "scales": [0.0], "k": 3, "where": "a/b", "name_or_path": "x"},
    }  # fmt: skip
    assert found.about == about, "of data that were not read nothing is said; what was seen has the last word"
    assert found.table().frame["v"].tolist() == [2.0] and list(found.arrays) == ["x"] and found.figures == ()
    assert list(found.blocks) == list(found.contrasts) == ["v"]
    control = MINE().measure(Plain(), like=Opened("run", [OpenGiven(kind=Given, model="run")]))
    assert control.about["left"] == "run"


def test_what_is_not_given_of_data_is_the_default_of_the_instrument() -> None:
    own = made("made", Documents(max_documents=200, batch_size=7), Prompts("stories", n=9), base=MINE)
    text = Documents("a.txt", max_documents=200, batch_size=7)
    for given, read in (
        (Documents("a.txt"), text),
        (Documents("a.txt").half(1), text.half(1)),
        (Documents("a.txt", max_documents=100), replace(text, max_documents=100)),
        (Documents("a.txt", None, 32), replace(text, max_documents=None, batch_size=32)),
        (pickle.loads(pickle.dumps(copy(Documents("a.txt")))), text),
    ):
        assert own().open(Plain(), given).specs == {Documents: read, Prompts: Prompts("stories", n=9)}
    assert own().open(Plain(), Prompts("competing")).specs[Prompts] == Prompts("competing", n=9)
    assert Ablate(draws=0).open(load("stories/gpt2"), Documents("stories:1:4")).specs[Documents].max_documents == 200
    with pytest.raises(InputError, match="--max-documents has no effect"):
        Heads(texts=False).open(Plain(), Documents(max_documents=100))
    Heads(texts=False).open(Plain(), Documents())


def test_data_that_do_not_fit_are_refused() -> None:
    assert MINE().open(Plain()).specs == {Given: Given(), Prompts: Prompts("competing")}
    given = MINE().open(Plain(), Prompts("stories"))
    assert given.specs == {Given: Given(), Prompts: Prompts("stories")} and given.like is None

    def check(self: Any, model: Any) -> None:
        raise InputError(f"no {type(model).__name__}")

    for how, data, line in (
        (MINE, (Prompts(), Documents()), "mine takes Given and Prompts, not Documents"),
        (MINE, (Prompts(), Prompts("stories").half(0)), "mine: data of one kind were given twice; give them once"),
        (made("bare"), (Given(),), "bare takes no data, not Given"),
        (made("refuses", base=MINE, check=check), (), "no Plain"),
    ):
        with pytest.raises(InputError, match=f"^{line}$"):
            how().open(Plain(), *data)
    for one in (OpenGiven(kind=Given, tokenizer=None), OpenGiven(kind=Given)):
        assert MINE().open(Plain(), one)[Given] is one, "features of tokens are of no tokenizer"

    class Named(Data):
        """Data with an option of that name are not opened yet."""

        tokenizer = "a name"

    named = made("named", Named(), observe=lambda self, model, data, progress: None)
    assert named().open(Plain(), Named()).specs == {Named: Named()}


def test_opened_data_belong_to_their_tokenizer_and_a_run_has_a_name() -> None:
    model, other = load("lfa"), load("stories/llama")
    ready = open_data(Prompts("competing"), model)
    opened = MINE().open("lfa", ready)
    assert opened[Prompts] is ready and opened.model.run == model.run
    assert MINE().open(ZOO / "lfa").model.run == model.run
    if other.tokenizer.sha256 == model.tokenizer.sha256:
        other.tokenizer = SimpleNamespace(sha256="another", d_vocab=other.tokenizer.d_vocab)
    with pytest.raises(InputError, match="tokenizer"):
        MINE().open(other, ready)


def test_methods_may_lie_in_a_body() -> None:
    data, seen = Opened("m", []), InstrumentData({}, {})
    with pytest.raises(TypeError, match="needs the methods observe and tables, or body"):
        made("apart", Given(), __module__="apart")().observe(None, data, iter)
    asked: list[Any] = []
    body = ModuleType("apart.measure")
    cls = made("apart", Given(), __module__="apart", body=staticmethod(lambda: body))
    body.observe = lambda *given: asked.append(given) or seen
    one, empty = cls(), Result({})
    assert one.observe("m", data, iter) is seen and asked == [(one, "m", data, iter)]
    for kind in (cls, MINE):
        assert kind.relate(empty) == kind.control_tables(empty, empty) == {}


def test_names_of_models() -> None:
    assert title_of(Plain()) == "plain" and title_of(object()) == "object"
    for attributes, title, edited in (
        ({}, "lfa", "lfa, edited"), ({"run": Path("runs/a")}, "lfa (runs/a)", "lfa (runs/a, edited)"),
        ({"run": ZOO / "pls"}, "stories/pls", "stories/pls, edited"),
        ({"label": "hf:some/folder"}, "lfa (hf:some/folder)", "lfa (hf:some/folder, edited)"),
    ):  # fmt: skip
        model = SimpleNamespace(config=SimpleNamespace(name="lfa"), **attributes)
        assert title_of(model) == title
        model.edited_at = ("blocks.0.hook_mlp_out",)
        assert title_of(model) == edited


def folder(path: Path, **more: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"format": 1, "model": {}, **more}))
    return path


def recipe(model: Any) -> str:
    return str(recipe_of(model)["recipe"])


def test_seeds_share_a_recipe_and_other_models_do_not() -> None:
    one, other = build("lfa", "tiny", seed=0), build("lfa", "tiny", seed=1)
    seeds = recipe_of(one)
    assert seeds == recipe_of(other) and set(seeds) == {"recipe", "step"} and seeds["step"] is None
    other.tokenizer = SimpleNamespace(sha256="abc")  # type: ignore[assignment]
    others = (other, build("lfa", "tiny", n_layers=1), build("pls", "tiny"))
    assert len({recipe(model) for model in (one, *others)}) == 4
    assert recipe_of(Plain()) == {"recipe": "Plain", "step": None}
    sizes = make_dataclass("Sizes", [("name", str), ("n_layers", int)], frozen=True)

    def bridged(name: str = "bloom", n_layers: int = 2, words: str = "ab") -> str:
        return recipe(SimpleNamespace(config=sizes(name, n_layers), tokenizer=SimpleNamespace(sha256=words)))

    assert bridged() == bridged() and len({bridged(), bridged("opt"), bridged(n_layers=3), bridged(words="cd")}) == 4


def test_snapshots_know_their_step_and_what_they_were_trained_on(tmp_path: Path) -> None:
    one = build("lfa", "tiny")
    usual = recipe_of(one)
    one.run = tmp_path / "ended"
    assert recipe_of(one) == usual
    plain = folder(tmp_path / "plain")
    one.run = SnapshotPath(f"{plain}@8")
    assert recipe_of(one) == {**usual, "step": 8, "training": str(plain)}, "on what it was trained is not known"
    for name, phases, tokens in (
        ("trained", None, 8 * 4 * one.config.n_ctx), ("at@home", "5:2x8,10:3x16", 5 * 2 * 8 + 3 * 3 * 16),
    ):  # fmt: skip
        trained = folder(tmp_path / name, data={}, training={"batch_size": 4, "phases": phases})
        one.run = SnapshotPath(f"{trained}@8")
        found = recipe_of(one)
        assert (found["step"], found["training"], found["tokens"]) == (8, str(trained), tokens)
        assert found["recipe"] != usual["recipe"]
    (trained / "config.json").write_text('{"format": 1, "model": {}, "data": {}, "training": 3}')
    with pytest.raises(InputError, match="config.json"):
        recipe_of(one)


def test_runs_that_were_trained_differently_are_other_recipes(tmp_path: Path) -> None:
    model = build("lfa", "tiny")

    def trained(name: str, data: str = "a.txt", **training: Any) -> str:
        model.run = folder(tmp_path / name, data={"data": data, "valid": None}, training={"steps": 7200, **training})
        return recipe(model)

    plain = trained("plain")
    alike: tuple[dict[str, Any], ...] = (
        {"seed": 1, "seed_weights": 1, "seed_data": 1, "seed_noise": 1},
        {"snapshots": "none", "checkpoint_every": 5, "log_every": 5}, {"weight_decay": 0.1},
    )  # fmt: skip
    assert {trained(f"same {i}", **one) for i, one in enumerate(alike)} == {plain}
    assert len({plain, trained("short", steps=200), trained("lr", lr=1e-2), trained("data", "b.txt")}) == 4


def test_a_recipe_is_the_same_number_for_ever() -> None:
    """It is compared between files of different years: what it is the digest of must not change."""
    text, whole = '{"a": "x/y", "b": 1}', {"b": 1, "a": Path("x/y")}
    for config, tokenizer, more in (
        (whole, None, ""), (dict(reversed(whole.items())), SimpleNamespace(sha256="0f"), "0f"),
    ):  # fmt: skip
        one = SimpleNamespace(to_dict=lambda config=config: config, tokenizer=tokenizer)
        expected = hashlib.sha256(f"{text}{more}".encode()).hexdigest()[:16]
        assert recipe_of(one) == {"recipe": expected, "step": None}


def test_which_weights_a_table_is_of() -> None:
    model = build("lfa", "tiny", seed=0)
    found = checkpoint_of(model)
    shape = {"run": "", "preset": "lfa", "n_layers": model.config.n_layers, "n_heads": model.config.n_heads}
    assert {**found, "checkpoint": ""} == {**shape, "checkpoint": ""} and len(found["checkpoint"]) == 64
    assert checkpoint_of(build("lfa", "tiny", seed=0)) == found != checkpoint_of(build("lfa", "tiny", seed=1))
    bare = SimpleNamespace(config=model.config, state_dict=model.state_dict)  # it does not say where it comes from
    assert checkpoint_of(bare) == found


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_result_names_the_weights_that_were_measured(dtype: str, tmp_path: Path) -> None:
    """The hash is that of the manifest; weights changed in Python have their own, and titles say so. A model whose
    folder is trained on, moved or deleted while a notebook holds it is still measured."""
    shutil.copytree(ZOO / "lfa", run := tmp_path / "mine")
    written = json.loads((run / "manifest.json").read_text())["weights"]
    model = load(run, dtype=dtype)
    shutil.rmtree(run)
    (text := tmp_path / "a.txt").write_text("Tom saw a dog. " * 20)
    how, texts = Ablate(heads=("L0.H0",), draws=0), Documents(str(text))
    found = how.measure(model, texts)
    assert found.about["checkpoint"] == written and found.about["model"] == title_of(model) == f"lfa ({run})"
    kept = model.embed.weight.data.clone()
    model.embed.weight.data[0, 0] += 1  # unseen by torch's counter of versions
    changed = how.measure(model, texts)
    assert changed.about["checkpoint"] == digest(model.state_dict()) != written
    assert checkpoint_of(model)["run"] == ""
    assert changed.about["model"] == f"lfa ({run}, weights changed)"
    assert all("weights changed" in table.title for table in changed.tables.values())
    model.embed.weight.data.copy_(kept)
    assert how.measure(model, texts).about["model"] == f"lfa ({run})"


def test_models_of_others_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str, home: str) -> Any:
        return type(name, (), {"__module__": home})()

    line = "^a GPT2Model of {} has none of the hooks that are read here: write it with .* or boot a Transf"
    nothing = r"is no model: give one that models\.load returns, or its name"
    model, own = Plain(), of("GPT2Model", "mine.transformers.models")
    for thing, said in (
        *((of("GPT2Model", f"{home}.models.gpt2"), line.format(home)) for home in ("transformers", "transformer_lens")),
        *((thing, nothing) for thing in (None, {"blocks": []}, torch.nn.Linear(2, 2))),
    ):
        for call in (readable, MINE().open):
            with pytest.raises(InputError, match=said):
                call(thing)
    assert readable(model) is model and readable(own) is own
    booted = of("TransformerBridge", "transformer_lens.model_bridge.bridge")
    bridged: Any = ModuleType("bridged")  # its own takes a quarter of a minute to import
    bridged.adopt = lambda model: ("adopted", model)
    monkeypatch.setitem(sys.modules, "streamscope.models.interop.huggingface.bridged", bridged)
    assert readable(booted) == ("adopted", booted)
    need_parts(build("lfa", "tiny"), "hydra")
    with pytest.raises(InputError, match="^hydra reads our modules; plain is in a TransformerBridge with hooks only$"):
        need_parts(model, "hydra")


def test_instruments_that_cannot_be_used_are_refused_when_they_are_made() -> None:
    twice = "two figures are called 'a', and one would hide the other"
    for said, more in (
        ("'made' says nothing about itself; write its docstring", {"__doc__": " \n"}),
        ("'made' says nothing about itself; write its docstring", {"__doc__": None}),
        ("'made': runs and figures are tuples", {"runs": "lfa"}),
        ("'made': runs and figures are tuples", {"figures": "delta"}),
        (f"'made': {twice}", {"figures": tuple(map(HeadMap, "bacac"))}),
    ):
        with pytest.raises(TypeError, match=f"^instrument {re.escape(said)}$"):
            made(**more)
    for name in ("name", "takes", "figures", "measure", "suite_seed", "control", "out"):
        options = {"__annotations__": {"fine": int, name: int}, "fine": 1, name: 1}
        line = f"^instrument 'made': the option {name!r} would hide a method or another option$"
        with pytest.raises(TypeError, match=line):
            made("made", Given(), Prompts(), **options)
    one = made("made", Prompts("stories"), figures=(HeadMap("a"), HeadMap("b")), __annotations__={"data": int}, data=1)
    assert (one.name, one.takes) == ("made", (Prompts("stories"),))
    assert one(data=3).data == 3, "no option of data that it does not take"
    with pytest.raises(TypeError):
        one(3)
    with pytest.raises(AttributeError):
        one().data = 2


def test_every_room_lists_its_instruments() -> None:
    known = discover()
    assert list(known) == sorted(known) and named("ablate") is known["ablate"]
    with pytest.raises(InputError, match="unknown instrument 'ablat': did you mean ablate"):
        named("ablat")
    for name, cls in known.items():
        assert cls.name == name
        assert cls.__name__ in dir(importlib.import_module(".".join(cls.__module__.split(".")[:2])))
    root, listed = Path(__file__).parents[2], {cls.__module__ for cls in discover().values()}
    for room in ("probes", "interventions", "features"):
        for path in (root / room).rglob("*.py"):
            if "\n@instrument(" in path.read_text(encoding="utf-8"):
                parts = path.relative_to(root).with_suffix("").parts
                assert ".".join(("streamscope", *parts)).removesuffix(".__init__") in listed


def test_what_will_be_undefined_everywhere_is_said_before_the_work(tmp_path: Path) -> None:
    path, labels = tmp_path / "one.jsonl", tmp_path / "mine.csv"
    row = {"clean": "Tom saw Mia. Mia saw", "corrupt": "Tom saw Mia. Anna saw", "answers": [" Tom"], "foils": [" a"]}
    path.write_text(json.dumps(row))
    labels.write_text("text,label\n" + "".join(f"a w{i},{i % 2}\n" for i in range(12)))
    one = "one independent case, so no value will have an interval or a test; give more"
    model, ablate = load("stories/gpt2"), Ablate(heads=("L5.H0",), draws=0)

    def said(how: Instrument, data: Data, before: bool) -> list[str]:
        lines: list[str] = []

        def bar(steps: Any) -> Any:
            assert bool(lines) == before, "it is said before the work"
            return steps

        bar.say = lines.append  # type: ignore[attr-defined]
        how.measure(model, data, progress=bar)
        return lines

    for how, data, line in (
        (ablate, Documents(max_documents=1), f"Documents: {one}"),
        (Patch(hooks=("z",), layers=("5",)), Prompts(suite=str(path)), f"Prompts: {one}"),
        (Patch(hooks=("z",), layers=("5",), threshold=99), Prompts(suite="ioi"), "no pair differs by 99 nats or more"),
        (Linear(hooks=("hook_embed",), folds=2), Labels(labels=str(labels)), "no word recurs across groups"),
    ):
        assert said(how, data, True)[0].startswith(line)
    assert said(ablate, Documents(max_documents=2), False) == []
