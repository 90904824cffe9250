"""A grid of trainings: what its file says, killed in the middle and continued, failures recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.models import grid
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import parse_set
from streamscope.models.grid import Cell, begin, cells_of, failure_file, main, read_grid, state_of, with_options
from streamscope.models.train import Options
from streamscope.models.train import main as train
from streamscope.models.training.config import phases_of, with_recipe
from streamscope.models.training.run import read_metrics
from tests.tiny import assert_refused
from tests.training.runs import same_weights

ROOT = Path(__file__).resolve().parents[2]


def test_cells_by_hand(tmp_path: Path) -> None:
    grid = {"presets": ["lfa", "pls"], "seeds": [0, 3], "train": {"data": "stories", "set": ["n_layers=4"]}}
    grid["settings"] = {"fast": {"lr": 2e-3, "compile": "blocks"}, "wide": {"set": ["d_model=60"]}}
    cells = cells_of(grid)
    names = ["lfa-fast-s0", "lfa-fast-s3", "lfa-wide-s0", "lfa-wide-s3"]
    assert [cell.name for cell in cells] == names + [name.replace("lfa", "pls") for name in names]
    fast = "lfa --data stories --set n_layers=4 --lr 0.002 --compile blocks --seed 0"
    wide = "lfa --data stories --set n_layers=4 --set d_model=60 --seed 3"
    assert (" ".join(cells[0].argv), " ".join(cells[3].argv)) == (fast, wide)
    assert cells_of({"presets": ["lfa"]})[0].name == "lfa-s0"
    (cell,) = cells_of({"presets": ["lfa"], "train": {"bias_correction": True, "muon_kernels": False}})
    typed = parse(Options, cell.argv, "").training
    assert (typed.bias_correction, typed.muon_kernels) == (True, False), "what the recipe has a say in is typed"
    path = tmp_path / "grid.toml"
    path.write_text("presets = ['lfa']\nseeds = [0, 1, 2]\n[train]\ndata = 'stories'")
    assert [cell.name for cell in cells_of(read_grid(path))] == ["lfa-s0", "lfa-s1", "lfa-s2"]


def test_parts_change_the_grid_in_their_order() -> None:
    grid = {"presets": ["lfa"], "seeds": [0, 1], "train": {"data": "stories", "lr": 1e-3, "set": ["n_layers=4"]}}
    rope = {"presets": ["std-t"], "train": {"lr": 2e-3, "set": ["positions=rope"]}}
    grid["parts"] = [rope, {"seeds": [5], "settings": {"x": {"steps": 7}}}]
    cells = cells_of(grid)
    assert [cell.name for cell in cells] == ["std-t-s0", "std-t-s1", "lfa-x-s5"]
    first = "std-t --data stories --lr 0.002 --set n_layers=4 --set positions=rope --seed 0"
    last = "lfa --data stories --lr 0.001 --set n_layers=4 --steps 7 --seed 5"
    assert (" ".join(cells[0].argv), " ".join(cells[2].argv)) == (first, last)


def test_an_option_for_every_run_goes_before_the_grid() -> None:
    grid = {"presets": ["lfa"], "train": {"scale": "zoo", "lr": 1e-3}, "settings": {"a": {"lr": 5e-4}, "b": {}}}
    a, b = (with_options(cell, ["scale=paper", "lr=0.002", "device=cuda"]) for cell in cells_of(grid))
    assert " ".join(a.argv) == " ".join(b.argv) == "lfa --device cuda --lr 0.002 --scale paper --seed 0"
    words = {"scale": "give KEY=VALUE", "set=x": "other than set", "lrr=1": "unknown option of a grid 'lrr'"}
    for word, line in (words | {"steps=many": "steps: input should be a valid integer, got 'many'"}).items():
        assert_refused(line, with_options, a, [word])


def test_a_training_is_in_a_folder_once(tmp_path: Path) -> None:
    """Whatever it is called and in whatever order its options come; another one of that name is refused."""
    sets = ("--set", "n_layers=4", "--set", "n_ctx=64")
    one = Cell("a-s0", ("lfa", "--lr", "0.002", *sets, "--compile", "--seed", "0"))
    same = Cell("b-s0", ("lfa", "--compile", "--set", "n_ctx=64", *sets[:2], "--seed", "0", "--lr", "0.002"))
    other = Cell("a-s0", ("lfa", "--lr", "0.003", *sets, "--compile", "--seed", "0"))
    assert begin([one], tmp_path) == [one]
    assert begin([same], tmp_path, write=False) == begin([same], tmp_path) == [one]
    assert begin([same, same], tmp_path) == [one, one]
    assert json.loads((tmp_path / "grid.json").read_text()) == {"a-s0": list(one.argv)}
    assert_refused("a-s0 was started with other options", begin, [other], tmp_path)
    assert_refused("a-s0 was started with other options", begin, [one, other], tmp_path / "new")
    old = {"x-s0": ["a-preset-of-before", "--seed", "0"], "a-s0": list(one.argv)}
    (tmp_path / "grid.json").write_text(json.dumps(old))
    assert begin([same], tmp_path) == [one]


def test_what_a_grid_did_not_start_is_not_counted_or_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name may be another training; one that was killed early goes on in its folder."""
    cell = Cell("lfa-s0", ("lfa", "--seed", "0"))
    (folder := tmp_path / "lfa-s0").mkdir()
    (folder / "manifest.json").write_text('{"outcome": "completed"}')
    assert_refused("lfa-s0 is not of this grid: move it, or choose another --out", begin, [cell], tmp_path)

    monkeypatch.setattr(grid, "child", child := Mock(side_effect=InterruptedError))
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InterruptedError):
        grid.train(cell, tmp_path, threads=3)
    words, environment = child.call_args.args[0], child.call_args.kwargs["env"]
    assert words[-3:] == ["--resume", "--out", str(folder)] and (folder / "manifest.json").exists()
    assert environment["OMP_NUM_THREADS"] == "3"


GRIDS = sorted(path for path in (ROOT / "papers").rglob("*.toml") if "\n[train]\n" in path.read_text())


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_run_of_our_grids_can_be_trained(path: Path) -> None:
    """Each is a model that exists and a training whose schedule adds up, at its scale and at scale paper."""
    cells = {cell.argv[:-1]: cell for cell in cells_of(read_grid(path))}.values()  # whatever the seed
    for cell in cells:
        for given in ([], ["scale=paper"])[: 2 if cell.name.startswith("lfa") else 1]:
            options = parse(Options, with_options(cell, given).argv, "")
            config = preset(options.preset, options.scale, **parse_set(options.set))
            training = with_recipe(options.training, options.preset, options.scale)
            phases = phases_of(training.phases)
            assert training.steps == sum(phase.steps for phase in phases) or not phases
            assert all(phase.n_ctx <= config.n_ctx for phase in phases)


@pytest.mark.parametrize(("grid", "line"), [
    ({"presets": ["lfa"], "seed": [0]}, "unknown key of a grid 'seed': did you mean seeds"),
    ({"presets": []}, "presets of a grid: give at least one"),
    ({"presets": ["lfa"], "seeds": ["0"]}, "seeds of a grid: input should be a valid integer"),
    ({"presets": ["lfa"], "seeds": [-1]}, "seeds of a grid must be at least 0, got -1"),
    ({"presets": ["lfa", "lfa"]}, "names a run .* twice"),
    ({"presets": ["lfa"], "parts": {"train": {}}}, r"\[\[parts\]\] of a grid are tables"),
    ({"presets": ["lfa"], "train": {"step": 3}}, "unknown option of a grid 'step': did you mean steps"),
    ({"presets": ["lfa"], "train": {"compile": True}}, 'compile of a grid is "off", "blocks" or "step", got True'),
    ({"presets": ["lfa"], "settings": {"a": 3}}, "settings of a grid: input should be a valid dictionary"),
    ({"presets": ["lfa"], "train": {"set": [3]}}, "set of a grid is a list of texts"),
    ({"presets": ["lfa"], "train": {"set": ["d_model=64"]}}, "lfa-s0 .*: 6 heads do not divide the width 64"),
    ({"presets": ["kromhc", "lfa"], "settings": {"fast": {"hc_lr": 1.0}}}, "lfa-fast-s0 .*: --hc-lr has no effect"),
])  # fmt: skip
def test_a_wrong_grid_is_one_line(grid: dict, line: str) -> None:
    assert_refused(line, cells_of, grid)


def test_files_that_are_no_grid_are_one_line(tmp_path: Path) -> None:
    for text, line in (
        (b"presets = [", r"a.toml cannot be read \(.*\); give a grid as .toml"),
        (b"a = " + b"[" * 10_000, "a.toml cannot be read"),
        ('presets = ["lfa"]\ntrain = {data = "Märchen"}'.encode("latin-1"), "a.toml cannot be read"),
        (b'presets = ["lfa"]\nseeds = [2020-01-01]', "seeds of a grid: input should be a valid integer"),
    ):
        (tmp_path / "a.toml").write_bytes(text)
        with pytest.raises(InputError, match=line):
            cells_of(read_grid(tmp_path / "a.toml"))
    out = ["--out", str(tmp_path / "out")]
    assert_refused("nowhere.toml is missing: give a grid as .toml", main, [str(tmp_path / "nowhere.toml"), *out])
    assert_refused("holds no grid yet: give GRID.toml$", main, ["--status", *out])


GRID = """presets = ["lfa"]
settings = {{a = {{}}, b = {{tokenizer = "nowhere.json"}}}}
[train]
data = "{}"
valid = "{}"
scale = "tiny"
set = ["d_vocab=300"]
steps = 120
batch_size = 4
checkpoint_every = 5
log_every = 5
device = "cpu"
"""


@pytest.mark.slow
def test_killed_and_continued(corpus, tmp_path: Path, capsys) -> None:
    # a run is killed with its worker in the middle; another cannot be trained
    out, grid = tmp_path / "grid", tmp_path / "grid.toml"
    grid.write_text(GRID.format(*corpus))
    argv = [sys.executable, "-m", "models.grid", str(grid), "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    worker = subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    first = out / "lfa-a-s0"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and worker.poll() is None:
        if (first / "metrics.jsonl").exists() and any(r["step"] >= 20 for r in read_metrics(first, strict=False)):
            break
        time.sleep(0.01)
    assert state_of(out, "lfa-a-s0") == "running"
    worker.send_signal(signal.SIGKILL)
    worker.wait(30)
    time.sleep(0.5)
    reached = max(r["step"] for r in read_metrics(first, strict=False))
    time.sleep(0.5)
    assert 20 <= reached == max(r["step"] for r in read_metrics(first, strict=False)) < 120, "its training died too"
    assert state_of(out, "lfa-a-s0") == "open"

    main([str(grid), "--out", str(out)])
    said = capsys.readouterr().out
    assert [state_of(out, f"lfa-{s}-s0") for s in "ab"] == ["done", "failed"]
    told = "tokenizer nowhere.json does not exist"
    assert told in failure_file(out, "lfa-b-s0").read_text() and told in said
    argv = cells_of(read_grid(grid))[0].argv
    train([*argv, "--out", str(tmp_path / "whole")])
    assert same_weights(first, tmp_path / "whole"), "as if it had never been killed"
    assert "resuming at step" in (out / ".ledger" / "logs" / "lfa-a-s0.log").read_text()

    before = (first / "manifest.json").stat().st_mtime_ns  # again: nothing is trained
    main(["--out", str(out)])
    main(["--out", str(out), "--status"])
    assert (first / "manifest.json").stat().st_mtime_ns == before


def test_a_setting_that_changes_nothing_is_refused() -> None:
    """dst-kron has RoPE: a run of its own with it would be trained twice, and taken for a comparison."""
    grid = {"presets": ["dst-kron"], "train": {"data": "stories"}}
    with pytest.raises(InputError, match="dst-kron-plain-s0 and dst-kron-rope-s0 of a grid are the same run"):
        cells_of({**grid, "settings": {"plain": {}, "rope": {"set": ["positions=rope"]}}})
    found = cells_of({**grid, "settings": {"plain": {}, "none": {"set": ["positions=none"]}, "fast": {"lr": 2e-3}}})
    assert len(found) == 3
    parts = [{"presets": ["std-t"]}, {"presets": ["std-t"], "settings": {"rope": {"set": ["positions=rope"]}}}]
    assert len(cells_of({"train": {"data": "stories"}, "parts": parts})) == 2
