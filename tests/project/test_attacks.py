"""Odd input from outside: every case ends in one line that names the thing, nothing lost, nothing half-written.

Each case was a traceback, a hang or a silent mistake once. `attack` calls a command's `main` as its process does: what
`cli.parse.command` would not turn into one line fails the test.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from streamscope import InputError, load
from streamscope.cli.disk import write_atomically
from streamscope.instruments.prompts import load_suite
from streamscope.models.checkpoint import ZOO
from streamscope.models.runs import main as runs
from streamscope.models.tensors import save
from streamscope.probes.pds import Pds
from streamscope.probes.pds import main as pds

ROOT = Path(__file__).resolve().parents[2]
HUGE, DEEP = "9" * 5000, "[" * 5000


def wide(width: str) -> str:
    return '{"format": 1, "model": {"d_model": ' + width + "}}"


def attack(module: str, *argv: object) -> None:
    """A command ends with a line."""
    with pytest.raises(InputError) as caught:
        import_module(module).main([str(one) for one in argv])
    line = str(caught.value)
    assert line and "\n" not in line and len(line) < 600, line


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A hang is a failure."""

    def late(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that one may damage."""
    return Path(shutil.copytree(ZOO / "lfa", tmp_path / "run"))


def write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


TRAIN = ("models.train", "lfa", "--data", "stories:0:40", "--scale", "tiny", "--out", "OUT")
OPTIONS = {
    "an empty --out": ("models.train", "lfa", "--data", "stories:0:40", "--out", ""),
    "a width of 10^9": (*TRAIN, "--set", "d_model=1000000000"),
    "a vocabulary of 10^10": (*TRAIN, "--set", "d_vocab=10000000000"),
    "a width that is a word": (*TRAIN, "--set", "d_model=wide"),
    "an empty control": ("interventions.ablate", "pls", "--control", ""),
    "an empty run": ("interventions.ablate", ""),
    "no command": ("models.runs",),
    "a command that there is not": ("models.runs", "lst"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, *argv = OPTIONS[case]
    attack(module, *(str(tmp_path / "out") if one == "OUT" else one for one in argv))
    assert not list(tmp_path.rglob("*")), "something was written"


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for option, name in (("--out", "x.parquet"), ("--figure", "x.svg")):
        attack("interventions.ablate", "lfa", option, tmp_path / "file" / name)
        attack("interventions.ablate", "lfa", option, f"/proc/{name}")  # it takes no files, whoever asks
        attack("interventions.ablate", "lfa", option, tmp_path / ("x" * 300) / name)
    for module in ("papers.demo", "papers.zoo"):
        attack(module, "lfa", "--out", "/proc/pages")
        attack(module, "lfa", "--out", tmp_path / "file")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


Damage = Callable[[Path], Any]


def raw(name: str, content: str | bytes) -> Damage:
    return lambda run: write(run / name, content)


def fields(name: str, **values: Any) -> Damage:
    """Other values in a JSON file; None takes a field out."""

    def damage(run: Path) -> None:
        data = json.loads((run / name).read_text())
        for field, value in values.items():
            *outer, last = field.split("__")
            inner = reduce(lambda part, key: part[key], outer, data)
            inner.pop(last, None)
            inner.update({} if value is None else {last: value})
        write(run / name, json.dumps(data))

    return damage


def pipe(name: str) -> Damage:
    return lambda run: ((run / name).unlink(), os.mkfifo(run / name))


def snapshots(content: str) -> Damage:
    return lambda run: ((run / "snapshots").mkdir(exist_ok=True), write(run / "snapshots" / "snapshots.json", content))


HEADS, ABLATE, SHOW = ("probes.heads",), ("interventions.ablate",), ("models.runs", "show")
RUNS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "a config that is a list": (raw("config.json", "[]"), HEADS),
    "a deep config": (raw("config.json", DEEP), HEADS),
    "a config with 5,000 digits": (raw("config.json", wide(HUGE)), HEADS),
    "4,000 digits, which Python reads": (raw("config.json", wide(HUGE[:4000])), HEADS),
    "a config that is no text": (raw("config.json", b"\xff\xfe\x00"), HEADS),
    "a model that is a word": (fields("config.json", model="lfa"), HEADS),
    "a width that is a word": (fields("config.json", model__d_model="wide"), HEADS),
    "an infinite width": (fields("config.json", model__d_model=float("inf")), HEADS),
    "a part that is a number": (fields("config.json", model__attention=3), HEADS),
    "a kind that is a list": (fields("config.json", model__positions={"kind": []}), HEADS),
    "a part without a required field": (
        fields("config.json", model__positions={"kind": "rope", "stretch": {}}), HEADS),
    "a rule that is a list": (fields("manifest.json", data__valid__rule=[]), SHOW),
    "no data.valid": (fields("config.json", data__valid=None), ABLATE),
    "data that is a list": (fields("config.json", data=[]), ABLATE),
    "a manifest that is a list": (raw("manifest.json", "[1]"), HEADS),
    "argv that is no text": (fields("manifest.json", argv=[1, {}]), SHOW),
    "a manifest without data": (fields("manifest.json", data=None), SHOW),
    "parameters that are text": (fields("manifest.json", parameters="many"), SHOW),
    "metrics that are no text": (raw("metrics.jsonl", b"\x00\xff\n"), SHOW),
    "rows that are lists": (raw("metrics.jsonl", "[1, 2]\n"), SHOW),
    "a loss that is text": (raw("metrics.jsonl", '{"step": 1, "kind": "eval", "loss": "low"}\n'), SHOW),
    "weights that are no weights": (raw("model.safetensors", b"abc"), HEADS),
    "weights that are gone": (lambda run: (run / "model.safetensors").unlink(), HEADS),
    "a tokenizer that is a list": (raw("tokenizer.json", "[]"), HEADS),
    "a deep tokenizer": (raw("tokenizer.json", DEEP), HEADS),
    "a config that is a pipe": (pipe("config.json"), HEADS),
    "weights that are a pipe": (pipe("model.safetensors"), HEADS),
    "snapshots that are words": (snapshots('["one"]'), SHOW),
    "snapshots at no step": (snapshots('[{"step": "x"}]'), SHOW),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_damaged_runs(case: str, run: Path) -> None:
    damage, (module, *argv) = RUNS[case]
    damage(run)
    attack(module, *argv, run)


def test_a_dead_run_is_a_line_in_the_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("dead", "[1]"), ("deep", DEEP), ("gone", '{"preset": "lfa"}')):
        shutil.copytree(run, run.parent / name)
        write(run.parent / name / "manifest.json", content)
    runs(["list", str(run.parent)])
    said = capsys.readouterr().out
    assert "770,496" in said and said.count("damaged") == 3


DATA: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a pipe": (os.mkfifo, "x.txt"),
    "a pipe of a table": (os.mkfifo, "x.parquet"),
    "a pipe in a folder": (lambda p: (p.mkdir(), os.mkfifo(p / "a.txt")), "folder"),
    "deep rows": (lambda p: write(p, f'{{"text": {DEEP}}}\n'), "x.jsonl"),
    "5,000 digits": (lambda p: write(p, f'{{"text": {HUGE}}}\n'), "x.jsonl"),
}


@pytest.mark.parametrize("case", DATA)
def test_data_and_suites(case: str, tmp_path: Path) -> None:
    make, name = DATA[case]
    make(tmp_path / name)
    attack("interventions.ablate", "lfa", "--heads", "L5.H0", "--draws", 0, "--data", tmp_path / name)
    if not name.endswith("r"):
        attack("probes.pds", "lfa", "--suite", tmp_path / name)


def test_markup_in_a_suite_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in Path(load_suite("competing").source).read_text().splitlines() if line.strip()]
    path = tmp_path / "[b]suite.jsonl"
    path.write_text("".join(json.dumps(row | {"category": "[/b]x"}) + "\n" for row in rows))
    pds(["lfa", "--suite", str(path)])
    assert "PDS" in capsys.readouterr().out


def test_one_long_word_is_tokenized_in_time(tmp_path: Path) -> None:
    """BPE takes quadratic time in a word: 3 MB took over a minute."""
    tokenizer = load("lfa").tokenizer
    start = perf_counter()
    ids = tokenizer.encode("ab" * 1_500_000)
    assert perf_counter() - start < 20
    assert tokenizer.decode(ids).endswith("abab")


def test_files_have_the_mode_of_the_umask(run: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save(load(run), tmp_path / "copy")
        Pds().measure("lfa").save(tmp_path / "t" / "x.parquet", figure=tmp_path / "t" / "x.html")
    finally:
        os.umask(before)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.glob("*/*") if one.parent.name != "run"} == {0o644}


def test_two_processes_may_write_one_table(tmp_path: Path) -> None:
    """Each writes under a name of its own and renames, so that the last one's whole file stays."""
    path, seen = tmp_path / "x", []

    def outer(part: Path) -> None:
        part.write_text("outer")
        write_atomically(path, lambda other: (other.write_text("inner"), seen.append(other)))
        assert part.read_text() == "outer"
        seen.append(part)

    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device; nothing was written$"):
        write_atomically(path, full)
    write_atomically(path, outer)
    with pytest.raises(InputError, match="No space left on device; the previous file is unchanged$"):
        write_atomically(path, full)
    assert path.read_text() == "outer"
    assert len(set(seen)) == 2
    assert os.listdir(tmp_path) == ["x"]


CLOSED = """
logit_lens {folder}/model
logit_lens {folder}/tokenizer
logit_lens {folder}/closed/run
export {folder}/model --out {folder}/new
steer --direction {folder}/model/model.safetensors
runs list {folder}/closed
runs show {folder}/manifest
ablate --data {folder}/text.txt
pds --suite {folder}/text.jsonl
directions --a {folder}/text.txt
cluster --features {folder}/text.parquet
grid {folder}/text.toml --out {folder}/new
"""
AS_OWNER = """
import ctypes, json, sys
if sys.platform == "linux":  # root reads everything, unless it gives that up
    from os import execv, environ
    if "dropped" not in environ:
        environ["dropped"] = "1"
        for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, right)
        execv(sys.executable, sys.orig_argv)
from streamscope.__main__ import main
from streamscope.cli.errors import InputError
answers = {}
for line in json.loads(sys.argv[1]):
    try:
        main(line.split())
    except (InputError, PermissionError) as error:
        answers[line] = str(error)
print(json.dumps(answers))
"""


@pytest.mark.skipif(os.name == "nt", reason="modes of files")
def test_a_file_without_permission_is_called_so(run: Path, tmp_path: Path) -> None:
    signal.alarm(900)  # a dozen commands
    shutil.copytree(run, tmp_path / "closed" / "run")
    closed = [tmp_path / "closed"]
    for file in ("model.safetensors", "tokenizer.json", "manifest.json"):
        closed.append(shutil.copytree(run, tmp_path / file.partition(".")[0]) / file)
    for suffix in ("txt", "jsonl", "parquet", "toml"):
        write(path := tmp_path / f"text.{suffix}", "text")
        closed.append(path)
    for path in closed:
        path.chmod(0)
    lines = [line.format(folder=tmp_path) for line in CLOSED.split("\n") if line]
    done = subprocess.run([sys.executable, "-c", AS_OWNER, json.dumps(lines)], cwd=ROOT, capture_output=True, text=True)
    (tmp_path / "closed").chmod(0o700)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [line for line in lines if "ermission denied" not in answers.get(line, "no error")] == []


@pytest.mark.parametrize(
    "line",
    ["ablate {}", "{}", "ablate --data {}", "ablate --heads={}", "ablate --seed {}", "pds --suite winobias:{}",
     "linear --task {}"],
)  # fmt: skip
def test_a_long_argument_is_not_echoed_whole(line: str) -> None:
    argv = [sys.executable, "-m", "streamscope", *line.format("9" * 3000).split()]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr[-300:]
    assert len(done.stderr) < 800 and "9" * 50 in done.stderr and "9" * 200 not in done.stderr, done.stderr[:100]
