"""Two processes train as one: the same losses and weights, one run folder, one step at which a signal stops them."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.run import main as torchrun

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load, snapshots
from streamscope.models.train import main
from streamscope.models.training.config import Training
from streamscope.models.training.parallel import Ranks
from streamscope.models.training.run import MACHINE_METRICS, read_metrics
from tests.tiny import arguments

ROOT = Path(__file__).resolve().parents[2]


def rows(folder: Path, kind: str = "train") -> list[dict]:
    return [{k: v for k, v in r.items() if k not in MACHINE_METRICS} for r in read_metrics(folder) if r["kind"] == kind]


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings in one process (in NAME) and in two (in NAME-2), all started by one torchrun."""
    folder = tmp_path_factory.mktemp("ranks")
    every = ["--log-every", "1", "--batch-size", "8", "--steps", "8", "--eval-every", "4", "--sample-every", "8"]
    every += ["--checkpoint-every", "5"]

    def argv(name: str, *more: str, preset: str = "lfa") -> list[str]:
        return arguments(corpus, folder / name, *every, *more, preset=preset)

    documents = ["--packing", "document"]
    main(argv("plain"))
    main(argv("documents", *documents, preset="llama"))
    jobs = [
        ("plain", argv("plain-2"), None),
        ("documents", argv("documents-2", *documents, "--accumulate", "2", preset="llama"), None),
        ("sharded", argv("sharded-2", "--parallel", "fsdp"), 5),
        ("whole", argv("whole-2", "--parallel", "fsdp", preset="pls"), None),
        ("cut", argv("cut-2", "--parallel", "fsdp", preset="pls"), 5),
        ("continued", ["--resume", "--out", str(folder / "cut-2")], None),
        ("noise", argv("noise-2", preset="pls"), None),
        ("stopped", argv("stopped-2", preset="pls"), 2),
        ("resumed", ["--resume", "--out", str(folder / "stopped-2")], None),
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ranks = [str(Path(__file__).with_name("ranks.py")), str(folder / "jobs.json")]
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "OMP_NUM_THREADS", "1")
        patch.setitem(os.environ, "PYTHONPATH", str(ROOT))
        try:  # the agent in this process, which has torch already; it raises where a process of its fails
            torchrun(["--standalone", "--nproc-per-node", "2", *ranks])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return folder


def reached(runs: Path) -> list[dict]:
    return [json.loads((runs / f"jobs.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "documents"])
def test_two_processes_give_the_losses_of_one(runs: Path, name: str) -> None:
    one, two = rows(runs / name), rows(runs / f"{name}-2")
    assert [r["step"] for r in two] == list(range(1, 9)), "one row per step: only process 0 writes"
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {"kind"}:
            assert b[key] == pytest.approx(a[key], rel=2e-5, abs=1e-6), key
    for a, b in zip(rows(runs / name, "eval"), rows(runs / f"{name}-2", "eval"), strict=True):
        assert b["tokens"] == a["tokens"] and b["loss"] == pytest.approx(a["loss"], rel=1e-5)
    first, second = (load_file(runs / n / "model.safetensors") for n in (name, f"{name}-2"))
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-3, atol=2e-5, msg=key)
    assert len(list((runs / f"{name}-2" / "tb").iterdir())) == 1
    assert json.loads((runs / f"{name}-2" / "manifest.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_at_the_same_step(runs: Path) -> None:
    for found in reached(runs):
        assert (found["sharded"], found["sharded, exit"]) == (6, 130)
        assert (found["stopped"], found["stopped, exit"]) == (3, 130)
        assert (found["plain"], found["resumed"]) == (8, 8)


@pytest.mark.slow
def test_noise_repeats_on_as_many_processes(runs: Path) -> None:
    # pls has dropout: each process' random state is in the checkpoint, so stopping at step 3 changes nothing
    whole, cut = (load_file(runs / n / "model.safetensors") for n in ("noise-2", "stopped-2"))
    assert all(torch.equal(v, cut[k]) for k, v in whole.items())
    assert rows(runs / "noise-2") == rows(runs / "stopped-2")


def test_processes_draw_other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for rank, seed in ((0, 7), (1, 7), (2, 7), (1, 8)):
        Ranks(rank, 3).seed_noise(seed)
        drawn.append(float(torch.rand(())))
    assert len(set(drawn)) == 4
    torch.manual_seed(7)
    assert drawn[0] == float(torch.rand(())), "process 0 draws as a training alone"


@pytest.mark.slow
def test_sharded_on_two_processes_goes_on_in_one(runs: Path) -> None:
    """A checkpoint has whole tensors, however many processes wrote it."""
    out = runs / "sharded-2"
    main(["--resume", "--out", str(out)])
    losses, expected = ([r["loss"] for r in rows(n)] for n in (out, runs / "plain"))
    assert losses == pytest.approx(expected, rel=2e-5)
    norms, expected = ([r["grad_norm"] for r in rows(n)] for n in (out, runs / "plain"))
    assert norms == pytest.approx(expected, rel=1e-4)
    one, two = (load_file(n / "model.safetensors") for n in (runs / "plain", out))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=2e-5, msg=key)
    assert [row["step"] for row in snapshots(out)] == [0, 1, 2, 4, 8]
    torch.testing.assert_close(load(f"{out}@4").embed.weight, load(f"{runs / 'plain'}@4").embed.weight)


@pytest.mark.slow
def test_shards_of_weights_moments_and_noise_are_resumed(runs: Path) -> None:
    """Without moments, or with those of another parameter, the steps after the checkpoint would differ."""
    assert [found["cut"] for found in reached(runs)] == [6, 6] and [found["continued"] for found in reached(runs)] == [
        8,
        8,
    ]
    whole, cut = (load_file(runs / name / "model.safetensors") for name in ("whole-2", "cut-2"))
    assert all(torch.equal(v, cut[k]) for k, v in whole.items())
    assert rows(runs / "whole-2") == rows(runs / "cut-2")


def test_what_cannot_be_dealt_out_is_told() -> None:
    with pytest.raises(InputError, match="8 sequences is not divisible by 3 processes × 1 micro-batches"):
        Ranks(0, 3).check(Training(), 8)
    with pytest.raises(InputError, match="Muon orthogonalises whole matrices"):
        Ranks(0, 2, sharded=True).check(Training(optimizer="muon"), 8)
    with pytest.raises(InputError, match="leave out --compile"):
        Ranks(0, 2, sharded=True).check(Training(compile="blocks"), 8)


def test_slices_are_the_batch() -> None:
    order = list(range(12))
    assert [i for rank in range(3) for i in Ranks(rank, 3).own_part(order)] == order
    chunks = range(0, 50, 8)
    assert sorted(i for rank in range(3) for i in Ranks(rank, 3).share(chunks)) == list(chunks)
    assert [len(Ranks(rank, 2, sharded=True).share(chunks)) for rank in range(2)] == [7, 0]
