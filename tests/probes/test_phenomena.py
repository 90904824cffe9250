"""The competence gate: verdicts and choices by hand, planted heads and losses, each line against its own probe."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import Documents, InputError, Result, load
from streamscope.instruments.observations import Contrast, estimate
from streamscope.instruments.open_data import open_data
from streamscope.instruments.progress import progress_bar
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.stats.held_out import CHOSEN, SIGNED, best_head_held_out, halves
from streamscope.models import hooks
from streamscope.models.checkpoint import run_folder
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.probes import Heads, Pds, Phenomena, coherence
from streamscope.probes.heads import measure as heads_module
from streamscope.probes.heads.measure import plan, trained_words, words
from streamscope.probes.pds import NOUNS
from streamscope.probes.phenomena import COREFERENCE, PAIRED, PERIODS, PHENOMENA, main
from streamscope.probes.phenomena import measure as gate
from streamscope.probes.probe import measure
from tests import tiny
from tests.probes import planted

REPEATED = (*PERIODS, "repeats")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phenomena") / "krom"
    more = ["--set", "n_ctx=256", "--set", "residual.b_res=-2", "--lr", "0.02", "--snapshots", "0,4"]
    train(tiny.arguments(corpus, out, *more, preset="kromhc"))
    return out


@pytest.fixture(scope="module")
def one(run: Path) -> object:
    return load(run)


@pytest.fixture(autouse=True)
def few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny corpus has fewer words than are repeated: here any token is one."""
    monkeypatch.setattr(heads_module, "words", lambda tokenizer: np.arange(1, tokenizer.d_vocab))
    monkeypatch.setattr(heads_module, "FREQUENT", 0)


def look(model: object, name: str, documents: int = 5) -> dict[str, object]:
    """The row of one phenomenon."""
    small = {"n": 60} if name in PAIRED else {"sequences": 4} if name in REPEATED else {}
    data = [Documents(max_documents=documents)] if name in ("loss", "attention", "depth", *REPEATED) else []
    (row,) = Phenomena(only=(name,), **small).measure(model, *data).table().frame.to_dict("records")
    return row


def test_verdicts_by_hand() -> None:
    nan = float("nan")
    assert [gate.verdict(0.5, low, high, 0.3) for low, high in ((0.31, 0.7), (0.3, 0.7), (0.1, 0.31), (0.1, 0.3))] == [
        "present", "undecided", "undecided", "absent",
    ]  # fmt: skip
    assert [gate.verdict(v, nan, nan, 0.0) for v in (0.1, 0.0, nan)] == ["present", "absent", ""]
    assert [gate.verdict(v, nan, nan, 0.0, one_case=True) for v in (0.1, 0.0, nan)] == ["undecided", "undecided", ""]
    tops = torch.tensor([[5, 1, 7, 9], [5, 2, 7, 9], [5, 3, 8, 9], [5, 3, 7, 4]])
    assert gate.settling_depth(tops).tolist() == [0, 2, 3, 3]


def test_one_document_decides_nothing(one: object) -> None:
    rows = Phenomena(only=("attention",)).measure(one, Documents(max_documents=1)).table()
    assert rows.frame["verdict"].tolist() == ["undecided"] and rows.frame["clusters"].tolist() == [1]
    assert rows.missing[0, "value_low"] == "one independent case"
    assert rows.title.endswith("; one independent case decides nothing: attention")


def test_what_a_repeat_saves_by_hand() -> None:
    """Losses set to 3 nats the first time and 1 the second; the first token of each saying does not count."""
    tokens, logits = [[0, 1, 2, 3, 4, 1, 2, 3, 4], [0, 8, 5, 6, 7, 8, 5, 6, 7]], []
    p = np.exp([-9.0, -3.0, -3.0, -3.0, -9.0, -1.0, -1.0, -1.0])
    for ids in tokens:
        rows = torch.from_numpy(np.log(np.repeat((1 - p)[:, None] / 8, 9, axis=1)))
        rows[range(8), ids[1:]] = torch.from_numpy(np.log(p))
        logits.append(torch.cat([rows, rows[-1:]]))
    for bos in (0, 1):
        found = gate.repetition_gain([rows[bos:] for rows in logits], [ids[bos:] for ids in tokens], 4)
        assert found == pytest.approx([2.0, 2.0])


def test_attention_that_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even, on one key, on two of nine, .3 on one of nine: entropy ln 9, 0, ln 2 and .94 ln 9 of ln 9. With queries
    of 0 or of ten thousand times their size, every head of a model is at one end or the other. A few rows at a time
    give the same."""
    two = torch.zeros(10, 10)
    two[:, :2] = 0.5
    rest = 0.7 * torch.ones(10, 10).tril() / torch.arange(10).clamp(min=1)[:, None]
    rest[:, 0] = 0.3
    patterns = torch.stack([torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None], torch.eye(10), two, rest])
    assert gate.chooses(patterns).tolist() == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]
    model = load("lfa")
    before = look(model, "attention", documents=8)
    assert 0.5 < before["value_low"] < before["value"] < before["value_high"] and before["verdict"] == "present"
    monkeypatch.setattr(gate, "PATTERNS", 1)
    assert look(model, "attention", documents=8)["value"] == before["value"]
    with torch.no_grad():
        for block, factor in zip(model.blocks, (0.0, 1e4, 0.0, 1e4, 0.0, 1e4), strict=True):
            block.attn.q.weight *= factor
    after = look(model, "attention", documents=8)
    assert after["value"] < 0.05 and after["verdict"] == "absent" and after["n"] == before["n"] == 8


@pytest.mark.parametrize(("name", "period"), PERIODS.items())
def test_a_planted_induction_head_is_found(one: object, name: str, period: int) -> None:
    """Head 2 of layer 1 looks at what followed the same word: a permanent hook puts it there."""
    before = look(one, name, documents=60)
    assert before["verdict"] == "absent" and before["n"] == 4
    point = one.hook_dict["blocks.1.attn.hook_pattern"]

    def plant(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        new = pattern.clone()
        for i in range(period + 1, min(2 * period + 1, new.shape[-1])):
            new[:, 2, i] = 0
            new[:, 2, i, i - period + 1] = 1
        return new

    point.add_hook(plant, is_permanent=True)
    try:
        with pytest.warns(UserWarning, match="hooks of yours at blocks.1.attn.hook_pattern"):
            found = look(one, name, documents=60)
    finally:
        point.remove_hooks("fwd", including_permanent=True)
    assert (found["value"], found["verdict"], found["head"]) == (1.0, "present", "L1.H2 / L1.H2")
    assert look(one, name, documents=60) == before


def test_repeated_words_are_words_that_the_documents_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that copies trained words and no others is found, because no other word is repeated."""
    monkeypatch.undo()
    model = load("lfa")
    opened, tokenizer = open_data(Documents(max_documents=60), model), model.tokenizer
    counts = Counter(token for ids in opened.rows() for token in ids)
    pool = trained_words(tokenizer, opened.rows())
    others = set(words(tokenizer)) - set(pool)
    assert min(counts[token] for token in pool) >= 5 > max(counts[token] for token in others) and others
    query = plan(Heads(sequences=9, length=6, pool="trained"), [], tokenizer, pool)
    assert {token for ids in query.tokens for token in ids[1:]} <= set(pool)
    for ids in Heads(sequences=3, length=6, pool="words").plan([], tokenizer).tokens:
        pieces = tokenizer.pieces(ids[1:])
        assert all(text[0] == " " and text[1:].isalpha() and len(text) > 2 for text in pieces)
        assert ids[1:7] == ids[7:] and len(set(ids[1:7])) == 6
    with pytest.raises(InputError, match="--length 24 needs as many different words, the documents have 3 of them 5"):
        plan(Heads(length=24, pool="trained"), [], tokenizer, pool[:3])


def on_pairs(monkeypatch: pytest.MonkeyPatch, category: str, name: str, model: object) -> Any:
    """The table of one phenomenon, measured on 24 planted pairs of a category."""
    pairs = planted.suite(24)
    pairs = replace(pairs, prompts=tuple(replace(p, category=category) for p in pairs.prompts))
    monkeypatch.setattr(gate, "load_suite", lambda name, n: pairs)
    return Phenomena(only=(name,)).measure(model).table()


@pytest.mark.parametrize("name", COREFERENCE)
def test_a_planted_coreference_head_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One planted head attends to the tool in both orders; a head of recency does in one, which is no finding."""
    category = {"coreference-gender": "gender", "coreference-number": "plurality"}.get(name, "competing-nouns")
    model, columns = planted.model(), ["value", "verdict", "head", "n"]
    found = on_pairs(monkeypatch, category, name, model).frame.iloc[0]
    assert found[columns].tolist() == [1.0, "present", "L0.H1 / L0.H1", 24]
    with monkeypatch.context() as patch:
        patch.setattr(gate, "align", lambda *given: align(*given).only(range(47)))
        found = on_pairs(monkeypatch, category, name, model).frame
    assert found["n"][0] == 23, "a pair that lost one order is none"
    with torch.no_grad():
        for head in (1, 3):  # semantic, leaning
            model.blocks[0].attn.k.weight[8 * head : 8 * head + 8] = 0
    found = on_pairs(monkeypatch, category, name, model).frame.iloc[0]
    assert found[columns[:2]].tolist() == [0.0, "absent"]


@pytest.mark.parametrize(("name", "category"), [("position", "competing-nouns"), ("position-gender", "gender")])
def test_a_planted_recency_head_is_found(monkeypatch: pytest.MonkeyPatch, name: str, category: str) -> None:
    model = planted.model()
    found = on_pairs(monkeypatch, category, name, model).frame.iloc[0]
    assert (found["value"], found["verdict"]) == (pytest.approx(1, abs=1e-6), "present")
    assert found["head"] == "L0.H0 (last) / L0.H0 (last)"
    with torch.no_grad():
        model.blocks[0].attn.positions.slopes.zero_()
    assert on_pairs(monkeypatch, category, name, model).frame["verdict"].tolist() == ["absent"]
    table = on_pairs(monkeypatch, "plurality", name, model)
    assert table.missing[0, "value"] == f"the pairs have no category {category}"


def test_copying_is_what_coherence_says_is_due_to_the_nouns(one: object, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.parquet"
    coherence.main([str(run), "--suite", "stories", "--n", "60", "--out", str(out)])
    row = pd.read_parquet(out).set_index("category").loc["all"]
    found, lift = look(one, "copying"), look(one, "lift")
    for of_gate, of_probe in (("value", "due"), ("value_low", "due_low"), ("value_high", "due_high")):
        assert found[of_gate] == pytest.approx(row[of_probe], rel=1e-9)
    assert found["n"] == lift["n"] == row["controls"]
    assert lift["value"] == pytest.approx(row["lift"], rel=1e-9) and lift["value_low"] < lift["value"]


def test_loss_and_depth_are_those_of_the_documents(one: object, run: Path) -> None:
    shards = evaluation_shards(run_folder(run), one.tokenizer, None)
    losses, depths = [], []
    for d in range(5):
        ids = torch.tensor(shards.document(d)[: one.config.n_ctx + 1].tolist())[None]
        logits = one.layer_logits(ids[:, :-1])[0]  # [T, layers, V]
        losses.append(torch.nn.functional.cross_entropy(logits[:, -1].double(), ids[0, 1:], reduction="sum"))
        for tops in logits.argmax(-1).tolist():
            depths.append(min(k for k in range(len(tops)) if set(tops[k:]) == {tops[-1]}))
    assert look(one, "loss")["value"] == pytest.approx(float(sum(losses)) / len(depths), rel=1e-6)
    share = max(depths.count(layer) for layer in set(depths)) / len(depths)
    found = look(one, "depth")
    assert found["value"] == pytest.approx(1 - share) and found["n"] == 5
    opened = open_data(Documents(max_documents=5), one)
    total, _ = opened.sums("cpu", gate.losses_and_depths(one))
    assert total["layers"].sum(1).tolist() == [depths.count(layer) for layer in range(one.config.n_layers)]


def test_depth_of_a_large_model_is_read_at_few_tokens(one: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token in k of all documents, counted across batches; the loss is still that of every token."""
    documents = Documents(max_documents=5, batch_size=2)
    batches = [*open_data(documents, one).batches()]
    tops = torch.cat([one.layer_logits(tokens).argmax(-1)[targets != -100] for _, tokens, targets in batches]).T
    assert len(batches) == 3 and tops.shape[0] == one.config.n_layers
    kept = gate.settling_depth(tops[:, ::7])
    logits = one.config.n_layers * one.config.d_vocab
    monkeypatch.setattr(gate, "DEPTH_LOGITS", logits * (-(-tops.shape[1] // 7)))
    found = Phenomena(only=("loss", "depth")).measure(one, documents).table().frame
    depth, commonest = found.set_index("phenomenon").loc["depth"], int(kept.mode().values)
    assert depth["value"] == pytest.approx(float((kept != commonest).double().mean()))
    assert depth["head"] == f"commonest: L{commonest}, at {len(kept)} tokens, 1 of 7" and depth["n"] == 5
    assert found.set_index("phenomenon").loc["loss", "value"] == pytest.approx(look(one, "loss")["value"])


def test_one_pass_of_repeated_words_serves_both_phenomena(one: object, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[hooks.Query] = []
    monkeypatch.setattr(gate, "run", lambda model, query: passes.append(query) or hooks.run(model, query))

    def values(*only: str) -> list[float]:
        passes.clear()
        how = Phenomena(only=only, sequences=8)
        return how.measure(one, Documents(max_documents=60)).table().frame["value"].tolist()

    induction, repeats = values("induction-24", "repeats")
    assert sum(len(query.tokens) for query in passes) == 8
    assert values("induction-24") + values("repeats") == pytest.approx([induction, repeats], abs=1e-6)
    monkeypatch.setattr(gate, "REPEAT_LOGITS", 1)
    assert values("repeats") == pytest.approx([repeats], abs=1e-6)
    assert [len(query.logits) for query in passes] == [1] * 8, "few logits at once"


def test_measured_phenomena_are_kept_when_one_fails_or_the_command_is_killed(one: object, monkeypatch) -> None:
    def measured(look: Any, **how: Any) -> Any:
        monkeypatch.setitem(gate.LOOKS, "mixing", look)
        only = ("loss", "repeats", "mixing")
        return Phenomena(only=only, sequences=4).measure(one, Documents(max_documents=60), **how).table()

    def failing(error: BaseException) -> Any:
        def look(of: object, name: str) -> gate.Look:
            raise error

        return look

    table = measured(failing(InputError("no memory")))
    assert table.frame["value"].notna().tolist() == [True, True, False]
    assert table.missing[2, "value"] == table.missing[2, "level"] == "failed: no memory"
    with pytest.raises(InputError, match="no memory"):
        Phenomena(only=("mixing",)).measure(one)
    table = measured(lambda of, name: (gate.observed(name, [1.0, float("nan")]), ""))
    assert table.frame["value"].notna().tolist() == [True, True, False] and "nan" in table.missing[2, "value"]
    bar = progress_bar("x", keep=True)  # that of a command
    table = measured(failing(KeyboardInterrupt()), progress=bar)
    assert table.frame["phenomenon"].tolist() == ["loss", "repeats"] and table.frame["value"].notna().all()
    assert bar.interrupted[0] == "interrupted: 2 of 3 phenomena measured"


def test_position_is_pds_of_the_stories(one: object) -> None:
    """Values, head and number of pairs are those of the probe on the suite that the gate names."""
    table = measure(one, Pds(), align(load_suite("stories", n=60), one.tokenizer, one.config.n_ctx))
    table = table[table["category"] == "competing-nouns"]
    chosen, head = best_head_held_out(table, ["difference"], halves(table, 0)[0], signs=NOUNS)
    found = look(one, "position")
    assert (found["head"], found["n"]) == (head, len(chosen))
    assert found["value"] == pytest.approx(chosen["difference"].mean(), abs=1e-6)


@pytest.mark.parametrize("name", [name for name, (_, unit) in PHENOMENA.items() if unit.startswith("share")])
def test_the_interval_of_a_share_ends_at_0_and_1(name: str) -> None:
    for few in (0.0, 1.0):
        block = gate.observed(name, [few] * 2 + [1 - few] * 58, cluster=[str(i // 3) for i in range(60)])
        of_value = [Contrast(quantity="value", weights={0: 1.0}, tested=False)]
        row = estimate(block, of_value).frame.iloc[0]
        assert 0 <= row["low"] < row["value"] < row["high"] <= 1


def test_a_head_that_the_cases_chose_has_a_wider_interval(one: object) -> None:
    """`held_out.SIGNED` where the sign is chosen as well, `CHOSEN` where the head is, 1 of what chooses nothing."""
    wanted = {"position": SIGNED, "coreference": CHOSEN, "induction-6": CHOSEN, "loss": 1.0}
    found = Phenomena(only=tuple(wanted), n=60).measure(one, Documents(max_documents=8))
    assert {name: found.blocks[name].measure.inflation for name in wanted} == wanted


def test_mixing_is_that_of_the_monitor_and_a_model_without_it_has_no_verdict(one: object) -> None:
    found = look(one, "mixing")  # twelve steps add nothing to a bias of −2
    assert (found["value"], found["verdict"], found["n"]) == (0.0, "absent", 3)
    found = Phenomena(only=("loss", "mixing")).measure("lfa", Documents(max_documents=4)).table()
    assert found.frame["verdict"].tolist() == ["–", "–"]
    assert found.missing[1, "value"] == found.missing[1, "level"] == "the model has no hyper-connections"
    assert found.missing[0, "limit"] == "the phenomenon has no limit"


def curve(values: list[float], width: float = 0.1) -> pd.DataFrame:
    at = np.array(values)
    table = {"step": [0, *(2**i for i in range(len(values) - 1))], "value": at, "value_low": at - width}
    level = ["present" if value - width > 0.3 else "absent" for value in values]
    return pd.DataFrame({**table, "value_high": at + width, "verdict": level, "clusters": 5})


def test_halfway_by_hand() -> None:
    row, _ = gate._when(curve([5.0, 4.9, 2.0, 4.8, 2.5, 1.0]))
    assert (row["first"], row["last"], row["after"], row["by"]) == (5.0, 1.0, 4, 8), "for good: the dip does not count"
    row, _ = gate._when(curve([0.0, 0.0, 1.0]))
    assert (row["after"], row["by"], row["present_from"]) == (1, 2, 2), "upwards as well"
    row, why = gate._when(curve([1.0, 0.0, 1.1]))
    assert np.isnan(row["by"]) and "do not differ clearly" in why["by"] and row["present_from"] == 2
    row, why = gate._when(curve([1.0, 0.5, 0.0]))
    assert np.isnan(row["present_from"]) and why["present_from"] == "not present at the last snapshot"
    assert np.isnan(row["tokens"]) and why["tokens"] == why["present_from"]
    table = curve([0.0, 0.0, 1.0])
    same = table.assign(**{end: table[end].where(table["value"] > 0) for end in ("value_low", "value_high")})
    assert gate._when(same)[0]["by"] == 2, "0 in every case is a value that others differ from"
    assert np.isnan(gate._when(same.assign(clusters=1))[0]["by"]), "0 in one case is not"
    row, why = gate._when(table.assign(tokens=512 * table["step"]))
    assert row["tokens"] == 1024 and "tokens" not in why
    row, why = gate._when(table)
    assert np.isnan(row["tokens"]) and why["tokens"] == "not trained on text"


def test_every_snapshot_of_a_training_is_in_one_table(run: Path, tmp_path: Path) -> None:
    main([f"{run}@all", "--max-documents", "60", "--only", "loss", "mixing", "--out", str(tmp_path / "p.parquet")])
    result = Result.load(tmp_path / "p.parquet")
    table = result.table().frame
    assert table["step"].tolist() == [0] * 2 + [4] * 2 + [12] * 2
    assert (table["tokens"] == table["step"] * 4 * 256).all(), "four sequences a step"
    loss = table[table["phenomenon"] == "loss"].set_index("step")["value"]
    assert loss[12] < loss[0] - 0.5, "it learns"
    when = result.table("when").frame.set_index("phenomenon")
    assert when.loc["loss", ["first", "last"]].tolist() == [loss[0], loss[12]] and when.loc["loss", "by"] in (4, 12)


@pytest.mark.slow
def test_each_snapshot_stands_beside_that_of_the_control(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    few = ["--only", "loss", "--max-documents", "4", "--out", str(out)]
    main([f"{run}@all", "--control", f"{run}@all", *few])
    table = Result.load(out).table("loss-control").frame
    assert table["step"].tolist() == [0, 4, 12] and (table["value_difference"] == 0).all()
    main([f"{run}@0", f"{run}@12", "--control", str(run), *few])
    table = Result.load(out).table("loss-control").frame
    assert table["value_difference"].iloc[0] > 0.5 and table["value_difference"].iloc[1] == 0
    with pytest.raises(InputError, match="no snapshot of the step of"):
        main([f"{run}@all", str(run), "--control", f"{run}@all", *few[:2]])
