"""The parts of a training step: schedule, decay, accumulation, stops, what is kept."""

import errno
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import streamscope.models.tensors
from streamscope.cli.errors import InputError
from streamscope.models import build
from streamscope.models.checkpoint import load
from streamscope.models.train import main
from streamscope.models.training import config
from streamscope.models.training.config import Training, saved_training, with_recipe
from streamscope.models.training.data import prepare, windows
from streamscope.models.training.loop import Stopped, Trainer, fastest_dtype, run_to_end
from streamscope.models.training.run import Run, load_checkpoint, read_metrics
from tests.tiny import arguments


def trainer(corpus, out: Path, preset: str = "lfa", **changes) -> Trainer:
    train, valid = map(str, corpus)
    data = prepare(train, valid, None, 300)
    training = with_recipe(Training(**{"batch_size": 8, "steps": 12, "device": "cpu", **changes}), preset, "tiny")
    model = build(preset, "tiny", tokenizer=data.tokenizer, d_vocab=300)
    run = Run.create(out, {"model": {}, "training": {}, "data": {}}, data.tokenizer, {})
    return Trainer(model, training, windows(data.train, 32), windows(data.valid, 32), run, "cpu")


@pytest.mark.parametrize(("preset", "packing"), [("lfa", "stream"), ("hdpl", "document")])
def test_evaluation_is_the_mean_over_tokens(preset: str, packing: str, corpus, tmp_path: Path) -> None:
    t = trainer(corpus, tmp_path / "a", preset)
    t.valid = windows(t.valid.shards, 32, packing)
    tokens, targets = t.valid.batch(range(len(t.valid)))
    with torch.no_grad():
        logits = t.model.eval()(tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    t.model.train()  # hdpl draws its latents then
    assert t.evaluate()["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_the_dtype_is_chosen_by_the_processor_recorded_and_kept(corpus, tmp_path: Path, monkeypatch, fast) -> None:
    """bf16 only where the processor has instructions for it: elsewhere it took 5 to 17 times as long."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast)
    names = {d: fastest_dtype("cpu", d) for d in (32, 95, 96, 1024)} | {"cuda": fastest_dtype("cuda:1", 32)}
    wide = "bf16" if fast else "fp32"
    assert names == {32: "fp32", 95: "fp32", 96: wide, 1024: wide, "cuda": "bf16"}
    out = tmp_path / "run"
    more = ("--set", "d_model=96", "--steps", "2", "--checkpoint-every", "1")
    main(arguments(corpus, out, *more))
    assert json.loads((out / "config.json").read_text())["training"]["dtype"] == wide
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: not fast)
    seen = []
    monkeypatch.setattr(Trainer, "resume", lambda self: seen.append(self.training.dtype))
    main(["--resume", "--out", str(out)])
    assert seen == [wide], "another machine goes on as the first began"
    monkeypatch.setattr(config, "pick_device", str)
    older = [("auto", "cpu", 127), ("auto", "cpu", 128), ("auto", "cuda", 32), ("fp32", "cuda", 512)]
    found = [saved_training({"dtype": dtype, "device": device}, width) for dtype, device, width in older]
    assert [training.dtype for training in found] == ["fp32", "bf16", "bf16", "fp32"], "older runs, by the older rule"


def test_the_best_loss_is_the_lowest_and_not_the_last(corpus, tmp_path: Path, capsys) -> None:
    t = trainer(corpus, tmp_path / "a", eval_every=3, checkpoint_every=6)
    losses = iter([5.0, 3.0, 3.5, 4.0])
    t.evaluate = lambda: {"loss": next(losses), "perplexity": 1.0}  # type: ignore[method-assign]
    run_to_end(t)
    assert "validation loss 3.0000 at best" in capsys.readouterr().out
    assert [r["loss"] for r in read_metrics(tmp_path / "a") if r["kind"] == "eval"] == [5.0, 3.0, 3.5, 4.0]
    t.best = math.inf
    t.resume()
    assert t.best == 3.0, "a resumed run goes on from it"


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(corpus, tmp_path: Path) -> None:
    t = trainer(corpus, tmp_path / "a", checkpoint_every=2, sample_every=0)
    step, good = t.update, {}

    def poisoned() -> dict:
        if t.step == 5:
            with torch.no_grad():
                t.model.embed.weight[0, 0] = math.nan
        elif t.step == 4:
            good.update({k: v.clone() for k, v in t.model.state_dict().items()})
        return step()

    t.update = poisoned
    with pytest.raises(Stopped, match="step 6: loss nan.*last good state"):
        t.fit()
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["outcome"].startswith("step 6")
    fresh = trainer(corpus, tmp_path / "b")
    fresh.run.folder = tmp_path / "a"
    assert load_checkpoint(tmp_path / "a", fresh.model, fresh.optimizer)[0] == 4
    assert all(torch.equal(v, good[k]) for k, v in fresh.model.state_dict().items())


def test_a_full_disk_leaves_the_previous_checkpoint(corpus, tmp_path: Path, monkeypatch) -> None:
    t = trainer(corpus, tmp_path / "a", checkpoint_every=2, sample_every=0, snapshots="none")
    write = streamscope.models.tensors.save_file

    def full(tensors, path, metadata) -> None:
        if t.step >= 4:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, path, metadata)

    monkeypatch.setattr(streamscope.models.tensors, "save_file", full)
    with pytest.raises(InputError, match="cannot write .*checkpoint.safetensors: No space left on device"):
        t.fit()
    assert not list((tmp_path / "a").glob("*.part"))
    assert streamscope.models.tensors.read_tensors(tmp_path / "a" / "checkpoint.safetensors")[1]["step"] == "2"


COMPILED = """
import sys, torch
from streamscope.models import load
from streamscope.models.train import main
eager, compiled, *argv = sys.argv[1:]
for out, how in ((eager, "off"), (compiled, "blocks")):
    main([out if word == "OUT" else word for word in argv] + ["--compile", how])
one, two = load(eager), load(compiled)
for p, q in zip(one.parameters(), two.parameters(), strict=True):
    torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["lfa", "hdpl"])
def test_compiled_training_reaches_the_eager_weights(corpus, tmp_path: Path, preset) -> None:
    # a process of its own: dynamo cannot trace functions that the type checker has wrapped
    argv = arguments(corpus, Path("OUT"), "--steps", "3", "--sample-every", "0", preset=preset)
    command = [sys.executable, "-c", COMPILED, str(tmp_path / "eager"), str(tmp_path / "compiled"), *argv]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_run_folder_is_complete_and_loads(tiny_run: Path, corpus) -> None:
    names = {p.name for p in tiny_run.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "manifest.json", "tb"} <= names
    manifest = json.loads((tiny_run / "manifest.json").read_text())
    assert manifest["data"]["train"]["source"]["files"][0]["sha256"]
    assert {"argv", "commit", "versions", "device", "seed", "preset", "wall_seconds"} <= manifest.keys()
    kinds = [row["kind"] for row in read_metrics(tiny_run)]
    assert (kinds.count("train"), kinds.count("eval"), kinds.count("sample")) == (4, 2, 2)
    model = load(tiny_run)
    assert not model.training
    assert model.to_string(model.to_tokens("the cat")[0]) == "the cat"


def test_document_packing_trains(corpus, tmp_path: Path) -> None:
    main(arguments(corpus, tmp_path / "a", "--packing", "document", "--accumulate", "2"))
    assert load(tmp_path / "a").config.name == "lfa"
