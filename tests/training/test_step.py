"""The mathematics of a training step by plain reimplementation: schedule, data order, accumulation, clipping."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from streamscope.models.make import build
from streamscope.models.training.loop import Trainer
from streamscope.models.training.optim import lr_factor
from streamscope.models.training.parallel import Ranks
from streamscope.text.windows import epoch_order
from tests.tiny import randomise
from tests.training.test_loop import trainer


def planned(step: int, steps: int, warmup: int, floor: float) -> float:
    """Linear to 1 over the warm-up, then half a cosine from 1 to the floor, which the last step has."""
    warmup = min(warmup, steps // 10 if steps >= 10 else 1)
    if step < warmup:
        return (step + 1) / warmup
    angle = np.linspace(0.0, np.pi, steps - warmup)[step - warmup]
    return floor + (1 - floor) * (np.cos(angle) + 1) / 2


@pytest.mark.parametrize(("steps", "warmup", "floor"), [(100, 10, 0.1), (57, 3, 0.0), (40, 0, 0.25), (30, 1000, 1.0)])
def test_schedule(steps: int, warmup: int, floor: float) -> None:
    factors = [lr_factor(step, steps, warmup, floor) for step in range(steps)]
    assert factors == pytest.approx([planned(step, steps, warmup, floor) for step in range(steps)], abs=1e-12)
    assert lr_factor(steps + 5, steps, warmup, floor) == pytest.approx(floor), "stays there"


@pytest.mark.parametrize(("steps", "expected"), [(1, [1.0]), (2, [1.0, 1.0]), (3, [1.0, 1.0, 0.1])])
def test_schedules_of_a_few_steps(steps: int, expected: list[float]) -> None:
    assert [lr_factor(step, steps, 100, 0.1) for step in range(steps)] == pytest.approx(expected)


def test_every_step_has_the_rate_of_its_place(corpus, tmp_path: Path) -> None:
    """What `update` gives its optimisers and what it reports, from the first step to the last."""
    t = trainer(corpus, tmp_path / "a", steps=30, warmup=3, lr=2e-3, lr_floor=0.2)
    given: list[float] = []
    step = t.optimizer.step

    def seen() -> None:
        rates = {g["lr"] / g["peak_lr"] for g in t.optimizer.param_groups}
        assert len(rates) == 1
        given.append(rates.pop())
        step()

    t.optimizer.step = seen  # type: ignore[method-assign]
    reported = [float(t.update()["lr"]) for _ in range(30)]
    expected = [planned(i, 30, 3, 0.2) for i in range(30)]
    assert given == pytest.approx(expected)
    assert all(p.grad is None for p in t.model.parameters()), "gradients do not pile up"
    assert reported == pytest.approx([2e-3 * e for e in expected])


def recorded(t: Any, steps: int) -> list[list[int]]:
    """The windows of each micro-batch."""
    t.train.batch = Mock(wraps=t.train.batch)
    for _ in range(steps):
        t.update()
    return [call.args[0].tolist() for call in t.train.batch.call_args_list]


@pytest.mark.parametrize("accumulate", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_data_come_in_the_order_of_seed_and_step(corpus, tmp_path: Path, accumulate: int) -> None:
    """Step s of epoch e trains on the s-th eight windows of that epoch's permutation; a micro-batch on a slice."""
    t = trainer(corpus, tmp_path / "a", seed=5, accumulate=accumulate, steps=200)
    n, per_epoch = len(t.train), len(t.train) // 8
    steps = per_epoch * (2 if accumulate == 1 else 1) + 3
    asked = recorded(t, steps)
    assert len(asked) == steps * accumulate and {len(a) for a in asked} == {8 // accumulate}
    whole = np.reshape(asked, (steps, 8))
    for s in range(steps):
        epoch, place = divmod(s, per_epoch)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([5, epoch])))
        assert whole[s].tolist() == rng.permutation(n)[8 * place : 8 * place + 8].tolist(), f"step {s}"
    later = trainer(corpus, tmp_path / "b", seed=5, accumulate=accumulate, steps=200)
    later.step = steps - 3
    assert recorded(later, 3) == asked[-3 * accumulate :], "going on in the middle of an epoch"


def test_how_many_steps_a_run_has(corpus, tmp_path: Path) -> None:
    n = len(trainer(corpus, tmp_path / "a").train) // 8
    for epochs, expected in [(1.0, n), (2.5, math.ceil(2.5 * n)), (0.01, 1)]:
        assert trainer(corpus, tmp_path / str(epochs), steps=None, epochs=epochs).steps == expected
    assert trainer(corpus, tmp_path / "b", steps=7, epochs=3.0).steps == 7


def gradients(t: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(what a step reports, the gradients its optimiser gets); the weights stay."""
    t.optimizer.step = lambda: None
    t.optimizer.zero_grad = lambda: None
    values = t.update()
    return values, {n: p.grad.clone() for n, p in t.model.named_parameters()}


@pytest.mark.parametrize(("clip", "shrinks"), [(0.5, True), (1e-3, True), (1e3, False), (0.0, False)])
def test_clipping_scales_all_gradients_to_the_largest_norm(corpus, tmp_path: Path, clip: float, shrinks: bool) -> None:
    _, plain = gradients(trainer(corpus, tmp_path / "a", clip=0.0))
    values, clipped = gradients(trainer(corpus, tmp_path / "b", clip=clip))
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in plain.values()))
    assert float(values["grad_norm"]) == pytest.approx(norm, rel=1e-5), "the norm before clipping is what is logged"
    after = math.sqrt(sum(float(g.double().pow(2).sum()) for g in clipped.values()))
    assert after == pytest.approx(clip if shrinks else norm, rel=1e-4)
    for name, g in plain.items():
        expected = g * (clip / norm) if shrinks else g
        torch.testing.assert_close(clipped[name], expected, rtol=1e-4, atol=1e-9, msg=name)


class Uneven:
    """Windows of 3 to 31 targets each, which random documents and the prompts of a fine-tuning have."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = []
        for i in indices:
            generator = torch.Generator().manual_seed(int(i))
            tokens = torch.randint(1, 300, (33,), generator=generator)
            n = int(torch.randint(3, 32, (), generator=generator))
            rows.append((tokens[:-1], torch.where(torch.arange(32) < n, tokens[1:], -100)))
        inputs, targets = zip(*rows, strict=True)
        return torch.stack(inputs), torch.stack(targets)


CLOSE = dict(rtol=1e-4, atol=1e-6)


class Half(Ranks):
    """One of two processes, which knows what the other would say."""

    totals: torch.Tensor

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self.totals

    def mean(self, values: Any) -> Any:
        return values


def uneven(corpus, out: Path, monkeypatch: Any, preset: str = "lfa", **changes: Any) -> Any:
    """A trainer on `Uneven` whose weights are all random and whose HDPL latents have no noise."""
    monkeypatch.setattr("streamscope.models.layers.hdpl.noise", torch.zeros_like)
    t = trainer(corpus, out, clip=0.0, **changes)
    model = randomise(build(preset, "tiny", d_vocab=300, dropout=0.0, **{"attention.dropout": 0.0}), 0.05, 1)
    return Trainer(model, t.training, Uneven(), Uneven(), t.run, "cpu")


@pytest.mark.parametrize("preset", ["lfa", "pls", "hdpl"])
def test_documents_of_any_length_count_by_their_tokens(corpus, tmp_path: Path, monkeypatch: Any, preset: str) -> None:
    """Loss, its parts and gradients are those of the batch, however it is cut into micro-batches; by autograd of lfa,
    whose loss has no further parts."""
    t = uneven(corpus, tmp_path / "1", monkeypatch, preset)
    tokens, targets = Uneven().batch(epoch_order(64, 0, 0)[:8])
    loss = cross_entropy(t.model(tokens).flatten(0, 1), targets.flatten())
    names, parameters = zip(*t.model.named_parameters(), strict=True)
    by_hand = dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))
    whole, truth = gradients(t)
    assert float(whole["ce"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    if preset == "lfa":
        torch.testing.assert_close(truth, by_hand, **CLOSE)
    for accumulate in (2, 4, 8):
        t = uneven(corpus, tmp_path / str(accumulate), monkeypatch, preset, accumulate=accumulate)
        values, found = gradients(t)
        assert values.keys() == whole.keys()
        for name, value in whole.items():
            assert float(values[name]) == pytest.approx(float(value), rel=1e-5), f"{name}, {accumulate} micro-batches"
        torch.testing.assert_close(found, truth, **CLOSE)


@pytest.mark.parametrize("preset", ["lfa", "hdpl"])
def test_processes_count_by_their_tokens(corpus, tmp_path: Path, monkeypatch: Any, preset: str) -> None:
    """The average of two processes' gradients, which is what they exchange, is the gradient of the whole batch."""
    _, truth = gradients(uneven(corpus, tmp_path / "1", monkeypatch, preset))
    targets = Uneven().batch(epoch_order(64, 0, 0)[:8])[1]
    halves = []
    for rank in (0, 1):
        t = uneven(corpus, tmp_path / f"rank{rank}", monkeypatch, preset, accumulate=2)
        t.ranks = Half(rank, 2)
        t.ranks.totals = torch.tensor([(targets != -100).sum(), targets.numel()]).double()
        t.ranks.trained_model = t.model
        halves.append(gradients(t)[1])
    mean = {name: (grad + halves[1][name]) / 2 for name, grad in halves[0].items()}
    torch.testing.assert_close(mean, truth, **CLOSE)
