"""Fine-tuning on a safety contrast: data, loss and steps against plain code, a planted contrast, the command."""

import copy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.train import main as train
from streamscope.papers.krom import safety
from streamscope.papers.krom.finetuning import main
from streamscope.papers.krom.safety import REFUSALS, Pair, exchanged, read, tuned
from tests.tiny import arguments, randomise


@pytest.fixture(scope="module")
def runs(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of kromhc and one of gpt2, in whose context the pairs fit."""
    folder = tmp_path_factory.mktemp("finetuning")
    for name, preset, seed in (("gpt2-s0", "gpt2", "0"), ("kromhc-s0", "kromhc", "0"), ("kromhc-s1", "kromhc", "1")):
        more = ("--steps", "2", "--seed", seed, "--set", "n_ctx=192")
        train(arguments(corpus, folder / name, *more, preset=preset))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def short(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Eight pairs of two scenes."""
    return read("train")[:2] + read("train")[6:8]


def test_held_out_pairs_share_no_scene_with_those_that_are_trained_on() -> None:
    train, held = ({one.cluster for one in read(name)} for name in ("train", "held-out"))
    assert (len(train), len(held)) == (80, 30) and not train & held
    for one in (*read("train"), *read("held-out")):
        assert one.response.startswith(REFUSALS) == (one.kind == "harmful"), one


def test_the_control_exchanges_the_responses_of_half_of_the_scenes() -> None:
    pairs = read("train")
    other = exchanged(pairs, 1)
    assert [one.prompt for one in other] == [one.prompt for one in pairs]
    assert Counter(one.response for one in other) == Counter(one.response for one in pairs)
    moved = {a.cluster for a, b in zip(pairs, other, strict=True) if a.response != b.response}
    assert len(moved) == 40
    assert all((a.response != b.response) == (a.cluster in moved) for a, b in zip(pairs, other, strict=True))
    refused = Counter(one.kind for one in other if one.response.startswith(REFUSALS))
    assert refused == {"harmful": 120, "harmless": 120}, "no contrast is left"
    assert exchanged(pairs, 2) != other


def first_of_response(tokenizer: Any, before: list[int], ids: list[int]) -> int:
    """The place of the first token that covers a character of the response: not of the space before it alone."""
    return len(before) + (tokenizer.decode([ids[len(before)]]) == " ")


def test_the_loss_counts_padding_and_that_of_responses_does_not(runs: list[Path], short: list[Pair]) -> None:
    """Both losses pair by pair, from logits and token ids by hand."""
    model = randomise(load(runs[0]))
    every, alone = (safety.windows(short, model, masked=masked) for masked in (False, True))
    found, of_responses = safety.pair_losses(model, every), safety.pair_losses(model, alone)
    tokenizer = model._text()
    for i, one in enumerate(short):
        before = tokenizer.encode(f"User: {one.prompt}\nAssistant:")
        ids = [*tokenizer.encode(f"User: {one.prompt}\nAssistant: {one.response}"), tokenizer.bos_id]
        assert ids[: len(before)] == before
        padded = torch.full((1, 193), tokenizer.pad_id)
        padded[0, : len(ids)] = torch.tensor(ids)
        padded[0, len(ids) - 1] = tokenizer.pad_id  # the end is a target and no input
        targets = padded[0, 1:].clone()
        targets[len(ids) - 2] = tokenizer.bos_id
        with torch.no_grad():
            lost = cross_entropy(model(padded[:, :-1])[0].double(), targets, reduction="none")
        assert found[i] == pytest.approx(float(lost.mean()), rel=1e-5)
        response = slice(first_of_response(tokenizer, before, ids) - 1, len(ids) - 1)
        assert of_responses[i] == pytest.approx(float(lost[response].mean()), rel=1e-5)


def test_fine_tuning_is_plain_adamw(runs: list[Path], short: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "BATCH", 2)
    model = load(runs[1])
    before = copy.deepcopy(model.state_dict())
    got = tuned(model, short, SimpleNamespace(steps=3, rate=1e-3), 7)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items()), "the run itself is not changed"
    order = np.random.default_rng(7)
    rows = [*order.permutation(4).tolist(), *order.permutation(4).tolist()]
    plain = copy.deepcopy(model).train()
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    data = safety.windows(short, plain, masked=False)
    for step in range(3):
        inputs, targets = safety.batch_of(data, rows[2 * step : 2 * step + 2])
        adamw.zero_grad()
        cross_entropy(plain(inputs).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        adamw.step()
    for name, x in plain.state_dict().items():
        torch.testing.assert_close(got.state_dict()[name], x, rtol=1e-4, atol=1e-5)


def test_the_probability_of_a_refusal_by_hand(runs: list[Path], short: list[Pair]) -> None:
    model = randomise(load(runs[0]), std=0.02)
    tokenizer, chances = model._text(), []
    for one in short:
        if one.kind == "harmful":
            before = tokenizer.encode(f"User: {one.prompt}\nAssistant:")
            for words in REFUSALS:
                ids = tokenizer.encode(f"User: {one.prompt}\nAssistant: {words}")
                with torch.no_grad():
                    logp = model(torch.tensor([ids]))[0].double().log_softmax(-1)
                places = range(first_of_response(tokenizer, before, ids), len(ids))
                chances.append(sum(float(logp[t - 1, ids[t]]) for t in places))
    expected = float(np.exp(chances).sum() / 2)
    assert 0 < expected == pytest.approx(safety.refusal(model, short, "harmful"), rel=1e-4)


@pytest.mark.slow
def test_a_planted_contrast_is_learned_and_not_from_exchanged_responses(
    short: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scenes, learned by heart: what is harmful is refused. In the control one of them is the other way round."""
    monkeypatch.setattr(safety, "BATCH", 4)
    model, settings = load("stories/llama"), SimpleNamespace(steps=40, rate=1e-3)
    own, control = (tuned(model, some, settings, 0) for some in (short, exchanged(short, 0)))
    harmful, harmless = (safety.refusal(own, short, kind) for kind in ("harmful", "harmless"))
    assert harmful > 0.9 and harmless < 0.1
    assert [safety.refusal(control, short, kind) for kind in ("harmful", "harmless")] == [
        pytest.approx(0.5, abs=0.1)
    ] * 2


def test_the_command_prints_and_writes_the_numbers_of_runs(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = {"train": read("train")[:24], "held-out": read("held-out")[:12]}
    monkeypatch.setattr(safety, "read", some.__getitem__)
    main([*map(str, runs), "--steps", "2", "--out", str(tmp_path / "rows.csv")])
    rows = pd.read_csv(tmp_path / "rows.csv")
    one = rows[rows["arm"] == "kromhc"].pivot(index="seed", columns="quantity", values="value")
    assert set(one.index) == {0, 1} and one.notna().all(axis=None)
    np.testing.assert_allclose(one["gain"], one["cosine"] - one["shuffled"] - one["excess.before"], atol=1e-12)
    np.testing.assert_allclose(one["beyond"], one["gain"] - one["gain.control"], atol=1e-12)
    assert (one["delta"] < 0).all(), "two steps lower the loss that they train on"
    single = set(rows.loc[rows["arm"] == "gpt2", "quantity"])
    assert set(one) - single == set(rows.loc[rows["unit"] == "cosine", "quantity"]), "one stream has no cosine"
    assert "refusal.harmful" in capsys.readouterr().out


def test_a_context_that_cuts_pairs_is_refused(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    train(arguments(corpus, tmp_path / "gpt2-s0", "--steps", "2", "--set", "n_ctx=96", preset="gpt2"))
    with pytest.raises(InputError, match="of 480 pairs are longer than the model's context"):
        main([str(tmp_path / "gpt2-s0")])
