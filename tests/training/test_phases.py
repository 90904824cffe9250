"""Phases of a run: their lengths, batches and mixtures step by step, tokens and FLOPs counted, resumed bit-equal."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from streamscope.models.checkpoint import load
from streamscope.models.flops import training_flops_per_token
from streamscope.models.train import main
from streamscope.models.training.config import Training, phases_of, tokens_seen, with_recipe
from streamscope.models.training.loop import Progress, Trainer
from streamscope.models.training.prepare import prepare
from streamscope.text.windows import Windows, epoch_order
from tests.tiny import arguments, assert_refused, corpus_text, some, with_options
from tests.training import test_loop
from tests.training.runs import cut, rows, same_weights

LENGTHS = "5:8x8,4:4x16,3:2x32"


@pytest.fixture(scope="module")
def source(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    other = tmp_path_factory.mktemp("other") / "other.txt"
    other.write_text(corpus_text(60, 7))
    return f"{corpus[0]}*.75 + {other}*.25"


def phased(corpus: Any, out: Path, phases: str, *more: str, data: str | None = None) -> list[str]:
    argv = arguments((data or corpus[0], corpus[1]), out, "--phases", phases)
    steps = argv.index("--steps")
    return with_options([*argv[:steps], *argv[steps + 2 :]], more)


def trainer(corpus: tuple[Path, Path], folder: Path, data: str | None = None, **given: Any) -> Trainer:
    usual, out = {"batch_size": 4, "warmup": 2, "steps": None}, folder / str(len(list(folder.iterdir())))
    return test_loop.trainer((data or corpus[0], corpus[1]), out, **usual | given)


def test_the_spelling() -> None:
    one, two = phases_of("6000:8x64:.7/.3, 500:4x256")
    assert (one.first, one.steps, one.batch_size, one.n_ctx, one.weights) == (0, 6000, 8, 64, (0.7, 0.3))
    assert (two.first, two.steps, two.batch_size, two.n_ctx, two.weights) == (6000, 500, 4, 256, None)
    assert phases_of(None) == []
    bad = "8x64 5:8 5:8x0 0:8x64 5:8x64: 5:8x64:a 5:8x64:0/0 5:8x64:-1/2 5:8x64, 5x8x64 5:8x64:1/. 5:8x64:1e999/1"
    for text in ("", *bad.split()):
        assert_refused("write STEPS:BATCHxCONTEXT", phases_of, text)


def test_learned_positions_that_come_late_are_told(corpus: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    for phases, told in (("6000:8x64,500:8x128", "learned positions 64 to 127 are not all trained before step 6,000: "),
                         ("9:8x64,9:8x96", "learned positions 96 to 127 are never trained")):  # fmt: skip
        assert Training(phases=phases).late_positions(128).startswith(told)
    assert not Training(phases="9:8x128,9:8x64").late_positions(128) and not Training().late_positions(128)
    for preset, told in (("std-t", True), ("lfa", False)):  # lfa rotates
        argv = phased(corpus, tmp_path / preset, "2:2x8,1:2x32")
        main([preset if word == "lfa" else word for word in argv])
        assert ("learned positions 8 to 31 are not all trained before step 2" in capsys.readouterr().err) == told


def test_phases_say_how_long_the_run_is() -> None:
    training = with_recipe(Training(phases=LENGTHS), "lfa", "small")
    assert training.steps == 12 and training.epochs is None
    assert with_recipe(Training(phases=LENGTHS), "gpt2", "paper").steps == 12  # a recipe's own steps give way
    assert replace(training, seed=1).steps == 12
    for more in ({"steps": 13}, {"epochs": 1.0}):
        assert_refused("leave out --steps and --epochs", Training, phases=LENGTHS, **more)


def test_every_step_has_the_shape_of_its_phase(corpus, tmp_path) -> None:
    t = trainer(corpus, tmp_path, phases=LENGTHS, accumulate=2)
    t.loss = Mock(wraps=t.loss)
    for _ in range(12):
        t.update()
    shapes = [tuple(call.args[0].shape) for call in t.loss.call_args_list]
    assert shapes == [(4, 8)] * 10 + [(2, 16)] * 8 + [(1, 32)] * 6  # two micro-batches a step


def test_the_order_of_a_phase_is_one_of_its_own(corpus, tmp_path) -> None:
    t, plain = trainer(corpus, tmp_path, phases=LENGTHS), trainer(corpus, tmp_path, steps=12)
    short = Windows(prepare(str(corpus[0]), str(corpus[1]), None, 300).train, 16)
    assert t.indices(5).tolist() == epoch_order(len(short), 0, 0, 1)[:4].tolist()
    assert t.indices(8).tolist() == epoch_order(len(short), 0, 0, 1)[12:16].tolist()
    assert t.indices(4).tolist() == t.indices(4).tolist()  # and back again
    assert plain.indices(2).tolist() == epoch_order(len(plain.train), 0, 0)[8:12].tolist()
    assert epoch_order(50, 3, 1, 0).tolist() == epoch_order(50, 3, 1).tolist() != epoch_order(50, 3, 1, 1).tolist()
    inputs, _ = t.phases[1].windows.batch(t.indices(5))
    assert torch.equal(inputs, short.batch(t.indices(5))[0])


def test_one_phase_is_a_run_without_phases(corpus, tmp_path) -> None:
    main(arguments(corpus, tmp_path / "plain"))
    main(phased(corpus, tmp_path / "phase", f"12:4x{load(tmp_path / 'plain').config.n_ctx}"))
    assert same_weights(tmp_path / "plain", tmp_path / "phase")
    assert rows(tmp_path / "plain") == rows(tmp_path / "phase")


def test_weights_change_with_the_phase(corpus, source, tmp_path) -> None:
    t = trainer(corpus, tmp_path, source, phases="250:4x8:1/0,250:4x8:.2/.8,250:4x16")
    found = []
    for first in (0, 250, 500):
        windows_of = t.phases[first // 250].windows
        drawn = np.concatenate([t.indices(step) for step in range(first, first + 250)])
        found.append(float((drawn >= windows_of.first[1]).mean()))
    assert found == [0.0, 0.8, 0.25]


THREE = "5:8x8:1/0,4:4x16:.5/.5,3:2x32"


@pytest.fixture(scope="module")
def whole(corpus, source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("phases") / "whole"
    main(phased(corpus, out, THREE, data=source))
    return out


@pytest.mark.parametrize("step", some([3, 5, 7, 9, 11], [5, 7]))
def test_stopped_inside_and_at_the_end_of_a_phase_it_goes_on_bit_equal(corpus, source, whole, tmp_path, step) -> None:
    cut(step, main, phased(corpus, tmp_path / "cut", THREE, data=source))
    assert max(row["step"] for row in rows(tmp_path / "cut")) <= step
    main(["--resume", "--out", str(tmp_path / "cut")])
    assert same_weights(whole, tmp_path / "cut")
    assert rows(whole)[-1] == rows(tmp_path / "cut")[-1]
    assert json.loads((tmp_path / "cut/config.json").read_text())["training"]["phases"] == THREE


def test_tokens_are_counted_by_phase(corpus, tmp_path) -> None:
    t = trainer(corpus, tmp_path, phases=LENGTHS)
    config = {"phases": LENGTHS, "batch_size": 4}
    counted = [0]
    for step in range(12):
        inputs, _ = t.phases[t.phase(step)].windows.batch(t.indices(step))
        counted.append(counted[-1] + inputs.numel())
    assert [tokens_seen(config, 32, step) for step in range(13)] == counted
    assert tokens_seen({"batch_size": 4}, 32, 12) == 4 * 32 * 12
    assert tokens_seen(config, 32, 99) == counted[-1]


def test_flops_and_speed_are_those_of_the_phase(corpus, tmp_path) -> None:
    t = trainer(corpus, tmp_path, phases="2:8x8,2:2x32")
    assert [phase.flops for phase in t.phases] == [sum(training_flops_per_token(t.model, n).values()) for n in (8, 32)]
    t.training = replace(t.training, log_every=100)
    for _ in range(3):
        t.update()
        t._log(Progress(4, shown=False), 0.0)
    assert t.tokens == 64 * 3
    assert t.flops == 2 * 64 * t.phases[0].flops + 64 * t.phases[1].flops


@pytest.mark.parametrize(("phases", "more", "line"), [
    ("5:8x9999", [], "the model's context is"),
    ("5:8x8:.5/.5", [], "need a mixture"),
    ("5:100000x8", [], "a phase's batch needs 100000"),
    ("5:6x8", ["--accumulate", "4"], "a batch of 6 sequences is not divisible by 1 processes × 4 micro-batches"),
    ("5:8x8", ["--steps", "9"], "leave out --steps"),
])  # fmt: skip
def test_bad_phases_are_one_line_and_write_nothing(corpus, tmp_path, phases: str, more: list[str], line: str) -> None:
    assert_refused(line, main, phased(corpus, tmp_path / "out", phases, *more))
    assert not (tmp_path / "out").exists()


def test_a_run_writes_down_its_mixture(source, whole: Path) -> None:
    config, manifest = (json.loads((whole / name).read_text()) for name in ("config.json", "manifest.json"))
    packed = manifest["data"]["train"]
    assert config["data"]["data"] == source and packed["corpus"] == packed["source"]["fingerprint"]
    assert [part["weight"] for part in packed["source"]["parts"]] == [0.75, 0.25]


def test_a_changed_part_is_told_on_resume(source, corpus, tmp_path) -> None:
    part = tmp_path / "part.txt"
    shutil.copy(corpus[0], part)
    cut(5, main, arguments((f"{part}*1 + {corpus[0]}*1", corpus[1]), tmp_path / "run"))
    part.write_text(corpus_text(120, 9))
    assert_refused("the train data changed", main, ["--resume", "--out", str(tmp_path / "run")])
