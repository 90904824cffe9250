"""Killed at every rename, and damaged at every file, a run ends with the same weights or says what is wrong.

Each case runs in its own process: a tiny training (dropout, so that the random state matters; validation), a
fine-tuning and an extraction of features in several parts. A process dies at the n-th `os.replace`, the call that gives
every file its name. The command is then resumed, or started again if no run exists yet. Weights, metrics and feature
rows must then equal those of the uninterrupted run, bit for bit.
"""

import gc
import importlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.sft import main as tune
from streamscope.models.tensors import digest, read_tensors, write_tensors
from streamscope.models.train import main as train
from streamscope.models.training.run import BEFORE, LAST, LOCK, Run
from streamscope.text.corpus import open_corpus
from streamscope.text.shards import TokenShards, pack
from streamscope.text.tokenizer import Tokenizer
from tests.tiny import assert_refused
from tests.training.runs import flip, rows

KILLED = 86
"""Exit code of a process that killed itself at a rename."""
PRELOADED = [
    *("streamscope.models.training.loop", "streamscope.models.training.prepare"),
    *("streamscope.text.pairs", "streamscope.models.train", "streamscope.models.sft", "streamscope.models.checkpoint"),
    *("pytest", "torch._dynamo", "torch.utils.tensorboard", "typeguard"),  # some of them are imported late, and slowly
]
TIMEOUT = 120.0
"""Seconds that a process may take."""


class Case(NamedTuple):
    """A command that can be killed and continued: its module and its arguments without --out."""

    module: str
    argv: tuple[str, ...]
    file: str = ""
    """File name for --out inside the folder of the case; empty: the folder itself."""

    def arguments(self, folder: Path) -> list[str]:
        """Those that begin it, or --resume where a run is; an extraction is continued by the same command."""
        argv = ["--resume"] if (folder / "manifest.json").exists() else self.argv
        return [*argv, "--out", str(folder / self.file)]


ARGUMENTS = """pls --data stories:0:30 --valid stories:1:4 --scale tiny --set d_vocab=300 --steps 9 --batch-size 4
--log-every 2 --eval-every 4 --eval-batches 2 --checkpoint-every 3 --sample-every 0 --snapshots 0 --device cpu"""
TRAINING = Case("models.train", tuple(ARGUMENTS.split()))


def tuning(folder: Path, base: Path) -> Case:
    """A fine-tuning of `base` on pairs that are written to `folder`."""
    rng, words = random.Random(0), ["cat", "dog", "house", "ran", "sat", "red"]
    pairs = folder / "pairs.jsonl"
    rows = [{"prompt": " ".join(rng.choices(words, k=3)), "response": rng.choice(words)} for _ in range(80)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = "--batch-size 4 --steps 6 --eval-every 3 --checkpoint-every 2 --snapshots 0 --device cpu"
    return Case("models.sft", (str(base), "--data", str(pairs), *options.split()))


def extraction(base: Path) -> Case:
    """The features and raw activations of some stories, in several parts (see `_work`)."""
    argv = (str(base), "--data", "stories:1:12", "--raw", "--device", "cpu")
    return Case("features.extract", argv, file="features.parquet")


def _work(module: str, argv: Sequence[str], death: int, log: str) -> None:
    """Run the command on one thread, with its output in a file; the process dies before its rename number `death`."""
    gc.freeze()  # what the server has imported is not garbage: a collection over it took a third of a second
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    replace, count = os.replace, itertools.count(1)

    def counted(*names: Any) -> None:
        if next(count) == death:
            os._exit(KILLED)
        replace(*names)

    os.replace = counted  # type: ignore[assignment]
    if module == "features.extract":
        import streamscope.features.extract.measure as extraction

        extraction.PART_ROWS, extraction.BATCH_TOKENS = 512, 96
    try:
        importlib.import_module(module).main(list(argv))
    except InputError as error:
        print(f"error: {error}")
        os._exit(2)


def run(module: str, argv: Sequence[str], log: Path, death: int = 0) -> int:
    """Exit code of the command in a process, forked from a server that has already imported the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_work, args=(module, tuple(argv), death, str(log)))
    process.start()
    process.join(TIMEOUT)
    process.kill()  # nothing, if it has ended
    process.join()
    return int(process.exitcode or 0)


def killed(case: Case, folder: Path, death: int) -> bool:
    """Run the case to its end in `folder`, after a death at this rename; whether there was one."""
    log, died = folder.with_suffix(".log"), False
    while code := run(case.module, case.arguments(folder), log, 0 if died else death):
        assert not died and code == KILLED, f"{case.module} ended with {code}; see {log}"
        died = True
    return died


def final_state(folder: Path) -> dict[str, Any]:
    """The results to compare: a run's weights, metrics without times, outcome and step; each table's rows."""
    state: dict[str, Any] = {}
    if (folder / "manifest.json").exists():
        about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        state = {f"{name} noted": about.get(name) for name in ("outcome", "step", "steps", "weights")}
        state |= {"weights": digest(load(folder).state_dict()), "metrics": rows(folder)}
    for path in sorted(folder.glob("*.parquet")):
        state[path.name] = pq.read_table(path).to_pandas().to_csv()
    assert state, f"{folder}: neither a run nor a table"
    return state


def differences(one: Path, two: Path) -> list[str]:
    a, b = final_state(one), final_state(two)
    return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[str, tuple[Case, Path]]:
    """Each case with the folder of its uninterrupted run."""
    done = {"last": (TRAINING, folder / "last")}
    killed(*done["last"], 0)
    sft, rows = tuning(folder, done["last"][1]), extraction(done["last"][1])
    killed(sft, folder / "sft", 0)
    return {**done, "sft": (sft, folder / "sft"), "extraction": (rows, folder / "extraction")}


@pytest.mark.parametrize(
    ("name", "every", "least"),
    [("last", 3, 10), *(pytest.param(*one, marks=pytest.mark.slow)
                        for one in (("last", 1, 10), ("sft", 1, 10), ("extraction", 1, 5)))],
)  # fmt: skip
def test_killed_at_every_rename_the_run_ends_as_if_nothing_had_been(cases, tmp_path: Path, name, every, least) -> None:
    case, whole = cases[name]
    assert {"weights", "metrics"} <= set(differences(cases["last"][1], cases["sft"][1])), "what differs is told"
    if not whole.exists():
        killed(case, whole, 0)
    number = 1
    while killed(case, out := tmp_path / f"{number}", number):
        assert differences(whole, out) == [], f"rename {number}"
        number += every
    assert number > least, "there are more renames than that"


@pytest.fixture(scope="module")
def killed_once(cases: dict[str, tuple[Case, Path]], folder: Path) -> Path:
    """The training, killed when it has two checkpoints."""
    out = folder / "half"
    assert run("models.train", TRAINING.arguments(out), folder / "log", 14) == KILLED
    assert {p.name for p in out.glob("checkpoint*.safetensors")} == {LAST, BEFORE}
    return out


@pytest.fixture
def half(killed_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed_once, tmp_path / "half"))


DAMAGE = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]), "bit": lambda path: flip(path, -5),
    "gone": Path.unlink,
}  # fmt: skip


@pytest.mark.parametrize(("damage", "told"), [("torn", "cannot be read"), ("bit", "damaged"), ("gone", "")])
def test_a_torn_checkpoint_falls_back_to_the_one_before(cases, half: Path, damage: str, told: str, capfd) -> None:
    DAMAGE[damage](half / LAST)
    train(["--resume", "--out", str(half)])
    warned = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ") and LAST in line]
    assert len(warned) == (damage != "gone")
    assert all(told in line and f"continuing from step 3 of {BEFORE}" in line for line in warned)
    assert differences(cases["last"][1], half) == []


@pytest.mark.parametrize(("damage", "told"), [("bit", "damaged"), ("gone", "missing")])
def test_without_a_checkpoint_nothing_is_trained(half: Path, damage: str, told: str) -> None:
    for name in (LAST, BEFORE):
        DAMAGE[damage](half / name)
    before = (half / "metrics.jsonl").read_bytes()
    assert_refused(f"{LAST} is {told}", train, ["--resume", "--out", str(half)])
    assert (half / "metrics.jsonl").read_bytes() == before
    assert not (half / LOCK).exists()


@pytest.mark.parametrize("change", [{"rng.cpu": None}, {"optimizer.999.exp_avg": torch.zeros(1)}])
def test_a_checkpoint_with_other_parts_is_one_line(half: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors, meta = read_tensors(half / LAST)
    changed = {name: x for name, x in {**tensors, **change}.items() if x is not None}
    write_tensors(half / LAST, changed, meta)
    with pytest.raises(InputError, match=f"{LAST} cannot be read .*; delete it to continue from {BEFORE}"):
        train(["--resume", "--out", str(half)])


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def test_a_flipped_bit_in_the_weights_is_told_and_resuming_mends_it(cases, tmp_path: Path) -> None:
    whole = cases["last"][1]
    folder = copied(whole, tmp_path)
    flip(folder / "model.safetensors", -2000)
    assert_refused(r"model\.safetensors is damaged", load, folder)
    (folder / "snapshots" / ".step-000004.safetensors.0-00.part").write_bytes(b"half")
    train(["--resume", "--out", str(folder)])
    assert differences(whole, folder) == [] and not list(folder.rglob("*.part"))


@pytest.mark.parametrize("how", ["missing", "other"])
def test_a_completed_run_has_its_own_weights(cases, tmp_path: Path, how: str) -> None:
    """As after a kill between the last checkpoint and the last write of the model: old weights, or none."""
    whole = cases["last"][1]
    folder, model = copied(whole, tmp_path), tmp_path / "copy" / "model.safetensors"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["weights"] == read_tensors(model)[1]["sha256"]
    if how == "missing":
        model.unlink()
    else:
        tensors, meta = read_tensors(model)
        write_tensors(model, {k: v + 1 for k, v in tensors.items()}, {"step": meta["step"]})
    assert_refused(r"model\.safetensors (is missing|does not hold the run's final weights)", load, folder)
    del manifest["outcome"], manifest["weights"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    train(["--resume", "--out", str(folder)])
    assert differences(whole, folder) == []
    assert read_tensors(model)[1]["step"] == read_tensors(whole / "model.safetensors")[1]["step"]


def test_tokens_of_equal_size_but_other_content_are_told_and_built_again(corpus, tmp_path: Path) -> None:
    text = open_corpus(str(corpus[0]))
    tokenizer = Tokenizer.train(text.documents(), 300)
    for name in ("tokens.bin", "starts.npy"):
        shards = pack(text, tokenizer, cache_dir=tmp_path)
        folder, was = shards.folder, (shards.folder / name).read_bytes()
        flip(folder / name, -7)
        assert_refused(rf"the content of {name} has changed\); delete the folder", TokenShards, folder)
        again = pack(text, tokenizer, cache_dir=tmp_path)
        assert (again.folder / name).read_bytes() == was
        assert list(again.document(3)) == tokenizer.encode(list(text.documents())[3])


def test_two_processes_do_not_train_one_run(half: Path, cases, tmp_path: Path) -> None:
    whole, log, one = cases["last"][1], tmp_path / "second", Run(half)
    assert (half / LOCK).exists(), "the killed process left its lock, which is free"
    with one.locked():
        assert run("models.train", ["--resume", "--out", str(half)], log) == 2
    said = [line for line in log.read_text().splitlines() if line.startswith("error")]
    assert len(said) == 1 and "is being trained by another process: wait for it to end" in said[0]
    one.unlock()
    assert not (half / LOCK).exists()
    assert run("models.train", ["--resume", "--out", str(half)], log) == 0
    assert differences(whole, half) == []


@pytest.mark.parametrize("name", ["last", "sft"])
def test_another_tokenizer_of_the_same_size_is_refused(cases, tmp_path: Path, name: str, corpus) -> None:
    folder = copied(cases[name][1], tmp_path)
    own = Tokenizer.load(folder / "tokenizer.json")
    other = Tokenizer.train(open_corpus(str(corpus[0])).documents(), own.d_vocab)
    assert (other.d_vocab, other.sha256 == own.sha256) == (own.d_vocab, False)
    other.save(folder / "tokenizer.json")
    with pytest.raises(InputError, match=r"tokenizer\.json changed since the run began"):
        (train if name == "last" else tune)(["--resume", "--out", str(folder)])


def test_another_number_of_threads_is_told(half: Path, capfd) -> None:
    torch.set_num_threads(2)
    try:
        train(["--resume", "--out", str(half)])
    finally:
        torch.set_num_threads(1)
    warned = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warned == ["warning: the run was computed with threads 1, now 2; set OMP_NUM_THREADS=1 for the same bits"]


def test_a_tuning_that_starts_again_wants_the_weights_it_started_from(cases, tmp_path: Path) -> None:
    case, parent = cases["sft"][0], copied(cases["last"][1], tmp_path)
    argv = [str(parent), *case.argv[1:], "--out", str(tmp_path / "tuned")]
    assert run(case.module, argv, tmp_path / "log", 5) == KILLED
    assert not list((tmp_path / "tuned").glob("checkpoint*.safetensors"))
    shutil.copy(cases["sft"][1] / "checkpoint.safetensors", parent / "model.safetensors")
    with pytest.raises(InputError, match="the weights of .* changed since the run began from them: start it again"):
        tune(["--resume", "--out", str(tmp_path / "tuned")])


def test_files_are_synced_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def own(path: object) -> str:
        """A name without the process's part."""
        return re.sub(r"^\.(.*)\.[0-9a-f]{8}\.part$", r"\1.part", Path(str(path)).name)

    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda d: (done.append(own(os.readlink(f"/proc/self/fd/{d}"))), fsync(d)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"{own(a)} -> {own(b)}"), replace(a, b)))
    write_tensors(tmp_path / "x", {"a": torch.ones(2)}, {})
    write_tensors(tmp_path / "x", {"a": torch.ones(3)}, {}, keep=tmp_path / "y")
    assert done == ["x.part", "x.part -> x", tmp_path.name, "x.part", "x -> y", "x.part -> x", tmp_path.name]


def test_an_outcome_counts_until_the_run_goes_on(half: Path, tmp_path: Path) -> None:
    manifest = json.loads((half / "manifest.json").read_text())
    stopped = {**manifest, "outcome": "stopped at step 6 of 9; saved", "step": 6, "steps": 9}
    (half / "manifest.json").write_text(json.dumps(stopped))
    assert run("models.train", ["--resume", "--out", str(half)], tmp_path / "log", 3) == KILLED
    assert "outcome" not in json.loads((half / "manifest.json").read_text())


def test_a_model_is_not_saved_over_a_run(cases: dict[str, tuple[Case, Path]], tmp_path: Path) -> None:
    folder = copied(cases["last"][1], tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    assert_refused("is a run with its own history: save the model into another folder", load(folder).save, folder)
    assert (folder / "model.safetensors").read_bytes() == before


WRITER = """
import os, signal
from pathlib import Path
from streamscope.cli.disk import write_atomically
write_atomically(Path({path!r}), lambda part: (part.write_text("half"), os.kill(os.getpid(), signal.SIGKILL)))
"""


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER.format(path=str(tmp_path / "table.parquet"))], cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    os.utime(left, (1, 1))
    (living := left.with_name(".table.parquet.0123abcd.part")).write_text("of a process that writes now")
    (stranger := tmp_path / ".notes.part").write_text("of somebody else")
    (gone := living.with_name(".table.parquet.4567cdef.part")).symlink_to("like one that is renamed meanwhile")
    write_text(tmp_path / "table.parquet", "whole")
    assert {*tmp_path.iterdir()} == {tmp_path / "table.parquet", living, stranger, gone}
