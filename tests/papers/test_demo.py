"""The demonstration end to end on untrained models, its sentences on planted tables, its refusals."""

import json
import re
import subprocess
import sys
import time
from html import escape
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.papers.comparison.tables import column
from streamscope.papers.demo import main, sentences
from streamscope.papers.demo.options import Sizes
from streamscope.papers.demo.sections import COLUMNS

SMALL = ["--pairs", "9", "--documents", "3", "--suppress-pairs", "6", "--k", "1", "--draws", "4"]
ROOT = Path(__file__).resolve().parents[2]
NAN = float("nan")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An LFA and a Std-T of two layers, trained for three steps on stories, and one with another tokenizer."""
    from streamscope.models.train import main as train

    folder = tmp_path_factory.mktemp("demo")
    made = []
    for name, preset, vocabulary in (("a", "lfa", 400), ("b", "std-t", 400), ("c", "lfa", 300)):
        sizes = ["--scale", "tiny", "--set", f"d_vocab={vocabulary}", "--set", "n_ctx=128", "--steps", "3"]
        rest = [
            "--batch-size",
            "2",
            "--eval-every",
            "3",
            "--log-every",
            "1",
            "--sample-every",
            "0",
            "--device",
            "cpu",
            "--out",
            str(folder / name),
        ]
        train([preset, "--data", "stories:0:80", *sizes, *rest])
        made.append(folder / name)
    return made


@pytest.mark.slow
def test_two_runs_make_a_page_and_tables(runs: list[Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "page"
    main([str(runs[0]), str(runs[1]), "--out", str(out), *SMALL])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"page {out / 'index.html'}"
    html = (out / "index.html").read_text()
    assert "nan" not in re.findall(r"<td[^>]*>(nan)<", html)
    figures = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)
    assert figures is not None and len(json.loads(figures[1])) == html.count('class="plot"')
    for command in ("probes.pds", "probes.picture", "probes.coreference", "probes.sps", "interventions.suppress"):
        assert f"python -m {command} {runs[1]}" in html
    tables = {path.stem: pd.read_parquet(path) for path in out.glob("*.parquet")}
    assert not [path for path in out.iterdir() if "part" in path.name]
    assert list(tables["ablation"]["run"].unique()) == ["lfa", "std-t"] and len(tables["ablation"]) == 2 * 8
    for name in tables["ablation"].drop(columns=["run", "layer", "index", "scale", "undefined"]):
        title = column(name, "demo/ablation", COLUMNS["ablation"]).title
        assert name.endswith(("_low", "_high")) or f">{escape(title)}</th>" in html, name
    assert "1 documents" not in html and "In short" in html
    keys = tables["coreference-keys-held-out"].query("run == 'lfa' and halves == 'both'").iloc[0]
    assert re.search(f"most attention in {100 * keys['top1']:.1f}.% of the other", html)
    assert keys["chance"] < 0.2 < tables["coreference-held-out"]["chance"].min()
    step = tables["losses"][tables["losses"]["kind"] == "eval"].iloc[-1]
    assert step["tokens"] == 3 * 2 * 128 and re.search(r"\(0\.0.M tokens seen\)", html)  # steps × sequences × context


def test_one_run_is_enough(runs: list[Path], tmp_path: Path) -> None:
    main([str(runs[2]), "--out", str(tmp_path), *SMALL])
    assert "Inside lfa</h1>" in (tmp_path / "index.html").read_text()


def test_bad_input_is_refused_in_one_line(runs: list[Path], tmp_path: Path) -> None:
    first, _, other = map(str, runs)
    (tmp_path / "file").write_text("")
    cases = [
        ([], "give a run folder"),
        ([str(tmp_path / "none")], "not a run folder"),
        ([first, other], "different tokenizers"),
        ([first, first], "given twice"),
        ([first, "--out", str(tmp_path / "file")], "is a file"),
        ([first, "--pairs", "2"], "at least 4"),
    ]
    for argv, message in cases:
        with pytest.raises(InputError, match=message):
            main(argv)


def test_help_is_instant() -> None:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "papers.demo", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--pairs" in done.stdout
    assert time.perf_counter() - start < 10, "heavy imports belong into functions"
    code = "import sys, papers.demo; print([m for m in ('torch', 'pandas', 'plotly') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# ---- sentences ---------------------------------------------------------------------------------


def test_numbers_in_words() -> None:
    assert (
        sentences.signed(-0.0004) == "0.000"
        and sentences.signed(-0.5, 1) == "−0.5"
        and sentences.signed(2, 1) == "+2.0"
    )
    assert sentences.places(0.000123) == 5 and sentences.places(0.5) == 3 and sentences.places(0.0, NAN) == 3
    assert sentences.chance(0.00001) == "p < 0.001" and sentences.chance(NAN) == "p undefined"
    assert sentences.interval({"ci_low": NAN, "ci_high": 1.0}) == "interval undefined"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "more often"), (-0.3, -0.1, "less often"), (-0.1, 0.1, "not significantly different")],
)
def test_the_verdict_on_coreference_follows_the_interval(low: float, high: float, verdict: str) -> None:
    row = {"halves": "both", "head": "L0H1 / L1H1", "top1": 0.6, "ci_low": low, "ci_high": high, "p": 0.02}
    row |= {"difference": (low + high) / 2, "n": 20, "clusters": 10}
    table = pd.DataFrame([{**row, "rule": "recency", "rule_share": 0.5}, {**row, "rule": "longest", "rule_share": 0.4}])
    keys = pd.DataFrame([{**row, "head": "L2H3 / L2H3", "top1": 0.1, "chance": 0.04, "rule": "recency"}])
    text = sentences.coreference("m", {"coreference-held-out": table, "coreference-keys-held-out": keys})
    assert verdict in text and "“recency”" in text and "n = 20 prompts that share 10 nouns or more of a kind" in text
    # "right" is of the two nouns; the paper's Top-1, over all tokens, stands beside with its own head and chance
    assert "(L0H1 / L1H1) prefers the right noun in 60.0 %" in text
    assert "Over all tokens" in text and "(L2H3 / L2H3)" in text and "10.0 %" in text and "4.0 %" in text


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.03, 0.05, "leans to the right noun"), (0.005, 0.03, "no lean"), (-0.03, -0.01, "leans to the competitor")],
)
def test_sps_must_exceed_what_the_lengths_of_the_nouns_explain(low: float, high: float, verdict: str) -> None:
    row = {"heads": "all", "sps": (low + high) / 2, "ci_low": low, "ci_high": high, "even": 0.02, "n": 10}
    assert verdict in sentences.sps("m", {"sps": pd.DataFrame([row])})


@pytest.mark.parametrize(
    ("low", "high", "rank", "verdict"),
    [
        (-0.3, -0.1, 0.05, "random heads do not make"),
        (-0.3, -0.1, 0.4, "random heads make too"),
        (-0.3, 0.1, 0.05, "no change that is significantly"),
        (-0.3, -0.1, NAN, "without random sets"),
    ],
)
def test_suppression_needs_an_effect_and_a_rank(low: float, high: float, rank: float, verdict: str) -> None:
    label = {"measure": "coherence", "selection": "top1", "gate": 0.0}
    effect = {**label, "group": "selected", "part": "all", "ci_low": low, "ci_high": high, "n": 18, "clusters": 9}
    control = {**label, "heads": "L0H1+L1H1", "selected": -0.2, "random_low": -0.3, "random_high": 0.1, "draws": 39}
    tables = {
        "suppression": pd.DataFrame([effect]),
        "suppression-controls": pd.DataFrame([{**control, "p_rank": rank}]),
    }
    (line,) = sentences.suppression("m", tables)
    assert verdict in line and "L0H1, L1H1" in line and "n = 18 prompts" in line
    tables["suppression-controls"].loc[0, "selected"] = NAN
    assert "undefined by construction" in sentences.suppression("m", tables)[0]


def test_ablation_counts_heads_with_and_without_controls() -> None:
    table = pd.DataFrame(
        {"head": ["L0H0", "L0H1"], "delta": [0.3, 0.1], "ci_low": [0.2, 0.0], "ci_high": [0.4, 0.2], "n": 5,
         "p_holm": [0.001, 0.2]}
    )  # fmt: skip
    text = sentences.ablation("m", {"ablation": table})
    assert "holds up for 1 of 2 heads" in text and "n = 5 documents" in text and "other heads" not in text
    table = table.assign(above=[0.2, -0.2], p_above_holm=[0.01, 0.01])
    assert "1 costs more than the other heads" in sentences.ablation("m", {"ablation": table})


def test_sizes_refuse_what_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="documents must be at least 2"):
        Sizes(documents=1)


@pytest.mark.parametrize(
    ("whole", "chosen", "above", "verdict"),
    [
        ((0.2, 1.0), (-0.6, -0.2), (-0.5, -0.1), "this head carries part of what the nouns say"),
        ((0.2, 1.0), (-0.6, -0.2), (-0.5, 0.1), "not significantly different from its neighbours"),
        ((0.2, 1.0), (-0.1, 0.3), (-0.5, -0.1), "not significantly different from its neighbours"),
        ((-0.1, 0.3), (-0.6, -0.2), (-0.5, -0.1), "it cannot be asked which head they need"),
    ],
)
def test_a_head_is_needed_only_where_the_nouns_are_used(whole, chosen, above, verdict: str) -> None:
    def row(who: str, role: str, low: float, high: float) -> dict:
        return {"who": who, "role": role, "change": (low + high) / 2, "ci_low": low, "ci_high": high, "p": 0.01, "n": 9}

    table = pd.DataFrame(
        [row("L1H5", "chosen", *chosen), row("L1H0", "other", 0, 0), row("nothing", "whole", *whole),
         row("mean of the others", "mean", 0, 0), row("chosen − mean", "above", *above)]
    )  # fmt: skip
    assert verdict in sentences.following("m", {"following": table})
    assert "no prompt has nouns" in sentences.following("m", {"following": table.head(0)})


def test_what_a_head_carries_of_the_nouns_by_hand(runs: list[Path]) -> None:
    """Two heads chosen for different prompts: each prompt loses its own, and the others of that head's layer."""
    from streamscope.instruments.prompts import align, load_suite
    from streamscope.models import load
    from streamscope.models.hooks import edit
    from streamscope.papers.demo.measure import Found, _following
    from streamscope.probes.coherence import Coherence
    from streamscope.probes.coherence.elsewhere import aligned_control
    from streamscope.probes.probe import measure

    model = load(runs[0])
    aligned = align(load_suite("stories", n=30), model.tokenizer, model.config.n_ctx)
    others = aligned_control(aligned, model.tokenizer, model.config.n_ctx)

    def due(layer: int | None = None, head: int = 0) -> pd.Series:
        def off(z, hook):
            return z * (1 - (z.new_zeros(z.shape[2]).index_fill_(0, z.new_tensor([head]).long(), 1.0))[:, None])

        with edit(model, {} if layer is None else {f"blocks.{layer}.attn.hook_z": off}):
            a, b = (measure(model, Coherence(), one).set_index("id")["log_odds"] for one in (aligned, others))
        return (a - b).dropna()

    whole = due()
    half = dict(zip(whole.index, ["L0H1", "L1H2"] * len(whole), strict=False))
    found = Found(chosen={p.id: half.get(p.id, "L0H1") for p in aligned.prompts})
    _following(model, aligned, found)
    table = found.tables["following"].set_index("role")
    lost = {
        h: due(int(h[1]), int(h[3])) - whole for h in ("L0H0", "L0H1", "L0H2", "L0H3", "L1H0", "L1H1", "L1H2", "L1H3")
    }
    own = [lost[half[name]][name] for name in whole.index]
    rest = [
        [lost[f"{half[name][:2]}H{i}"][name] for i in range(4) if f"H{i}" != half[name][2:]] for name in whole.index
    ]
    assert table.loc["whole", "change"] == pytest.approx(whole.mean(), abs=1e-6)
    assert table.loc["chosen", "change"] == pytest.approx(sum(own) / len(own), abs=1e-6)
    assert table.loc["chosen", "who"] == "L0H1/L1H2" and table.loc["other", "who"].tolist()[0] == "L0H0/L1H0"
    mean = sum(sum(r) / 3 for r in rest) / len(rest)
    assert table.loc["mean", "change"] == pytest.approx(mean, abs=1e-6)
    assert table.loc["above", "change"] == pytest.approx(sum(own) / len(own) - mean, abs=1e-6)


# ---- the live page ------------------------------------------------------------------------------


def test_the_passage_shown_is_the_median_one() -> None:
    from streamscope.papers.demo.measure import median_pair

    rows = [("a-1", "a", 0.9), ("a-2", "a", 0.5), ("b-1", "b", -0.4), ("b-2", "b", 0.0), ("c-1", "c", 0.3),
            ("c-2", "c", -0.1), ("d-1", "d", 5.0), ("e-1", "", 0.1)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["id", "pair", "sps"])
    assert median_pair(frame) == ("c-1", "c-2")  # means .7, −.2 and .1; d has one order, e none
    assert median_pair(frame[:4]) == ("b-1", "b-2") and median_pair(frame[-1:]) == ("e-1",)


def test_how_often_the_head_of_the_picture_is_right() -> None:
    right = {"share": 0.767, "ci_low": 0.559, "ci_high": 0.895, "n": 60}
    line = sentences.picture("lfa", "L5H2", right)
    assert line.endswith("L5H2 attends more to the right noun in 76.7 % of 60 prompts (95 % interval 55.9 to 89.5).")
    assert "(interval undefined)" in sentences.picture("lfa", "L5H2", {**right, "ci_low": NAN, "ci_high": NAN})


def test_the_report_and_the_live_page_link_each_other(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamscope.viewer import page, runtime

    main([str(runs[2]), "--out", str(tmp_path / "without"), *SMALL])
    assert "without the live page: a page needs ONNX Runtime" in capsys.readouterr().out
    assert "live.html" not in (tmp_path / "without" / "index.html").read_text()
    monkeypatch.setattr(runtime, "read", lambda name: b"let a=1;export{a as env};")
    monkeypatch.setattr(page, "graph_of", lambda model: b"graph")
    main([str(runs[2]), "--out", str(tmp_path / "with"), *SMALL])
    assert f"live page {tmp_path / 'with' / 'live.html'}" in capsys.readouterr().out
    report, live = ((tmp_path / "with" / name).read_text() for name in ("index.html", "live.html"))
    assert '<a href="live.html">live page</a>' in report and "median one" in report
    found = re.search(r'id="data">(.*?)</script>', live, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["report"] == "index.html" and re.fullmatch(r"L[01]\.H[0-3]", data["state"]["head"])
    said = re.search(r"(L\dH\d) attends more to the right noun in [\d.]+.% of (\d+)", report)
    assert said is not None and said[1].replace("H", ".H") == data["state"]["head"]
    assert data["state"]["text"] in live and data["models"][0]["id"] == "c"
