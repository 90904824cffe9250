"""A step does not wait for the device, batches come in order from their thread, speed leaves evaluations out."""

import math
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from streamscope.cli.errors import InputError
from streamscope.models.config.serialization import from_dict, to_dict
from streamscope.models.training import loop
from streamscope.models.training.config import Training
from streamscope.models.training.loop import Stopped, Trainer, gather_ahead
from streamscope.models.training.run import read_metrics
from tests.tiny import some
from tests.training import test_loop
from tests.training.runs import rows


def trainer(corpus: Any, out: Path, preset: str = "lfa", **changes: Any) -> Trainer:
    return test_loop.trainer(corpus, out, preset, **{"batch_size": 4, "sample_every": 0, **changes})


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
        assert 4 * 32 / row["tokens_per_second"] < seconds + 0.1
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
    gathered: list[int] = []

    def gather(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        gathered.append(i)
        return torch.tensor([i]), torch.tensor([i])

    feed = gather_ahead(gather, iter(range(100)), ahead=2)
    assert next(feed)[0].item() == 0
    deadline = time.monotonic() + 5
    while len(gathered) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert gathered == [0, 1, 2], "one given, two waiting"
    feed.close()
    assert not [x for x in threading.enumerate() if x.name.startswith("batches")]


def test_what_the_thread_raises_reaches_the_step(corpus: Any, tmp_path: Path) -> None:
    t = trainer(corpus, tmp_path / "a")
    batch, calls = t.train.batch, []

    def failing(indices: np.ndarray) -> Any:
        calls.append(indices)
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return batch(indices)

    t.train.batch = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the disk is gone"):
        t.fit()
    assert t.step == 2
    assert not [x for x in threading.enumerate() if x.name.startswith("batches")]


def test_runs_with_the_old_flag_load() -> None:
    for old, new in ((True, "blocks"), (False, "off"), ("step", "step")):
        saved = {**to_dict(Training()), "compile": old}
        assert from_dict(Training, saved).compile == new
    with pytest.raises(InputError, match="compile: input should be 'off', 'blocks' or 'step'"):
        from_dict(Training, {"compile": "yes"})
    assert from_dict(Training, {"keep": "last"}) == Training()
    with pytest.raises(InputError, match="this run keeps its best weights"):
        from_dict(Training, {"keep": "best"})
