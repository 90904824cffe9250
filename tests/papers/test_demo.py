"""The demonstration end to end on models of three steps, its choice of a prompt on a trained one, its refusals."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result
from streamscope.papers.demo import main
from tests.instruments.estimates import proportion

SMALL = ["--pairs", "9", "--documents", "3", "--edited-pairs", "6", "--k", "1", "--draws", "4"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An LFA and a Std-T of two layers, trained for three steps on stories, and one with another tokenizer."""
    from streamscope.models.train import main as train

    folder = tmp_path_factory.mktemp("demo")
    rest = "--data stories:0:80 --scale tiny --set n_ctx=128 --steps 3 --batch-size 2 --eval-every 3 --log-every 1 "
    rest += "--sample-every 0 --device cpu"
    for name, preset, vocabulary in (("a", "lfa", 400), ("b", "std-t", 400), ("c", "lfa", 300)):
        train([preset, *rest.split(), "--set", f"d_vocab={vocabulary}", "--out", str(folder / name)])
    return [folder / name for name in "abc"]


@pytest.mark.slow
def test_two_runs_make_a_page_and_results(runs: list[Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "page"
    main([str(runs[0]), str(runs[1]), "--out", str(out), *SMALL])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"page {out / 'index.html'}"
    html = (out / "index.html").read_text()
    assert "nan" not in re.findall(r"<td[^>]*>(nan)<", html) and html.count('class="plot"') == 10
    both = f"{runs[0]} {runs[1]}"
    commands = re.findall(r"^(?:<pre>)?python -m (.*?)(?:</pre>)?$", html, re.MULTILINE)
    assert len(commands) == 9 and f"probes.coreference {both} --suite stories --n 9 --domain keys" in commands
    assert sum(both in command for command in commands) == 7  # all but the pictures
    assert not [path for path in out.iterdir() if path.name.startswith(".") or path.suffix not in (".html", ".parquet")]
    ablation = Result.load(out / "ablation.parquet")
    frame = ablation.table().frame
    assert list(frame["run"].unique()) == [f"lfa ({runs[0]})", f"std-t ({runs[1]})"] and len(frame) == 2 * 8
    for table in (ablation.table(), Result.load(out / "coreference.parquet").table("held-out")):
        for one in table.columns:
            assert not one.shown or f">{one.title}</th>" in html, one.name
    step = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()][-1]
    assert f"Its validation loss is {step['loss']:.3f} nats per token after 3 steps. It writes: “Once" in html


def test_a_run_that_was_killed_while_it_wrote_its_log_is_introduced(runs: list[Path], tmp_path: Path) -> None:
    from streamscope.models import load
    from streamscope.papers.demo.report import introduction

    run = shutil.copytree(runs[0], tmp_path / "run")
    whole = introduction(str(run), load(run))
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "ki')
    assert introduction(str(run), load(run)) == whole and "nats per token after 3 steps. It writes" in whole


def test_bad_input_is_refused_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    first, _, other = map(str, runs)
    (tmp_path / "file").write_text("")
    for argv, message in (
        ([], "give a run folder"), ([str(tmp_path / "none")], "not a run folder"),
        ([first, other], "different tokenizers"), ([first, first], "named twice"),
        ([first, "--out", str(tmp_path / "file")], "is a file"), ([first, "--pairs", "2"], "at least 4"),
        ([first, "--documents", "1"], "documents must be at least 2"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            main(argv)


# ---- what is shown of one passage --------------------------------------------------------------


def test_the_passage_shown_is_the_median_one() -> None:
    from streamscope.papers.demo.report import median_pair

    rows = [("a-1", "a", 0.9), ("a-2", "a", 0.5), ("b-1", "b", -0.4), ("b-2", "b", 0.0), ("c-1", "c", 0.3),
            ("c-2", "c", -0.1), ("d-1", "d", 5.0), ("e-1", "", 0.1)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["id", "pair", "sps"])
    assert median_pair(frame) == ("c-1", "c-2")  # means .7, −.2 and .1; d has one order, e none
    assert median_pair(frame[:4]) == ("b-1", "b-2")
    with pytest.raises(InputError, match="no pair of stories fits"):
        median_pair(frame[-1:])


def test_head_and_passage_are_chosen_on_different_halves_of_the_cases() -> None:
    """By the rows of the probes on a trained model; of two runs those of the first."""
    from streamscope.instruments.data import Prompts
    from streamscope.instruments.pool_results import pool_results
    from streamscope.instruments.stats.held_out import halves
    from streamscope.models import load
    from streamscope.papers.demo.report import choose
    from streamscope.probes.coreference import Coreference
    from streamscope.probes.probe import measure
    from streamscope.probes.sps import Sps

    names, prompts = ("stories/gpt2", "stories/lfa"), Prompts(suite="stories", n=16)
    found, aligned = {}, None
    for name in names:
        model = load(name)
        data = Coreference().open(model, prompts)
        found[name] = [one.measure(model, data[Prompts]) for one in (Coreference(), Sps())]
        aligned = data[Prompts].aligned if name == names[0] else aligned
    choice = choose(*found[names[0]], 16)
    assert aligned is not None
    model = load(names[0])
    rows, leaning = (measure(model, one, aligned) for one in (Coreference(), Sps()))
    side = halves(rows, 0)[0]
    scores = rows[side == 0].groupby("head")[["hit", "attention"]].mean()
    head = scores.sort_values(["hit", "attention"], ascending=False, kind="stable").index[0]
    unseen = rows[(side == 1) & (rows["head"] == head)]
    share = proportion(unseen["hit"].to_numpy(), unseen["cluster"].to_numpy())
    assert choice.head == head and 0 < share.mean < 1
    numbers = [f"{100 * x:.1f}" for x in (share.mean, share.low, share.high)]
    assert choice.right == "{} % of {} prompts (95 % interval {} to {})".format(numbers[0], len(unseen), *numbers[1:])
    mine = leaning[(leaning["head"] == head) & leaning["id"].isin(unseen["id"])]
    means = mine.groupby("pair")["sps"].mean().sort_values()
    assert set(choice.prompts) == set(mine["id"][mine["pair"] == means.index[(len(means) - 1) // 2]])
    both = [pool_results([found[name][i] for name in names]) for i in range(2)]
    assert choose(*both, 16) == choice != choose(*found[names[1]], 16)


# ---- the live page ------------------------------------------------------------------------------


def test_the_page_and_the_live_page_link_each_other(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamscope.models import load
    from streamscope.papers.demo.report import write_live
    from streamscope.viewer import page, runtime

    assert not write_live({"c": load(runs[2])}, tmp_path, "Once", {})
    assert "without the live page: a page needs ONNX Runtime" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(runtime, "read", lambda name: b"let a=1;export{a as env};")
    monkeypatch.setattr(page, "graph_of", lambda model, *extras: b"graph")
    main([str(runs[2]), "--out", str(tmp_path / "with"), *SMALL])
    printed = capsys.readouterr().out
    assert f"live page {tmp_path / 'with' / 'live.html'}" in printed
    report, live = ((tmp_path / "with" / name).read_text() for name in ("index.html", "live.html"))
    assert '<a href="live.html">live page</a>' in report and "median one" in report
    assert f"Inside {runs[2]}</h1>" in report
    assert re.search(r"Without L\d\.H\d, which finds the right noun in .*, the log-odds go from [+-]", report)
    found = re.search(r'id="data">(.*?)</script>', live, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    said = re.search(r"^(L\d\.H\d) of .* finds the right noun in ([\d.]+ % of \d+ prompts)", printed, re.MULTILINE)
    assert said is not None and said[1] == data["state"]["head"] and said[2] in report
    assert data["report"] == "index.html" and data["state"]["text"] in live and data["models"][0]["id"] == "c"
    attention = Result.load(tmp_path / "with" / "picture.parquet").table().frame
    assert set(attention["query"]) == {data["state"]["token"]} and set(attention["head"].str[:2]) == {said[1][:2]}
