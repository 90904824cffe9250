"""The loop of a training: evaluation, stops, what is kept; steps wait for no device, batches come from a thread."""

import errno
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, call

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import streamscope.models.tensors
from streamscope.models import build
from streamscope.models.checkpoint import load
from streamscope.models.config.serialization import from_dict, to_dict
from streamscope.models.train import main
from streamscope.models.training import config, loop
from streamscope.models.training.config import Training, saved_training, with_recipe
from streamscope.models.training.loop import Stopped, Trainer, fastest_dtype, gather_ahead, run_to_end
from streamscope.models.training.prepare import prepare, windows
from streamscope.models.training.run import Run, load_checkpoint, read_metrics
from tests.tiny import arguments, assert_refused, some
from tests.training.runs import rows


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
@pytest.mark.parametrize("given", [{}, {"MALLOC_MMAP_THRESHOLD_": "99999"}])
def test_a_training_keeps_freed_memory_for_the_next_step(given: dict[str, str]) -> None:
    """128 MiB are new pages every time otherwise, 32,768 faults; also by a setting of the caller."""
    code = "import resource, torch; from unittest.mock import MagicMock; from streamscope.models.training import loop\n"
    code += "loop.run_to_end(MagicMock(best=1.0))\nfor i in range(6):\n torch.ones(2**25)\n"
    code += " print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | given
    counts = [*map(int, subprocess.check_output([sys.executable, "-c", code], text=True, env=env).splitlines()[1:])]
    assert (min(np.diff(counts)) < 1000) != bool(given)


@pytest.mark.parametrize("fast", [True, False])
def test_the_dtype_is_chosen_by_the_processor_recorded_and_kept(corpus, tmp_path: Path, monkeypatch, fast) -> None:
    """bf16 only where the processor has instructions for it: elsewhere it took 5 to 17 times as long."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast)
    names = {d: fastest_dtype("cpu", d) for d in (32, 95, 96, 1024)} | {"cuda": fastest_dtype("cuda:1", 32)}
    wide = "bf16" if fast else "fp32"
    assert names == {32: "fp32", 95: "fp32", 96: wide, 1024: wide, "cuda": "bf16"}
    out = tmp_path / "run"
    main(arguments(corpus, out, "--set", "d_model=96", "--steps", "2", "--checkpoint-every", "1"))
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
    assert_refused("cannot write .*checkpoint.safetensors: No space left on device", t.fit)
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


class Reads(TorchDispatchMode):
    """Counts operations that bring a number from the device to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count += 1
        return func(*args, **(kwargs or {}))


class Gpu(Trainer):
    """Takes every decision as on a GPU, and computes on the CPU."""

    def _move(self, batch: Any) -> Any:
        return batch

    def autocast(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    def _hardware(self, rate: float) -> dict[str, float]:
        return {}


def gpu(t: Trainer) -> Trainer:
    t.__class__, t.device = Gpu, torch.device("cuda")
    return t


@pytest.mark.parametrize("preset", some(["lfa", "pls", "hdpl", "kromcanon"], ["pls"]))
def test_nothing_is_read_from_the_device_between_log_steps(corpus, tmp_path: Path, preset: str, monkeypatch) -> None:
    t = gpu(trainer(corpus, tmp_path / "a", preset, log_every=4, checkpoint_every=6, snapshots="9"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    t.run.open_metrics(0)
    moved: Counter[str] = Counter()
    for name in ("tolist", "cpu", "numpy"):
        real = getattr(torch.Tensor, name)

        def counting(x: Any, *args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            moved[name] += 1
            return real(x, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counting)
    waited = []
    with loop.Progress(12) as progress:
        for _ in range(12):
            moved.clear()
            with Reads() as reads:
                t.pending.append(t.update())
                t._log(progress, time.perf_counter())
            if reads.count or moved:
                waited.append(t.step)
    t.run.finish("done", 0.0)
    assert waited == [4, 6, 8, 9, 12], "the rows, and the check before a checkpoint and a snapshot"
    assert t.pending == []


def test_the_last_step_is_checked_too(corpus: Any, tmp_path: Path) -> None:
    """On a GPU, which checks few steps; the weights after it are those of the run."""
    t = gpu(trainer(corpus, tmp_path / "a", log_every=5, checkpoint_every=50, snapshots="none"))
    t.step, loss = 11, t.loss

    def broken(*batch: torch.Tensor) -> Any:
        total, parts = loss(*batch)
        return total * math.nan, parts

    t.loss = broken
    with pytest.raises(Stopped, match="step 12: loss nan"):
        t.update()


def test_the_log_is_the_mean_of_its_steps(corpus: Any, tmp_path: Path) -> None:
    """Values that are read late are those of their steps: compared with values read at once."""
    late, now = trainer(corpus, tmp_path / "a", log_every=5), trainer(corpus, tmp_path / "b")
    late.fit()
    assert not [x for x in threading.enumerate() if x.name.startswith("batches")]
    values = [now.update() for _ in range(12)]
    for row, (a, b) in zip(rows(tmp_path / "a", "train"), [(0, 5), (5, 10), (10, 12)], strict=True):
        assert row["step"] == b
        for name in ("loss", "lr"):
            assert row[name] == pytest.approx(sum(float(v[name]) for v in values[a:b]) / (b - a), abs=0)


def test_speed_leaves_evaluation_and_saving_out(corpus: Any, tmp_path: Path) -> None:
    """Evaluations and checkpoints of .2 s each would halve it more than once."""
    t = trainer(corpus, tmp_path / "a", log_every=1, eval_every=1, checkpoint_every=1, steps=4)
    evaluate, save, update, spent = t.evaluate, t._save, t.update, []

    def timed() -> Any:
        start = time.perf_counter()
        values = update()
        spent.append(time.perf_counter() - start)
        return values

    t.evaluate = lambda: (time.sleep(0.2), evaluate())[1]  # type: ignore[method-assign]
    t._save = lambda: (time.sleep(0.2), save())[1]  # type: ignore[method-assign]
    t.update = timed  # type: ignore[method-assign]
    t.fit()
    logged = [r for r in read_metrics(tmp_path / "a") if r["kind"] == "train"]
    for row, seconds in zip(logged, spent, strict=True):
        assert 8 * 32 / row["tokens_per_second"] < seconds + 0.1
        assert row["peak_memory"] > 0.01, "GB of this process"


def test_a_run_sees_the_batches_of_its_indices(corpus: Any, tmp_path: Path) -> None:
    """From the thread the same batches in the same order as by hand, over the end of an epoch and after a resume."""
    t = trainer(corpus, tmp_path / "a", accumulate=2)
    t.steps = t.per_epoch + 3
    t.step = t.per_epoch - 2
    feed = t.open_feed()
    for step in range(t.step, t.steps):
        for part in t.micro_batches(step):
            for ours, theirs in zip(next(feed), t.train.batch(part), strict=True):
                assert torch.equal(ours, theirs)
    with pytest.raises(StopIteration):
        next(feed)


def test_gathering_runs_ahead_and_no_further() -> None:
    gather = Mock(side_effect=lambda i: (torch.tensor([i]), torch.tensor([i])))
    feed = gather_ahead(gather, iter(range(100)), ahead=2)
    assert next(feed)[0].item() == 0
    deadline = time.monotonic() + 5
    while gather.call_count < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert gather.call_args_list == [call(i) for i in range(3)], "one given, two waiting"
    feed.close()
    assert not [x for x in threading.enumerate() if x.name.startswith("batches")]


def test_what_the_thread_raises_reaches_the_step(corpus: Any, tmp_path: Path) -> None:
    t = trainer(corpus, tmp_path / "a")
    error = OSError("the disk is gone")
    t.train.batch = Mock(wraps=t.train.batch, side_effect=[DEFAULT, DEFAULT, error])  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the disk is gone"):
        t.fit()
    assert t.step == 2
    assert not [x for x in threading.enumerate() if x.name.startswith("batches")]


def test_runs_with_the_old_flag_load() -> None:
    for old, new in ((True, "blocks"), (False, "off"), ("step", "step")):
        saved = {**to_dict(Training()), "compile": old}
        assert from_dict(Training, saved).compile == new
    assert_refused("compile: input should be 'off', 'blocks' or 'step'", from_dict, Training, {"compile": "yes"})
    assert from_dict(Training, {"keep": "last"}) == Training()
    assert_refused("this run keeps its best weights", from_dict, Training, {"keep": "best"})
