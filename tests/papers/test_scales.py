"""One command per paper: which runs it needs, that it trains them once, measures once, and says what is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import parse_set
from streamscope.models.grid import Cell, begin, cells_of, read_grid
from streamscope.models.grid import train as in_a_process
from streamscope.models.train import main as train
from streamscope.papers import dst, hdpl, krom, lfa, pls
from streamscope.papers.scales.__main__ import main as train_all
from streamscope.papers.scales.measured import key
from streamscope.papers.scales.training import ORDER, all_cells, cells
from tests.papers.pages import short_page

SCALES = ("tiny", "eighth", "zoo", "long", "small", "paper")
COMMANDS = {"dst": dst.main, "hdpl": hdpl.main, "krom": krom.main, "lfa": lfa.main, "pls": pls.main}
SPECIMENS = Path(__file__).resolve().parents[2] / "results" / "specimens" / "zoo.toml"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("paper", COMMANDS)
def test_the_runs_of_a_paper(paper: str, scale: str) -> None:
    found = cells(paper, scale, 2)
    seeds = [cell.argv[cell.argv.index("--seed") + 1] for cell in found]
    assert seeds == sorted(seeds), "a seed is whole before the next begins"
    assert seeds.count("0") == seeds.count("1") == len(found) / 2
    size = "zoo" if scale in ("eighth", "long") else scale
    assert all(cell.argv[cell.argv.index("--scale") + 1] == size for cell in found)
    presets = {cell.argv[0] for cell in found}
    assert (
        presets
        == {
            "dst": {"dst-dense", "dst-kron", "dst-ind", "dst-full-ind"},
            "hdpl": {"llama", "hdpl"},
            "krom": {"gpt2", "canon", "kromhc", "kromcanon"},
            "lfa": {"std-t", "d-cas", "lfa", "cfm"},
            "pls": {"pls", "c2"},
        }[paper]
    )


@pytest.mark.parametrize("scale", SCALES)
def test_all_papers_share_a_folder(scale: str, tmp_path: Path) -> None:
    """No two of their trainings have a name, and those that are one are there once."""
    wanted = all_cells(ORDER, scale)
    found = begin(wanted, tmp_path)
    assert len(found) == len(wanted)
    assert (len(set(found)) < len(wanted)) == (scale in ("eighth", "zoo", "long", "small")), (
        "elsewhere each paper has its own recipe"
    )
    seeds = [int(cell.argv[-1]) for cell in wanted]
    assert seeds == sorted(seeds) and max(seeds) == 4, "PLS has five"
    assert begin(wanted, tmp_path) == found


def test_the_scale_of_the_bundle_is_the_recipe_of_the_specimens(tmp_path: Path) -> None:
    """What papers take as their preset is, is one of the bundled models; the bundled gpt2 has learned positions, and
    the bundled llama and hdpl are trained twice as long."""
    bundle = begin(cells_of(read_grid(SPECIMENS)), tmp_path)
    theirs = {paper: set(begin(cells(paper, "zoo", 1), tmp_path)) & set(bundle) for paper in ORDER}
    assert {paper: sorted(cell.name for cell in found) for paper, found in theirs.items()} == {
        "lfa": ["cfm-s0", "d-cas-s0", "lfa-s0"],
        "pls": ["c2-s0", "pls-s0"],
        "dst": ["dst-dense-s0", "dst-full-ind-s0", "dst-ind-s0", "dst-kron-s0"],
        "hdpl": [],
        "krom": ["canon-s0", "kromcanon-b2-s0", "kromcanon-bf16-s0", "kromcanon-s0", "kromhc-s0"],
        "scorecard": [
            "c2-s0",
            "cfm-s0",
            "d-cas-s0",
            "dst-dense-s0",
            "dst-full-ind-s0",
            "dst-ind-s0",
            "dst-kron-s0",
            "lfa-s0",
            "pls-s0",
        ],
    }


def test_an_arm_may_belong_to_some_scales() -> None:
    heads = {scale: [c.name for c in cells("dst", scale, 1) if "heads" in c.name] for scale in ("zoo", "paper")}
    assert heads == {"zoo": [f"dst-kron-heads{n}-s0" for n in (4, 8, 16)], "paper": []}
    assert not [c.name for c in cells("dst", "zoo", 1) if "scales" in " ".join(c.argv)]


def test_hybrid_o_and_down_are_arms_at_every_scale() -> None:
    """At the scale of the bundled models the two together alone, with two seeds."""
    for scale, arms in (("tiny", ["o", "down", "o-down"]), ("zoo", ["o-down"]), ("paper", ["o", "down", "o-down"])):
        own = [cell.name for cell in cells("hdpl", scale) if cell.name.startswith(("hdpl-o", "hdpl-down"))]
        seeds = 2 if scale == "zoo" else 3
        assert sorted(own) == sorted(f"hdpl-{arm}-s{seed}" for arm in arms for seed in range(seeds))


def test_dst_has_the_mode_of_every_table_and_two_beginnings_of_its_kronecker_model() -> None:
    """Table 5 is of frozen-token models, dense, Kronecker, independent and gated; Table 8 has the fully independent."""
    for scale, other in (("tiny", "fan_in_normal"), ("zoo", "normal"), ("small", "normal"), ("paper", "fan_in_normal")):
        found = {}
        for cell in cells("dst", scale, 1):
            sets = [cell.argv[i + 1] for i, word in enumerate(cell.argv) if word == "--set"]
            found[cell.name] = preset(cell.argv[0], scale, **parse_set(sets))
        frozen = {name for name, one in found.items() if one.residual.kind == "frozen_token"}
        usual = {f"dst-{kind}-frozen-s0" for kind in ("dense", "kron", "ind", "full-ind")}
        assert len(frozen) == 6 and usual < frozen and "dst-dense-gated-frozen-s0" in frozen
        gated = {name for name, one in found.items() if one.attention.gate is not None}
        assert gated == {"dst-dense-gated-s0", "dst-dense-gated-frozen-s0"}, "Table 5 has no other gated model"
        began = {(one.init.weights.kind, one.init.embed.kind) for name, one in found.items() if name == "dst-kron-s0"}
        others = [one for name, one in found.items() if one.init.weights.kind == other]
        assert began != {(other, other)} and {one.init.embed.kind for one in others} == {other}
        assert {one.residual.kind for one in others} == {"frozen_token", "token_factor"} and len(others) == 2
        assert {one.name for one in others} == {"dst-kron"}


def test_an_eighth_is_the_recipe_of_the_bundle_with_an_eighth_of_its_steps() -> None:
    """Of every paper, in the order of its arms, but for how often HDPL's are evaluated."""
    for paper in ORDER:
        long = {cell.name: cell.argv for cell in cells(paper, "zoo", 1)}
        short = {cell.name: cell.argv for cell in cells(paper, "eighth", 1)}
        assert long.keys() <= short.keys() and list(long) == [name for name in short if name in long]
        for name in long:
            pairs = zip(long[name], short[name], strict=True)
            changes = {long[name][i - 1] for i, (a, b) in enumerate(pairs) if a != b}
            assert changes == {"--phases", "--eval-every"} if paper == "hdpl" else {"--phases"}
    steps = [
        [part.split(":")[0] for part in argv[argv.index("--phases") + 1].split(",")]
        for argv in (long[name], short[name])
    ]
    assert [int(a) / int(b) for a, b in zip(*steps, strict=True)] == [8, 8, 8]


def test_options_given_replace_those_of_the_recipe() -> None:
    for cell in cells("pls", "zoo", 1, ("device=cuda", "lr=3e-3")):
        assert cell.argv.count("--lr") == 1 and cell.argv[cell.argv.index("--lr") + 1] == "0.003"
        assert cell.argv[cell.argv.index("--device") + 1] == "cuda"


def test_trained_once_measured_once_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of all papers trains; a paper's own finds the runs in the folder and measures them.

    llama is trained in a process of its own, as all are outside this test; the others in this one.
    """

    def train_here(cell: Cell, out: Path, threads: int) -> dict[str, float]:
        if cell.argv[0] == "llama":
            return in_a_process(cell, out, threads)
        train([*cell.argv, "--out", str(out / cell.name)])
        return {"step": 6, "loss": 0.0}

    monkeypatch.setattr("streamscope.models.grid.train", train_here)
    shared = ["--seeds", "1", "--train", "steps=6", "--train", "eval_every=6"]
    train_all(["tiny", "--papers", "hdpl", "--out", str(tmp_path), *shared])
    assert capsys.readouterr().out.count("│ done") == 5, "two architectures, and o, down and both hybrid as well"
    train_all(["tiny", "--papers", "hdpl", "pls", "--out", str(tmp_path), *shared, "--status"])
    said = capsys.readouterr().out  # its title is a path, and a parallel test's has popen in it
    assert said.count("│ done") == 5 and said.count("│ open") == 2
    (tmp_path / ".ledger").rename(tmp_path / "elsewhere")
    train_all(["tiny", "--papers", "hdpl", "--out", str(tmp_path), *shared, "--status"])
    assert capsys.readouterr().out.count("│ done") == 5, "trained by another command"
    shutil.rmtree(tmp_path / ".ledger", ignore_errors=True)
    (tmp_path / "elsewhere").rename(tmp_path / ".ledger")

    train_all(["tiny", "--papers", "hdpl", "--out", str(tmp_path), *shared, "--only", "hdpl-s0", "--status"])
    assert capsys.readouterr().out.count("│ done") == 1
    with pytest.raises(InputError, match="unknown run 'hdpl-s7'"):
        train_all(["tiny", "--papers", "hdpl", "--out", str(tmp_path), *shared, "--only", "hdpl-s7"])

    def never(what: str) -> Callable[..., None]:
        def stub(*args: object) -> None:
            raise AssertionError(f"{what} again")

        return stub

    monkeypatch.setattr("streamscope.models.grid.train", never("trained"))
    argv = ["--scale", "tiny", "--folder", str(tmp_path), *shared]
    hdpl.main([*argv, "--figure", "2", "--format", "html"])
    page = tmp_path / "page-hdpl"
    assert {"README.md", "losses.parquet", "measured.json", "hdpl-figure-2.html"} <= {p.name for p in page.iterdir()}
    arms = {"llama", "hdpl", "hdpl+o=hdpl", "hdpl+down=hdpl", "hdpl+o=hdpl+down=hdpl"}
    assert set(pd.read_parquet(page / "curves.parquet")["preset"]) == arms
    assert "here: one seed each" in (page / "hdpl-figure-2.html").read_text(), "of the runs, not of the bundle"
    short_page(page)

    monkeypatch.setattr("streamscope.papers.hdpl.report.losses", never("measured"))
    hdpl.main(argv)
    metrics = tmp_path / "hdpl-s0" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + metrics.read_text().splitlines()[-1] + "\n")
    with pytest.raises(AssertionError, match="measured again"):
        hdpl.main(argv)
    with pytest.raises(InputError, match="was started with other options"):
        hdpl.main([*argv, "--train", "lr=1e-2"])
    shutil.rmtree(tmp_path / "hdpl-llama-s0")
    with pytest.raises(AssertionError, match="trained again"):  # the cell is open again
        hdpl.main(argv)


def test_tables_are_of_every_file_of_a_run_and_of_its_data(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data.txt"
    run.mkdir()
    files = [run / name for name in ("config.json", "manifest.json", "tokenizer.json", "model.safetensors")]
    files += [run / "metrics.jsonl", data]
    for path in files:
        path.write_text("{}")
    options = lfa.Options(runs=(str(run),), data=str(data))
    keys = {key(options), key(options)}
    for path in files:
        path.write_text("{ }")
        keys.add(key(options))
    assert len(keys) == 1 + len(files)


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for argv, line in (
        (["--scale", "tiny", "runs/a"], "--scale tiny trains the runs itself"),
        (["--scale", "tiny", "--tables", str(tmp_path)], "--scale tiny trains the runs itself"),
        (["--scale", "tiny", "--train", "colour=red"], "unknown option of a grid 'colour'"),
        (["--scale", "tiny", "--train", "lr"], "give KEY=VALUE"),
        (["--scale", "tiny", "--out", "/proc/page"], "/proc/page"),
        (["--scale", "tiny", "--seeds", "1", "--train", "data=nowhere.txt"], "nowhere.txt"),
    ):
        with pytest.raises(InputError, match=line):
            pls.main([*argv, "--folder", str(tmp_path / "runs")])  # whose arms are two processes


@pytest.mark.slow
@pytest.mark.parametrize("paper", COMMANDS)
def test_every_paper_at_its_smallest(paper: str, tmp_path: Path) -> None:
    COMMANDS[paper](
        ["--scale", "tiny", "--seeds", "2", "--folder", str(tmp_path), "--figure", "all", "--format", "html"]
    )
    page = tmp_path / f"page-{paper}"
    assert (page / "README.md").is_file() and (page / "measured.json").is_file()
    assert list(page.glob(f"{paper}-figure-*.html"))


def test_the_status_names_the_measurements_that_are_there(capsys: pytest.CaptureFixture) -> None:
    train_all(["long", "--papers", "krom", "--only", "krom-gpt2-s0", "krom-kromhc-hc-s0", "--status"])
    gpt2, other = (line for line in capsys.readouterr().out.splitlines() if "krom-" in line)
    assert "measured in results/krom_long" in gpt2 and "measured" not in other
