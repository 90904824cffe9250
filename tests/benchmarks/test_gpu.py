"""A GPU computes what the CPU computes, and a training does not wait for it: whole on a machine that has one.

python -m pytest tests/benchmarks/test_gpu.py -m 'slow or not slow'
"""

import copy
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.benchmarks.inputs import random_tokens, write_shards
from streamscope.models import build
from streamscope.models.config.presets import PRESETS
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.loop import Progress, Trainer, gather_ahead
from streamscope.models.training.run import Run
from streamscope.text.shards import Windows
from tests.tiny import some

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA")


@pytest.mark.parametrize("name", some(PRESETS, ["lfa"]))
def test_loss_and_gradients_are_those_of_the_cpu(name: str) -> None:
    """In fp32, and the loss in bf16. Without a GPU, the CPU is compared with itself."""
    model = build(name, "small" if DEVICE == "cuda" else "tiny", dropout=0.0, **{"attention.dropout": 0.0})
    x, y = random_tokens(model.config.d_vocab, 2, 16)
    other = copy.deepcopy(model).to(DEVICE)  # neither in training mode: HDPL draws noise there
    losses = [model.loss(x, y)[0], other.loss(x.to(DEVICE), y.to(DEVICE))[0]]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        losses.append(other.loss(x.to(DEVICE), y.to(DEVICE))[0])
    exact, found, rounded = (float(loss.detach()) for loss in losses)
    assert abs(exact - found) < 1e-4 and abs(exact - rounded) < 0.02 * exact
    pairs = ((model, losses[0]), (other, losses[1]))
    sides = (torch.autograd.grad(loss, list(m.parameters()), allow_unused=True) for m, loss in pairs)
    for (path, _), a, b in zip(model.named_parameters(), *sides, strict=True):
        if a is not None and a.abs().max() > 1e-7:  # less is mere rounding
            assert (a - b.cpu()).norm() < 1e-3 * a.norm(), path


def trainer(name: str, folder: Path, steps: int, **changes) -> Trainer:
    """The loop of `models.train` on random windows, at scale paper."""
    model = build(name)
    training = with_recipe(Training(steps=steps, device=DEVICE, sample_every=0, **changes), name, "paper")
    d_vocab, n_ctx = model.config.d_vocab, model.config.n_ctx
    tokens, _ = random_tokens(d_vocab, 1, 64 * (training.batch_size or 1) * n_ctx + 1)
    shards = write_shards(folder, tokens[0].numpy(), np.array([0, tokens.shape[1]]), d_vocab)
    windows = Windows(shards, n_ctx)
    t = Trainer(model, training, windows, windows, Run(folder), DEVICE)
    t.feed = t.open_feed()
    return t


@gpu
@pytest.mark.parametrize("name", PRESETS)
def test_no_step_between_two_log_steps_waits_for_the_device(name: str, tmp_path: Path) -> None:
    t = trainer(name, tmp_path, 40, log_every=10**6, checkpoint_every=10**6)
    try:
        for step in range(33):
            if step == 3:  # caches, autotuning and the first allocation may wait
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            t._queue_values(t.update())
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
@pytest.mark.parametrize("compiled", ["off", "blocks", "step"])
@pytest.mark.parametrize("name", PRESETS)
def test_speed_and_memory_of_a_training_are_logged(name: str, compiled: str, tmp_path: Path) -> None:
    """With -s, printed: of the last of three rows, so that compiling and warming up are over."""
    t, rows = trainer(name, tmp_path, 30, log_every=10, compile=compiled), []
    t.run.log = lambda step, kind, **values: rows.append(values)
    with Progress(30) as progress:
        for _ in range(30):
            began = time.perf_counter()
            t._queue_values(t.update())
            t._log(progress, began)
    print(name, compiled, {key: rows[-1][key] for key in ("tokens_per_second", "mfu", "peak_memory")})
    assert 0 < rows[-1]["mfu"] < 1


@gpu
def test_supervision_of_every_layer_takes_little_more_memory() -> None:
    peaks = {}
    for name in ("c2", "pls"):
        model = build(name).to("cuda").train()
        x, y = random_tokens(model.config.d_vocab, 32, 512, "cuda")
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model.loss(x, y)[0]
            loss.backward()
            peaks[name] = torch.cuda.max_memory_allocated()
            model.zero_grad(set_to_none=False)
    assert peaks["pls"] < 2 * peaks["c2"], peaks


@gpu
def test_batches_are_page_locked() -> None:
    (pair,) = gather_ahead(lambda i: (torch.tensor([i]), torch.tensor([i])), iter([0]), pin=True)
    assert all(t.is_pinned() for t in pair)
