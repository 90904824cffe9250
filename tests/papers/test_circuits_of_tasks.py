"""The command that measures abilities and circuits: what it keeps, and the overlap of circuits by hand."""

import json
import re
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.result import Result
from streamscope.instruments.table import read_about, write_table
from streamscope.interventions.circuits import Circuits
from streamscope.interventions.circuits import measure as instrument
from streamscope.models import load
from streamscope.papers.circuits import Options, main
from streamscope.papers.circuits import measure as body


def test_rows_are_those_of_the_instrument_and_are_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "TASKS", ("letter-case", "name-copying", "capitals"))
    monkeypatch.setattr(body, "DRAWS", 4)
    tried, estimate = list[str](), instrument.seconds_of
    monkeypatch.setattr(
        instrument, "seconds_of", seconds := lambda how, *of: tried.append(how.task) or estimate(how, *of)
    )
    monkeypatch.setattr(body, "seconds_of", seconds)
    monkeypatch.setattr(instrument, "LONG_SECONDS", 0.0)
    argv = ["stories/lfa", "--tasks", "letter-case", "capitals", "name-copying", "--method", "eap", "--pairs", "16"]
    main([*argv, "--out", str(tmp_path)])
    lines = [line for line in capsys.readouterr().err.splitlines() if "about" in line]
    assert lines[0].endswith("for what it can do")
    cost = r"stories/lfa: about .* for the circuits of letter-case, name-copying; \d+\.\d GB of memory so far"
    assert re.fullmatch(cost, lines[1])
    assert len(lines) == 2 and tried == ["letter-case", "name-copying"], "each task is tried once"
    tables = {path.stem: pd.read_parquet(path) for path in tmp_path.glob("*.parquet")}
    assert tables["ability"].set_index("task")["does"].to_dict() == {
        "letter-case": True, "name-copying": True, "capitals": False,
    }  # fmt: skip
    rows = tables["circuits"].set_index("task")
    assert list(rows.index) == ["letter-case", "name-copying"]
    found = Result.load(tmp_path / ".parts" / "lfa-letter-case-eap.parquet")
    summary, edges = found.table("summary").frame["value"], found.about["edges"]
    mine = rows.loc["letter-case", ["m", "effect", "cpr", "cmd", "needed"]].to_numpy(float)
    assert mine == pytest.approx(summary * np.array([1, 1, 1, 1, edges]), rel=1e-6)
    shares = tables["streams"].groupby(["task", "by"])[["share", "edges"]].sum().to_numpy()
    assert shares == pytest.approx(np.ones_like(shares))
    size = np.abs(found.blocks["scores"].total.mean(1))
    part = size[(found.blocks["scores"].cells["part"] == "mlp").to_numpy()].sum() / size.sum()
    mlp = tables["streams"].set_index(["task", "group"]).loc[("letter-case", "mlp")]
    assert mlp["share_low"] - 0.1 < part < mlp["share_high"] + 0.1
    assert list(tables["overlap"]["share"]) == list(body.SHARES)

    monkeypatch.setattr(Circuits, "measure", lambda *args, **how: pytest.fail("measured again"))
    main([*argv, "--out", str(tmp_path)])
    assert "about" not in capsys.readouterr().err
    for name, table in tables.items():
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), table)


def test_wrong_names_are_refused_before_the_work(tmp_path: Path) -> None:
    for words, line in (
        (["stories/std-t", "stories/lfa"], "^stories/lfa is named twice$"),
        (["--tasks", "ioi", "ioi"], "^--tasks: ioi is named twice$"),
        (["--tasks", "stories", "name-copyin"], "unknown task 'name-copyin': did you mean name-copying"),
    ):
        with pytest.raises(InputError, match=line):
            main(["stories/lfa", *words, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_abilities_of_other_weights_or_of_fewer_pairs_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a run that was trained further under its name, or another --pairs, stood for the new ones."""
    monkeypatch.setattr(body, "TASKS", ("letter-case",))
    out = ("--out", str(tmp_path))
    main(["stories/lfa", "--pairs", "16", *out])
    path = tmp_path / "ability.parquet"
    first = pd.read_parquet(path)
    main(["stories/lfa", "--pairs", "24", *out])
    more = pd.read_parquet(path)
    assert [first["asked"].item(), more["asked"].item()] == [16, 24] and more["n"].item() > first["n"].item()
    told = read_about(path)
    for other in (more.assign(checkpoint="other", m=-1.0), more.drop(columns="asked")):
        own = {name: unit for name, unit in told["units"].items() if name in other}
        write_table(other, path, units=own, about=told["about"])
        main(["stories/lfa", "--pairs", "24", *out])
        pd.testing.assert_frame_equal(pd.read_parquet(path), more, check_like=True, check_dtype=False)


def test_rows_of_other_runs_stay(tmp_path: Path) -> None:
    for run, value in (("a", 1), ("b", 2), ("a", 3)):
        body._write(tmp_path, "streams", {"run": run, "method": "eap"}, [{"task": "x", "share": value}])
    body._write(tmp_path, "streams", {"run": "a", "method": "exact"}, [{"task": "x", "share": 4}])
    kept = pd.read_parquet(tmp_path / "streams.parquet")
    assert list(zip(kept["run"], kept["share"], strict=True)) == [("b", 2), ("a", 3), ("a", 4)]


def test_two_commands_that_write_together_keep_the_rows_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reads the table while the first, a slow one, is about to replace it."""
    write = body.write_table

    def slowly(*args: Any, **how: Any) -> None:
        time.sleep(0.3)
        write(*args, **how)

    body._write(tmp_path, "streams", {"run": "a"}, [{"task": "x"}])
    monkeypatch.setattr(body, "write_table", slowly)
    both = [Thread(target=body._write, args=(tmp_path, "streams", {"run": run}, [{"task": "x"}])) for run in "bc"]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(pd.read_parquet(tmp_path / "streams.parquet")["run"]) == ["a", "b", "c"]


def planted(task: str, best: range) -> Any:
    """A result of 100 edges and 20 pairs in which some edges are far better than the rest."""
    total = np.random.default_rng(len(task)).normal(0, 0.1, (100, 20))
    total[list(best)] += 5
    observed = Observations(
        measure=Measure(name="score", unit="nats", resolution=1e-6), cells=pd.DataFrame({"edge": range(100)}),
        units=pd.DataFrame({"unit": range(20), "cluster": range(20)}), total=total, size=1.0,
    )  # fmt: skip
    return Result({}, {"scores": observed}, about={"options": {"task": task}})


def test_overlap_by_hand() -> None:
    """Ten best edges of which none, five or all are shared, at a share of .1."""
    for best, jaccard in ((range(50, 60), 0.0), (range(5, 15), 1 / 3), (range(10), 1.0)):
        (row,) = (one for one in body.overlap_rows(planted("a", range(10)), planted("bb", best)) if one["share"] == 0.1)
        assert (row["edges"], row["same_task"], row["jaccard"]) == (10, 1.0, pytest.approx(jaccard))
        assert row["separate_low"] == pytest.approx(1 - jaccard) and row["chance"] == pytest.approx(1 / 19)


def test_architectures_are_compared_seed_by_seed() -> None:
    """Gaps of two architectures that differ by .1 ± .02 over three seeds, and by nothing in another pair of tasks."""
    gaps = {"a": [0.5, 0.7, 0.6], "b": [0.4, 0.58, 0.52]}
    rows = [
        {"preset": preset, "seed": seed, "task": task, "other": "z", "separate": gap if task == "x" else 0.3}
        for task in ("x", "y") for preset, values in gaps.items() for seed, gap in enumerate(values)
    ]  # fmt: skip
    rows += [{"preset": "alone", "seed": 0, "task": "x", "other": "z", "separate": 0.9}]
    differs, same = body.contrast_rows(pd.DataFrame(rows))
    assert (differs["preset"], differs["other_preset"], differs["n"]) == ("a", "b", 3)
    test = stats.ttest_rel(gaps["a"], gaps["b"])
    assert (differs["mean"], differs["p"]) == pytest.approx((0.1, test.pvalue))
    assert (differs["ci_low"], differs["ci_high"]) == pytest.approx(tuple(test.confidence_interval()))
    assert differs["p_holm"] == differs["p"], "the other pair has no p: it was no test"
    assert np.isnan(same["p_holm"]) and same["undefined"].endswith("p, p_holm: seeds without spread")
    assert body.contrast_rows(pd.DataFrame(rows[-1:])) == []


def test_runs_and_methods_are_compared_and_other_models_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {"x-s0": range(10), "x-s1": range(5, 15), "y-s0": range(10), "y-s1": range(10), "hf": range(10)}
    monkeypatch.setattr(body, "load_for_instruments", lambda run: SimpleNamespace(config=run[0]))
    monkeypatch.setattr(body, "_abilities", lambda *_: ["a", "bb"])
    monkeypatch.setattr(body, "_results", lambda _, run, *__: [planted("a", range(10)), planted("bb", best[run])])
    for name in ("circuit_row", "stream_rows"):
        monkeypatch.setattr(body, name, lambda *_: {})
    for method in ("eap", "exact"):
        body.measure(Options(runs=tuple(best), method=method, out=tmp_path))
    found = pd.read_parquet(tmp_path / "contrasts.parquet")
    assert found[["method", "preset", "other_preset", "n"]].to_numpy().tolist() == [
        ["eap", "x", "y", 2], ["exact", "x", "y", 2]
    ]  # fmt: skip
    overlap = pd.read_parquet(tmp_path / "overlap.parquet")
    assert overlap.groupby("run")["preset"].first().to_dict() == {**{run: run[0] for run in best}, "hf": ""}
    rows = pd.read_parquet(tmp_path / "seeds.parquet").query("share == .1 and method == 'eap'")
    pairs = [["x-s0", "x-s1"], ["y-s0", "y-s1"]]  # of one architecture, task by task
    assert rows[["run", "other_run", "task"]].to_numpy().tolist() == [
        [*pair, task] for pair in pairs for task in ("a", "bb")
    ]
    assert rows["jaccard"].to_list() == pytest.approx([1, 1 / 3, 1, 1]) and rows["same_run"].to_list() == [1.0] * 4


def test_a_task_whose_prompts_do_not_fit_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"clean": "Tom ran", "corrupt": "Tom ran far", "answers": [" on"], "foils": [" off"]}))
    row = body.ability(load("stories/lfa"), str(path), 16)
    assert np.isnan(row["m"]) and row["does"] is False
    assert row["undefined"].startswith("m, m_low") and "another number of tokens" in row["undefined"]
