"""Two processes train as one: the same losses and weights, one run folder, one step at which a signal stops them."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.distributed.run import main as torchrun

from streamscope.models.checkpoint import load, snapshots
from streamscope.models.train import main
from streamscope.models.training.config import Training
from streamscope.models.training.parallel import Ranks
from tests.tiny import arguments, assert_refused
from tests.training.runs import rows, same_weights, weights

ROOT = Path(__file__).resolve().parents[2]


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
    one, two = (rows(runs / n, "train") for n in (name, f"{name}-2"))
    assert [r["step"] for r in two] == list(range(1, 9)), "one row per step: only process 0 writes"
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {"kind"}:
            assert b[key] == pytest.approx(a[key], rel=2e-5, abs=1e-6), key
    for a, b in zip(rows(runs / name, "eval"), rows(runs / f"{name}-2", "eval"), strict=True):
        assert b["tokens"] == a["tokens"] and b["loss"] == pytest.approx(a["loss"], rel=1e-5)
    torch.testing.assert_close(weights(runs / f"{name}-2"), weights(runs / name), rtol=1e-3, atol=2e-5)
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
    assert same_weights(runs / "noise-2", runs / "stopped-2")
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
    out = runs / "sharded-2"
    main(["--resume", "--out", str(out)])
    for name, close in (("loss", 2e-5), ("grad_norm", 1e-4)):
        found, expected = ([r[name] for r in rows(n, "train")] for n in (out, runs / "plain"))
        assert found == pytest.approx(expected, rel=close)
    torch.testing.assert_close(weights(out), weights(runs / "plain"), rtol=1e-3, atol=2e-5)
    assert [row["step"] for row in snapshots(out)] == [0, 1, 2, 4, 8]
    torch.testing.assert_close(load(f"{out}@4").embed.weight, load(f"{runs / 'plain'}@4").embed.weight)


@pytest.mark.slow
def test_shards_of_weights_moments_and_noise_are_resumed(runs: Path) -> None:
    """Without moments, or with those of another parameter, the steps after the checkpoint would differ."""
    assert [(found["cut"], found["continued"]) for found in reached(runs)] == [(6, 8)] * 2
    assert same_weights(runs / "whole-2", runs / "cut-2")
    assert rows(runs / "whole-2") == rows(runs / "cut-2")


def test_what_cannot_be_dealt_out_is_told() -> None:
    for size, sharded, options, line in (
        (3, False, {}, "8 sequences is not divisible by 3 processes × 1 micro-batches"),
        (2, True, {"optimizer": "muon"}, "Muon orthogonalises whole matrices"),
        (2, True, {"compile": "blocks"}, "leave out --compile"),
    ):
        assert_refused(line, Ranks(0, size, sharded).check, Training(**options), 8)


def test_slices_are_the_batch() -> None:
    order = list(range(12))
    assert [i for rank in range(3) for i in Ranks(rank, 3).own_part(order)] == order
    chunks = range(0, 50, 8)
    assert sorted(i for rank in range(3) for i in Ranks(rank, 3).share(chunks)) == list(chunks)
    assert [len(Ranks(rank, 2, sharded=True).share(chunks)) for rank in range(2)] == [7, 0]
