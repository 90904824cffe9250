"""The claims ledger: what the papers say stands in them, and what was measured is read from the results alone."""

import csv
import fnmatch
import importlib
import json
import math
import re
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.__main__ import main as streamscope
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.instruments.registry import discover
from streamscope.instruments.table import read_about, write_table
from streamscope.models.grid import begin, cells_of, read_grid
from streamscope.papers.claims import HERE, RESULTS, main
from streamscope.papers.claims.judged import Tables, _near, judged, verdict
from streamscope.papers.claims.ledger import COLUMNS, PAPERS, keys, read
from streamscope.papers.claims.page import counts
from streamscope.papers.claims.words import MEANINGS, Word
from streamscope.papers.comparison.printed import SMALLEST, Bound, Order
from streamscope.papers.comparison.runs import trained_runs
from streamscope.papers.dst import claims as dst
from streamscope.papers.krom import claims as krom
from streamscope.papers.lfa import claims as lfa
from streamscope.papers.modes import report as modes
from streamscope.papers.pls import claims as pls
from streamscope.papers.scales.training import ORDER, all_cells

NAN = float("nan")
ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT.parent / "shared" / "papers"
FILES = {"dst": "000", "lfa": "001", "hdpl": "002", "pls": "003", "krom": "004"}
CLAIMS = read(HERE)
UNJUDGED: tuple[Word, ...] = ("model too weak to test", "not measured yet")


@pytest.fixture(scope="module")
def shipped() -> pd.DataFrame:
    return judged(HERE, RESULTS)


# ---- the shipped ledgers -----------------------------------------------------------------------


def test_every_paper_has_its_claims(shipped: pd.DataFrame) -> None:
    assert list(dict.fromkeys(shipped["paper"])) == list(PAPERS)
    assert len(shipped) >= 200 and shipped["id"].is_unique
    assert set(shipped["verdict"]) <= set(MEANINGS) == set(get_args(Word))
    assert counts(shipped).set_index("verdict").loc["claims", "all"] == len(shipped)


@pytest.mark.skipif(not TEXTS.is_dir(), reason="no texts of the papers beside the clone")
@pytest.mark.parametrize("paper", PAPERS)
def test_every_quotation_stands_in_its_paper(paper: str) -> None:
    (path,) = TEXTS.glob(f"{FILES[paper]}_*.txt")
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for claim in (one for one in CLAIMS if one.paper == paper):
        assert re.sub(r"\s+", " ", claim.row["quote"]) in text, claim.where
        for part in re.findall(r"\d+\.\d+", claim.row["printed"]):
            assert part in text or part.lstrip("0") in text, f"{claim.where}: {part} is not printed"


def test_every_result_selects_one_row_and_what_is_measured_has_one(shipped: pd.DataFrame) -> None:
    tables = Tables(RESULTS)
    found = [tables.row(one, c.where) for c in CLAIMS if c.row["result"] for one in keys(c.row["result"], c.where)]
    assert len(found) > 100
    has = shipped["result"] != ""
    assert not has[shipped["measured"] != ""].eq(False).any()
    assert shipped.loc[~has, "value"].isna().all() and shipped.loc[~has, "commit"].eq("").all()
    written = ("not a test (true by construction)", "paper inconsistent", "not testable here", "not measured yet")
    assert set(shipped.loc[~has, "verdict"]) <= set(written)
    assert shipped.loc[shipped["verdict"].isin(written[:3]), "finding"].ne("").all()


def test_no_printed_loss_is_another_value(shipped: pd.DataFrame) -> None:
    losses = shipped[shipped["unit"].eq("nats/token") & shipped["kind"].eq("number") & shipped["measured"].ne("")]
    losses = losses[~losses["result"].str.endswith("loss_sd")]
    assert len(losses) > 50 and set(losses["verdict"]) == {"not testable here"}


def test_an_order_of_three_is_no_order_of_two(shipped: pd.DataFrame) -> None:
    """KromCanon < Canon < Vanilla: no link is significant, so the order is open, and the first stands for it."""
    found = shipped.set_index("id").loc["krom-order-all-seeds"]
    order = pd.read_parquet(RESULTS / "krom_long" / "order.parquet").set_index("claim")
    assert order.loc["canon < gpt2", "direction"].startswith("not resolved")
    assert found["verdict"] == "inconclusive" and found["finding"].startswith(
        "kromcanon < canon: not resolved on both texts"
    )
    assert found["value"] == order.loc["kromcanon < canon", "difference"]
    for claim in CLAIMS:
        if claim.row["kind"] == "direction" and re.search(r"\w+ < \w+ < \w+", claim.row["quote"]):
            assert len(keys(claim.row["result"], claim.where)) == claim.row["quote"].count("<"), claim.where


def test_neighbouring_biases_are_judged_by_one_rule(shipped: pd.DataFrame) -> None:
    """What softmax gives at the start is σ of the bias, at −8 as at 0."""
    said = shipped.set_index("id")["verdict"]
    for what in ("swap", "gradient", "loss"):
        assert said[[f"krom-sweep-{what}-b{bias}" for bias in (8, 2, 1, 0)]].nunique() == 1, what
    by_definition = [f"krom-sweep-{what}-b{bias}" for what in ("swap", "gradient") for bias in (8, 2, 1, 0)]
    by_definition += ["krom-static-swap-8", "krom-static-swap-2", "krom-p-at-8", "krom-p-at-2", "krom-ratio-313"]
    assert set(said[by_definition]) == {"not a test (true by construction)"}


def scales_of(text: str) -> set[str]:
    """Where the runs of a command are: --scale eighth and runs/eighth/… both say eighth, --out says nothing."""
    return set(re.findall(r"(?:--scale |runs/)([a-z]+)", re.sub(r"--out \S+", "", text)))


def test_a_row_names_the_scale_of_the_table_that_it_reads() -> None:
    tables, seen = Tables(RESULTS), 0
    for claim in (one for one in CLAIMS if one.row["result"]):
        typed = [claim.row["arguments"], *re.findall(r"`(python -m [^`]+)`", claim.row["why"])]
        named = set[str]().union(*map(scales_of, typed))
        files = [found.file for found in keys(claim.row["result"], claim.where)]
        made = set[str]().union(*(scales_of(tables.made(file)["command"]) for file in files))
        if named and made:
            seen += 1
            assert named == made, f"{claim.where}: {typed} is not what {files} were made of"
    assert seen > 250


PRESETS_NAMED = re.compile(
    r"(?<![\w-])(kromcanon|kromhc|canon|gpt2|std-t|d-cas|lfa|cfm|dst-[a-z-]+|pls|c2|hdpl|llama)(?![\w-])"
)


def test_a_row_is_of_the_models_that_it_reads() -> None:
    """The presets of the key, where it names any, are among those of the row."""
    seen = 0
    for claim in (one for one in CLAIMS if one.row["result"]):
        named = set(PRESETS_NAMED.findall(claim.row["configuration"]))
        for found in keys(claim.row["result"], claim.where):
            read_of = {name for column, text in found.pairs if column in ("claim", "preset", "run")
                       for name in PRESETS_NAMED.findall(text)}  # fmt: skip
            if named and read_of:
                seen += 1
                assert named & read_of, f"{claim.where}: of {named}, and reads {read_of}"
    assert seen > 200


# ---- units -------------------------------------------------------------------------------------

GENERAL = ("the unit of", "unit of", "units of", "of the ", "by kind", "sentence", "share of modules, or")
"""How the unit of a column begins where each row has its own."""
SAME_UNIT = {
    "10⁶ parameters": "M parameters", "2²⁰ bytes in fp32": "MiB in fp32", "nats per token": "nats/token",
    "share of the control's parameters": "share of parameters", 
    "probability, mean over factors that can act": "probability", "modules of 16, as the blog's models have": "modules",
    "logit, scale of the dynamic term, one of a module": "α_res",
}  # fmt: skip
"""Unit of a column -> the ledger's word for it."""


def unit_of_table(file: str, column: str, row: dict[str, Any]) -> str:
    """The unit of a cell, that of its row or else of its column; "" where the table does not say it."""
    unit = str(row.get("unit") or read_about(RESULTS / file)["units"].get(column) or "")
    unit = re.sub(r", (mean )?over seeds$| of real labels, mean over seeds$", "", unit)
    return "" if unit.startswith(GENERAL) else SAME_UNIT.get(unit, unit)


def test_the_unit_of_a_claim_is_that_of_the_table_which_judges_it() -> None:
    tables, wrong, seen = Tables(RESULTS), [], 0
    for claim in (one for one in CLAIMS if one.row["result"] and one.row["unit"]):
        for found in keys(claim.row["result"], claim.where):
            row = tables.row(found, claim.where)
            if claim.row["unit"] == "p" and pd.isna(row[found.value]):
                continue  # of heads that a model does not have: the cell measures nothing
            if unit := unit_of_table(found.file, found.value, row):
                seen += 1
                if unit != SAME_UNIT.get(claim.row["unit"], claim.row["unit"]):
                    wrong.append(f"{claim.where}: {claim.row['id']} in {claim.row['unit']}, {found.file} in {unit}")
    assert seen > 250 and not wrong, "\n".join(wrong)


def test_claims_of_one_measurement_have_one_unit(shipped: pd.DataFrame) -> None:
    """A share of tokens is no number of layers in the next row; this holds also where a table does not say its unit."""
    mine = shipped[shipped["measurement"].ne("") & shipped["unit"].ne("seeds")]
    units = mine.groupby("measurement")["unit"].unique()
    assert mine["measurement"].duplicated().sum() > 50
    assert units[units.map(len) > 1].to_dict() == {}


def test_claims_that_read_one_number_share_a_measurement(shipped: pd.DataFrame) -> None:
    of = shipped.set_index("id")["measurement"]
    early = ["pls-t1-early-order", "pls-s33-independent-progress", "pls-depth-reads-supervision"]
    assert of[early].nunique() == 1 and of["pls-t1-early-order"].startswith("pls_long/claims.parquet; depth.early;")
    assert of[shipped.set_index("id")["measured"].eq("")].eq("").all()


LENGTHS = {
    "lfa": ("lfa_long", "lfa_tinystories", "lfa_eighth"),
    "pls": ("pls_long", "pls_tinystories", "pls_eighth"),
    "hdpl": ("hdpl_zoo", "hdpl_eighth"),
    "krom": ("krom_long", "krom_eighth"),
}
"""Trainings of a paper's models, the longest first."""
OF_LOSSES = ("comparison.parquet", "order.parquet")
"""Tables of KROM that say nothing of the bias that mixing starts with."""


def of_losses(key: Any) -> bool:
    """Whether a row is of losses of architectures, or of the directions of one arm: not of what one bias gives."""
    of_one = key.file.endswith("alike-claims.parquet") and any("above" in value for _, value in key.pairs)
    return key.file.endswith(OF_LOSSES) or ("quantity", "gain") in key.pairs or of_one


@pytest.mark.parametrize("paper", LENGTHS)
def test_the_longest_training_judges_that_passes_the_gate_of_a_claim(paper: str) -> None:
    """The rule of `papers.claims`; each training has three seeds of each model."""
    folders, tables, seen, wrong = LENGTHS[paper], Tables(RESULTS), Counter[str](), []
    runs = {folder: trained_runs(RESULTS / folder) for folder in folders}
    tokens = [max(run.tokens_seen for run in runs[folder]) for folder in folders]
    assert tokens == sorted(tokens, reverse=True)
    assert all(n >= 3 for one in runs.values() for n in Counter(run.preset for run in one).values())
    for claim in (one for one in CLAIMS if one.paper == paper and one.row["result"]):
        for found in keys(claim.row["result"], claim.where):
            folder, _, name = found.file.partition("/")
            if folder not in folders or (paper == "krom" and not of_losses(found)):
                continue
            words: dict[str, Word] = {}
            for one in folders:
                other = found._replace(file=f"{one}/{name}")
                with suppress(InputError):  # that training has no such run, or none of another part of the claim
                    for part in (key for key in keys(claim.row["result"], claim.where) if key.file.startswith(folder)):
                        tables.row(part._replace(file=part.file.replace(folder, one)), claim.where)
                    words[one] = verdict(claim, other, tables.row(other, claim.where), tables)[0]
            passed = [one for one in folders if words.get(one) not in (None, *UNJUDGED)]
            seen[folder] += 1
            if folder != (passed or folders)[0]:
                wrong.append(f"{claim.where}: {claim.row['id']}: {folder}, {words}")
    assert seen[folders[0]] > {"hdpl": 20, "krom": 5}.get(paper, 50) and not wrong, "\n".join(wrong)


def test_what_dst_says_of_arms_that_were_trained_for_longer_is_judged_there() -> None:
    """Where the longer training has three seeds of the arms, begun in as many ways and measured at as many lengths."""
    tables, wrong, seen = Tables(RESULTS), [], 0
    for claim in (one for one in CLAIMS if one.paper == "dst" and one.row["result"]):
        for key in keys(claim.row["result"], claim.where):
            folder, _, name = key.file.partition("/")
            if folder not in ("dst_eighth", "dst_long"):
                continue
            seen += folder == "dst_long"
            try:
                row = tables.row(key._replace(file=f"dst_long/{name}"), claim.where)
            except InputError:  # no such arm, or no such table
                continue
            word = str(row.get("direction", ""))
            open_there = word.startswith(("confounded", "undefined")) and "not one verdict over" not in word
            if folder == "dst_eighth" and not open_there and int(row.get("seeds") or row.get("n")) >= 3:
                wrong.append(claim.row["id"])
    assert seen > 10 and not wrong, wrong


def test_what_follows_from_the_initial_bias_is_judged_after_as_many_steps_as_in_the_blog() -> None:
    """Its 2,000 steps; by decay alone a logit has a third of its bias left then, and nothing after 13,350 steps."""
    claims = (one for one in CLAIMS if one.paper == "krom" and one.row["result"])
    files = [key for one in claims for key in keys(one.row["result"], one.where)]
    of_mixing = [key.file for key in files if key.file.startswith(LENGTHS["krom"]) and not of_losses(key)]
    folders = {file.partition("/")[0] for file in of_mixing}
    assert len(of_mixing) > 20 and folders == {"krom_eighth"}
    steps = {run.manifest["steps"] for run in trained_runs(RESULTS / "krom_eighth")}
    assert min(steps) >= 2000 and max(steps) <= 3000
    long = pd.read_parquet(RESULTS / "krom_long" / "mixing.parquet").query("storage == 'fp32'")
    assert len(long) and (long["swap_without_gradient"] > 0.49).all(), "nothing is left of −8, nor of −2"


# ---- whether a number says anything ------------------------------------------------------------

PLAIN = (
    "loss", "parameters", "stream", "amplified", "degradation", "depth", "hdbscan", "kmeans", "pca", "without", "cost",
    "specialization", "entropy", "pds",
)  # fmt: skip
"""First words of quantities that speak of all tokens or of attention by position, and need no task."""
WITHOUT_QUANTITY = {
    "hdpl_textbooks/comparison.parquet": "loss", "krom_textbooks/comparison.parquet": "loss",
    "krom_textbooks/arms.parquet": "weights", "krom_textbooks/alike.parquet": "how alike streams are",
    "bundled_claims/routing.parquet": "weights", "krom_bundled/factors.parquet": "weights",
    "krom_bundled/mixing.parquet": "loss", "hdpl_zoo/curve-points.parquet": "loss",
    "krom_eighth/comparison.parquet": "loss", "krom_long/comparison.parquet": "loss",
    "krom_eighth/alike.parquet": "how alike streams are", "krom_finetuning/arms.parquet": "how alike streams are",
    "krom_eighth/sweep.parquet": "loss and how alike streams are", "krom_eighth/signs.parquet": "weights",
}  # fmt: skip
"""Tables of trained models whose numbers are of no task -> of what they are."""
GATED = ("coreference", "coreference-pairs", "pds", "suppress-cfm", "runs-lfa")
"""Tables of one bundled model each, about where heads look for nouns."""


def cells_of_numbers() -> list[tuple[Any, Any, dict[str, Any]]]:
    """(claim, key, row) of every number that is found in a table which does not judge."""
    tables, found = Tables(RESULTS), []
    for claim in (one for one in CLAIMS if one.row["result"] and one.row["kind"] == "number"):
        where, *_ = keys(claim.row["result"], claim.where)
        row = tables.row(where, claim.where)
        if not {"direction", "holds", "verdict"} & set(row):
            found.append((claim, where, row))
    return found


def test_no_number_of_a_task_is_a_plain_value_of_models_that_cannot_do_it(shipped: pd.DataFrame) -> None:
    said = shipped.set_index("id")[["verdict", "finding"]]
    gate = pd.read_parquet(RESULTS / "specimens" / "phenomena.parquet")
    copies = set(gate.query("phenomenon == 'copying' and verdict == 'present'")["run"])
    of_tasks = 0
    for claim, where, row in cells_of_numbers():
        word, text = said.loc[claim.row["id"]]
        folder, name = where.file.removesuffix(".parquet").split("/")
        value = row[where.value]
        if folder in ("parameter_counts", "krom_arithmetic", "krom_contraction") or where.file in WITHOUT_QUANTITY:
            continue
        if folder in ("bundled", "bundled_claims") and value == value:
            assert name in GATED, f"{claim.where}: say whether {where.file} is of a task"
            run = row.get("run", f"stories/{row['preset']}" if "preset" in row else f"stories/{name.split('-')[-1]}")
            assert run in copies or name == "pds" or word == "model too weak to test", claim.where
            of_tasks += run not in copies
        elif value == value and row["quantity"].split(".")[0] not in PLAIN:
            assert "cannot" in row, f"{claim.where}: {where.file} does not say whether its models can do the task"
            assert word == ("model too weak to test" if row["cannot"] else word) and text.startswith(row["cannot"])
            of_tasks += row["cannot"] != ""
    assert of_tasks > 10


def test_one_run_is_no_verdict(shipped: pd.DataFrame) -> None:
    said = shipped.set_index("id")["verdict"]
    counted, without = 0, 0
    for claim, where, row in cells_of_numbers():
        low = row.get(f"{where.value}_low", row.get("ci_low", NAN) if where.value in ("mean", "value") else NAN)
        if low == low:
            continue
        about = read_about(RESULTS / where.file)["about"]
        if about.get("run") == "none":
            counted += 1
            continue
        without += 1
        same = int(row.get("n", 0)) >= 2 and "seeds without spread" in row.get("undefined", "")
        plain = said[claim.row["id"]] in ("reproduced", "contradicted", "different value", "no effect")
        assert not plain or same, f"{claim.where}: a verdict on one run, or on no interval"
    assert counted >= 5 and without >= 10


def test_a_verdict_over_seeds_has_two(shipped: pd.DataFrame) -> None:
    judged_here = shipped[shipped["verdict"].isin(["reproduced", "contradicted", "no effect"]) & shipped["n"].ne("")]
    assert len(judged_here) > 15 and (judged_here["n"].str.split("/| and ").str[-1].astype(int) >= 2).all()


def power_of_fisher(n: int, a: float, b: float) -> float:
    """How often Fisher's exact test tells shares a and b from n cases each at .05."""
    both = [
        (i, j) for i in range(n + 1) for j in range(n + 1) if stats.fisher_exact([[i, n - i], [j, n - j]])[1] <= 0.05
    ]
    return float(sum(stats.binom.pmf(i, n, a) * stats.binom.pmf(j, n, b) for i, j in both))


def test_sizes_that_would_be_needed_follow_from_the_printed_spread() -> None:
    """80 % power at .05, two-sided, by the normal; an interval of ± the smallest effect of interest in nats."""
    rows = {claim.row["id"]: claim.row for claim in CLAIMS}

    def printed(name: str) -> np.ndarray:
        return np.array([float(rows[f"krom-sft-{name}-{i}"]["printed"]) for i in (1, 2, 3)])

    first, delta = printed("first"), printed("delta")
    interval = (1.96 * first.std(ddof=1) / SMALLEST["nats/token"]) ** 2
    seeds = ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * delta.std(ddof=1) / delta.mean()) ** 2
    for i in (1, 2, 3):
        assert f"vary by {first.std(ddof=1):.3f}".replace("0.", ".") in rows[f"krom-sft-first-{i}"]["why"]
        assert f"needs about {interval:.0f} seeds" in rows[f"krom-sft-first-{i}"]["why"]
        spread = f"have mean {delta.mean():.3f} and vary by {delta.std(ddof=1):.3f}".replace("0.", ".")
        assert f"{spread}: about {10 * math.ceil(seeds / 10)} seeds" in rows[f"krom-sft-delta-{i}"]["why"]
    least = next(n for n in range(2, 30) if power_of_fisher(n, 1 / 3, 1.0) >= 0.8)
    assert f"needs {least} seeds of each" in rows["krom-sft-one-of-three"]["why"]
    assert f"p 1/{math.comb(3, 1)} by chance" in rows["krom-sft-threshold"]["why"]
    assert f"p of 1/{math.comb(6, 3)};" in rows["krom-sft-threshold"]["why"] and 1 / math.comb(5, 2) > 0.05
    assert f"p 1/{math.comb(4, 2)} by chance" in rows["krom-sft-first-seed"]["why"]
    assert rows["krom-sft-first-seed"]["why"].endswith(f"1/{math.comb(8, 4)}")
    told = [row for row in rows.values() if row["verdict"] == "not testable here"]
    sized = [
        row
        for row in told
        if re.search(r"about [\d,]+ (cases|seeds|28)|80 % power|some 1,250 cases|p (of )?1/", row["why"])
    ]
    assert len(sized) >= 15 and len(told) > 70


# ---- commands ----------------------------------------------------------------------------------


class Parsed(Exception):
    """Raised in place of the work, once the arguments were read."""


def commands() -> dict[tuple[str, str], str]:
    """(module, arguments) -> where, of every command of the ledger: its own, those that its remark names, and of a
    measured claim the one that made its table."""
    found: dict[tuple[str, str], str] = {}
    tables = Tables(RESULTS)
    for claim in CLAIMS:
        typed = [f"python -m {claim.row['instrument']} {claim.row['arguments']}"] if claim.row["instrument"] else []
        typed += re.findall(r"`(python -m [^`]+)`", claim.row["why"])
        if claim.row["result"]:
            typed += [tables.made(one.file)["command"] for one in keys(claim.row["result"], claim.where)]
        for text in typed:
            module, _, arguments = text.removeprefix("python -m ").partition(" ")
            found.setdefault((module, arguments.strip()), claim.where)
    return found


def test_every_table_that_a_command_reads_is_made_by_a_command() -> None:
    """By the --out of a command here: its remark names those that come first."""
    used = commands()
    made = {text for _, arguments in used for text in re.findall(r"--out (\S+)", arguments)}
    reads = 0
    for (module, arguments), where in used.items():
        for name in re.findall(r"\S+\.parquet", re.sub(r"--out \S+", "", arguments)):
            reads += 1
            assert re.sub("-(raw|labels).parquet", ".parquet", name) in made, (
                f"{where}: {module}: nothing here makes {name}"
            )
        for name in re.findall(r"--data (\S+)", arguments):
            assert name.startswith(("data/", "stories")), f"{where}: {module}: {name} is no text of the project"
    assert reads >= 2


@pytest.mark.parametrize(
    "file",
    ["parameter_counts/counts.parquet", pytest.param("krom_arithmetic/arithmetic.parquet", marks=pytest.mark.slow)],
)
def test_the_command_of_a_measured_claim_makes_its_table_again(file: str, tmp_path: Path) -> None:
    """Of the arithmetic, half a minute, `test_update_arithmetic` compares two problems always."""
    module, *arguments = shlex.split(Tables(RESULTS).made(file)["command"].removeprefix("python -m "))
    assert arguments[-2] == "--out" and arguments[-1].endswith(file)
    importlib.import_module(f"streamscope.{module}").main([*arguments[:-1], str(tmp_path / "again.parquet")])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "again.parquet"), pd.read_parquet(RESULTS / file))


def test_a_measured_claim_has_the_command_of_its_table(shipped: pd.DataFrame) -> None:
    measured = shipped[shipped["measured"] != ""]
    for row in measured.itertuples():
        argv = read_about(RESULTS / row.table)["about"]["argv"]
        words = argv if isinstance(argv, list) else shlex.split(argv)
        assert [Path(a).name for a in shlex.split(row.command)] == [
            Path(a.removeprefix("streamscope.")).name for a in words
        ], row.id
    assert "/tmp" not in " ".join(measured["command"]) and len(set(measured["command"])) > 15
    trained = measured[measured["arguments"].str.contains("--scale")]
    assert len(trained) > 50 and not trained["command"].str.contains("--scale").any()
    others = shipped[shipped["measured"] == ""]
    assert (
        others["command"]
        == ("python -m " + others["instrument"] + " " + others["arguments"])
        .str.strip()
        .where(others["instrument"] != "", "")
    ).all()


def test_the_commands_that_measure_take_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(options: Any, argv: Any, doc: Any) -> None:
        parse(options, argv, doc)
        raise Parsed

    mains = {made.__module__.removeprefix("streamscope."): made for made in discover().values()}
    several = {  # which runs does not matter: the first of several, by one name
        (name, re.sub(r"(?<!--out )(runs/\S+ ?)+", "runs/a ", arguments)): where
        for (name, arguments), where in commands().items()
    }
    assert len(several) > 20
    modules = {name: importlib.import_module(f"streamscope.{name}") for name, _ in several}  # with the parse they have
    for place in ("cli.parse", "papers.scales"):  # the second has the main of the comparisons
        monkeypatch.setattr(f"streamscope.{place}.parse", stop)
    for (name, arguments), where in several.items():
        module = modules[name]
        monkeypatch.setattr(module, "parse", stop, raising=False)
        run = module.main if hasattr(module, "main") else importlib.import_module(f"{module.__name__}.__main__").main
        assert hasattr(module, "Options") or name in mains, f"{where}: {name} is no command"
        try:
            with pytest.raises(Parsed):
                run(shlex.split(arguments))
        except InputError as error:
            pytest.fail(f"{where}: python -m {name} {arguments}: {error}")


def test_the_runs_that_commands_read_are_trained_by_a_grid(tmp_path: Path) -> None:
    """By name: of papers and specimens in runs/zoo, of papers in runs/eighth, of KROM's biases in runs/biases, of what
    HDPL overfits in runs/overfit; or by a command of the remark; or it is among the runs behind a table."""
    zoo = [cells_of(read_grid(RESULTS / "specimens" / "zoo.toml")), all_cells(ORDER, "zoo")]
    trained = [f"runs/zoo/{cell.name}" for some in zoo for cell in begin(some, tmp_path)]
    trained += [f"runs/biases/{cell.name}" for cell in cells_of(read_grid(RESULTS / "specimens" / "biases.toml"))]
    trained += [f"runs/eighth/{cell.name}" for cell in all_cells(ORDER, "eighth")]
    trained += [f"runs/overfit/{cell.name}" for cell in cells_of(read_grid(ROOT / "papers" / "hdpl" / "overfit.toml"))]
    for path in RESULTS.glob("*/trained.json"):
        trained += [run["folder"] for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    read_runs = 0
    for claim in CLAIMS:
        if claim.row["instrument"] == "models.train":
            continue
        for run in re.findall(r"runs/\S+", claim.row["arguments"]):
            first = re.findall(r"`python -m models.train [^`]*--out (\S+)`", claim.row["why"])
            assert fnmatch.filter(trained + first, run.partition("@")[0]), f"{claim.where}: nothing trains {run}"
            read_runs += 1
    assert read_runs > 50


def printed_claims() -> list[tuple[str, str, str, str]]:
    """(paper, printed text or "", quantity, whose) of every claim that a comparison judges."""
    found = [("krom", "", "loss", f"{one.less} < {one.more}") for one in krom.ORDER]
    for paper, claims in (
        ("lfa", (*lfa.ORDERS, *lfa.BOUNDS)),
        ("pls", (*pls.CLAIMS, *modes.CLAIMS)),
        ("dst", (*dst.orders(), *dst.bounds(["dst-kron+frozen_token", "dst-full-ind"], ["dst-kron"]))),
    ):
        for claim in claims:
            if claim in dst.bounds(["dst-full-ind"], []) and claim.quantity != "cost.ffn":
                continue  # the same limits once more, of another model
            if isinstance(claim, Order):
                found.append((paper, "", claim.quantity, f"{claim.more} > {claim.less}"))
            elif isinstance(claim, Bound):
                found.append((paper, "", claim.quantity, f"{claim.preset} {claim.side} {claim.text}"))
            else:
                found.append((paper, claim.text, claim.quantity, "|pls| > |c2|"))
    return found


def test_what_the_papers_print_by_our_modules_is_in_the_ledger() -> None:
    for paper, text, quantity, whose in printed_claims():
        mine = [
            row
            for of, row, _ in CLAIMS
            if of == paper and (not text or text == row["printed"])
            and ("quantity=" not in row["result"] or f"quantity={quantity};" in row["result"])
            and whose in f"{row['result'].replace('*', '')} {row['configuration'].replace('against', '>')}"
        ]  # fmt: skip
        assert mine, f"{paper}: {quantity} of {whose}, printed {text!r}, has no row"


def as_said(file: str, claim: str, quantity: str) -> tuple[str, str, str]:
    """A judged claim without what another comparison of the paper may have else: its folder, the model that a limit is
    held against, the recipe and preset of KROM's runs, and which of its arms stands for std-t."""
    claim = re.sub(r"^krom.* steps: ", "", claim)  # of α's signs: the same of every arm
    claim = re.sub(r"(kromcanon|kromhc) (-?\d+), (fp32|bf16), \w+, [\d,]+ steps", r"\2", claim)
    claim = re.sub(r"std-t\+[a-z+]+", "std-t", claim)
    return file.split("_")[0], re.sub(r"^.* (above|below) ", r"\1 ", claim), quantity


def test_every_row_that_a_result_table_judges_is_a_claim_of_the_ledger() -> None:
    """Each at one table, the ledger reads it where the models are the best; other tables may judge it too."""
    tables = Tables(RESULTS)
    told: dict[tuple[str, str, str], set[str]] = {}
    for claim in (one for one in CLAIMS if one.row["result"]):
        for found in keys(claim.row["result"], claim.where):
            row = tables.row(found, claim.where)
            said = as_said(found.file, row.get("claim", ""), row.get("quantity", ""))
            told.setdefault(said, set()).add(claim.row["printed"])
    for path in sorted(RESULTS.glob("*/*.parquet")):
        frame, file = pd.read_parquet(path), str(path.relative_to(RESULTS))
        for row in frame.to_dict("records") if "direction" in frame else ():
            printed = told.get(as_said(file, row["claim"], row["quantity"]))
            assert printed is not None, (
                f"{file}: {row['claim']} in {row['quantity']} is judged and has no row in papers/claims"
            )
            if "against" in row["printed"] or "×" in row["printed"]:
                assert any(same_numbers(row["printed"], text) for text in printed), (
                    f"{file}: {row['claim']} in {row['quantity']}"
                )


def same_numbers(text: str, other: str) -> bool:
    """Whether two texts have the same numbers, 2.50 as 2.5 and 20% as .195 to .205, in either order."""
    ours, theirs = (
        sorted(float(x) * (0.01 if unit else 1.0) for x, unit in re.findall(r"(\d*\.?\d+)(%?)", one))
        for one in (text, other)
    )
    half = 0.005 if "%" in text + other else 1e-9
    return len(ours) == len(theirs) and all(abs(x - y) <= half for x, y in zip(ours, theirs, strict=True))


# ---- planted ledgers ---------------------------------------------------------------------------

ROW = dict.fromkeys(COLUMNS, "") | {
    "id": "lfa-a", "place": "Table 1", "quote": "A has more than B.", "kind": "order", "configuration": "a against b",
    "printed": "2 against 1", "unit": "heads", "instrument": "papers.lfa", "arguments": "runs/a",
    "result": "r/claims.parquet; claim=a > b; quantity=q; difference",
}  # fmt: skip
JUDGED = {
    "claim": "a > b", "quantity": "q", "difference": 1.5, "ci_low": 1.0, "ci_high": 2.0, "seeds": "3",
    "direction": "holds", "alone": "", "size": "printed value inside",
}  # fmt: skip


def planted(folder: Path, table: Any = JUDGED, name: str = "claims", **changes: str) -> tuple[Path, Path]:
    """A ledger of one row and a results folder with one table (a row or a list of rows), and how it was trained."""
    (folder / "results" / "r").mkdir(parents=True, exist_ok=True)
    rows = table if isinstance(table, list) else [table]
    pd.DataFrame(rows).to_parquet(folder / "results" / "r" / f"{name}.parquet")
    run = {
        "folder": "runs/a",
        "preset": "lfa",
        "seed": 0,
        "manifest": {"scale": "tiny", "steps": 10},
        "config": {"training": {"batch_size": 2}, "model": {"n_ctx": 8}},
    }
    (folder / "results" / "r" / "trained.json").write_text(json.dumps({"runs": [run]}))
    with open(folder / "lfa.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, [(ROW | changes)[name] for name in COLUMNS]])
    return folder, folder / "results"


def one(folder: Path, *given: Any, **changes: Any) -> Any:
    return judged(*planted(folder, *given, **changes)).iloc[0]


def test_a_claim_has_the_number_the_dose_and_the_verdict_of_its_row(tmp_path: Path) -> None:
    found = one(tmp_path)
    assert (found["verdict"], found["measured"], found["value"], found["n"]) == ("reproduced", "1.5", 1.5, "3")
    assert (found["ci_low"], found["ci_high"], found["size"]) == (1.0, 2.0, "printed value inside")
    assert (found["scale"], found["tokens"]) == ("tiny", "160")


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("opposite", "contradicted"),
        ("holds: the same at n=3 seeds", "reproduced"),
        ("negligible: within ±0.01", "no effect"),
        ("not resolved at n=3 seeds, corrected", "inconclusive"),
        ("confounded: a has RoPE, b not", "inconclusive"),
        ("the model cannot do the task: winograd", "model too weak to test"),
        ("no such head: entity heads of a", "model too weak to test"),
        ("undefined: 0 of 36 heads have PDS over 0.075, none to suppress", "model too weak to test"),
        ("undefined: no head hits the target in any pair", "model too weak to test"),
        ("undefined: one seed of a", "inconclusive"),
        ("undefined: by construction: heads do not change the attention of their own layer", "model too weak to test"),
        ("undefined by construction: always 0", "not a test (true by construction)"),
        ("no claim: printed twice", "paper inconsistent"),
        ("withdrawn: the old equation", "not measured yet"),
    ],
)
def test_a_verdict_turns_with_the_row_of_its_table(tmp_path: Path, said: str, word: str) -> None:
    found = one(tmp_path, {**JUDGED, "direction": said})
    assert found["verdict"] == word and word in MEANINGS and found["finding"] == said
    if word == "not measured yet":
        assert found["measured"] == "" and found["value"] != found["value"]


def test_a_number_on_the_other_side_of_a_printed_one_is_another_value(tmp_path: Path) -> None:
    """3 to 6 heads are printed and a table judges "above 3": fewer in small models refute nothing."""
    for kind, word in (("number", "different value"), ("property", "contradicted")):
        assert one(tmp_path, {**JUDGED, "direction": "opposite"}, kind=kind)["verdict"] == word


def test_the_row_of_a_denial_turns_the_verdict_round(tmp_path: Path) -> None:
    for said, word in (
        ("holds", "contradicted"),
        ("opposite", "reproduced"),
        ("not resolved at n=3 seeds", "inconclusive"),
    ):
        found = one(tmp_path, {**JUDGED, "direction": said}, result=f"not {ROW['result']}")
        assert (found["verdict"], found["finding"]) == (word, f"of its denial: {said}")
    for said, word in (("present", "contradicted"), ("absent", "reproduced"), ("undecided", "inconclusive")):
        table = {"claim": "a > b", "quantity": "q", "difference": 0.5, "verdict": said, "unit": "heads"}
        found = one(tmp_path, table, result=f"not {ROW['result']}")
        assert (found["verdict"], found["finding"]) == (word, f"{said}: 0.5 heads")
        assert one(tmp_path, table)["verdict"] == {
            "contradicted": "reproduced",
            "reproduced": "model too weak to test",
        }.get(word, word)
    table = {"claim": "a > b", "quantity": "q", "difference": "as text", "holds": True}
    assert one(tmp_path, table)["verdict"] == "reproduced" and one(tmp_path, table)["measured"] == "as text"
    assert one(tmp_path, {**table, "holds": False})["verdict"] == "contradicted"


NUMBER = {"quantity": "q", "preset": "a", "unit": "heads", "mean": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 3,
          "cannot": ""}  # fmt: skip
SAME = {**NUMBER, "ci_low": NAN, "ci_high": NAN, "undefined": "ci_low, ci_high: seeds without spread"}
OF_NUMBER = {"kind": "number", "result": "r/means.parquet; quantity=q; preset=a; mean"}


@pytest.mark.parametrize(
    ("printed", "row", "word"),
    [
        ("0.55", NUMBER, "reproduced"),
        ("55%", NUMBER, "reproduced"),
        ("0.61", NUMBER, "reproduced"),  # outside, and all of the interval within ±.5 of it
        ("1.2", NUMBER, "different value"),
        ("0.55", {**NUMBER, "unit": "attention"}, "inconclusive"),
        ("0.55", {**NUMBER, "unit": "sparks"}, "inconclusive"),
        ("0.5", {**NUMBER, "ci_high": 1.1}, "inconclusive"),
        ("0.5", {**SAME, "mean": 0.549}, "reproduced"),
        ("0.5", {**SAME, "mean": 0.551}, "different value"),
        ("1.5M", {**SAME, "mean": 1_549_000.0}, "reproduced"),
        ("0.5", {**SAME, "undefined": "ci_low, ci_high: one seed"}, "inconclusive"),
    ],
)
def test_a_bare_number_is_looked_for_in_the_interval(tmp_path: Path, printed: str, row: dict, word: str) -> None:
    assert one(tmp_path, row, "means", **OF_NUMBER, printed=printed)["verdict"] == word


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        ("a above 0.95", (0.989, 0.987, 0.991)),
        ("a below 0.95", (0.911, 0.909, 0.913)),
        ("a: most of them: above 0.95", (0.989, 0.987, 0.991)),
        ("a > b", (0.039, 0.037, 0.041)),
    ],
)
def test_what_is_measured_of_a_limit_is_the_value_and_not_how_far_beyond_it(
    tmp_path: Path, claim: str, shown: tuple[float, ...]
) -> None:
    """r² .989 of a limit of .95 is not .039; of an order it is the difference of two models."""
    row = {**JUDGED, "claim": claim, "difference": 0.039, "ci_low": 0.037, "ci_high": 0.041}
    found = one(tmp_path, row, result=f"r/claims.parquet; claim={claim}; quantity=q; difference")
    assert [found["value"], found["ci_low"], found["ci_high"]] == pytest.approx(shown)
    assert found["measured"] == f"{shown[0]:.4g}"
    beside = {**row, "value": -0.1, "value_low": -0.2, "value_high": 0.1}  # as `papers.claims.single` writes
    found = one(tmp_path, beside, result=f"r/claims.parquet; claim={claim}; quantity=q; difference")
    assert [found["value"], found["ci_low"], found["ci_high"]] == [-0.1, -0.2, 0.1]


CHAIN = "r/claims.parquet; claim=a < b; difference & r/claims.parquet; claim=b < c; difference"


@pytest.mark.parametrize(
    ("first", "second", "word", "decides"),
    [
        ("holds", "holds", "reproduced", ""),
        ("holds", "opposite", "contradicted", "b < c"),
        ("opposite", "holds", "contradicted", "a < b"),
        ("holds", "not resolved at n=3 seeds", "inconclusive", "b < c"),
        ("not resolved at n=3 seeds", "opposite", "contradicted", "b < c"),
        ("negligible: within ±0.01", "holds", "no effect", "a < b"),
        ("negligible: within ±0.01", "not resolved at n=3 seeds", "inconclusive", "b < c"),
        ("the model cannot do the task: copying", "holds", "model too weak to test", "a < b"),
        ("withdrawn: the old equation", "holds", "not measured yet", "a < b"),
    ],
)
def test_a_chain_of_orders_holds_where_every_link_does(
    tmp_path: Path, first: str, second: str, word: str, decides: str
) -> None:
    links = [{**JUDGED, "claim": "a < b", "direction": first},
             {**JUDGED, "claim": "b < c", "direction": second, "difference": 2.5}]  # fmt: skip
    found = one(tmp_path, links, result=CHAIN)
    assert found["verdict"] == word and found["finding"].startswith(f"{decides}: " if decides else "holds")
    if word != "not measured yet":
        assert found["measured"] == ("2.5" if decides == "b < c" else "1.5"), "of the link that decides"


def test_a_part_of_a_claim_is_denied_by_itself(tmp_path: Path) -> None:
    """a < b and not b < c."""
    links = [{**JUDGED, "claim": "a < b"}, {**JUDGED, "claim": "b < c", "direction": "opposite"}]
    first, second = CHAIN.split(" & ")
    assert one(tmp_path, links, result=f"{first} & not {second}")["verdict"] == "reproduced"
    assert one(tmp_path, links, result=f"not {first} & not {second}")["verdict"] == "contradicted"


@pytest.mark.parametrize(
    ("first", "second", "word", "finding"),
    [
        ("holds", "holds", "reproduced", "holds"),
        ("opposite", "opposite", "contradicted", "opposite"),
        ("holds", "opposite", "inconclusive", "here reproduced, there contradicted"),
        ("opposite", "confounded: of one beginning", "inconclusive", "here contradicted, there inconclusive"),
        ("holds", "negligible: within ±0.01", "inconclusive", "here reproduced, there no effect"),
    ],
)
def test_readings_that_do_not_agree_decide_nothing(
    tmp_path: Path, first: str, second: str, word: str, finding: str
) -> None:
    rows = [{**JUDGED, "claim": "a < b", "direction": first, "quantity": "here"},
            {**JUDGED, "claim": "a < b", "direction": second, "quantity": "there", "difference": 2.5}]  # fmt: skip
    readings = " | ".join(f"r/claims.parquet; claim=a < b; quantity={name}; difference" for name in ("here", "there"))
    found = one(tmp_path, rows, result=readings)
    assert (found["verdict"], found["measured"]) == (word, "1.5"), "the first is shown"
    assert found["finding"] == (finding if first == second else f"it depends on the reading: {finding}")


@pytest.mark.parametrize(("low", "high", "word"), [("holds", "holds", "reproduced"),
                                                   ("holds", "opposite", "different value")])  # fmt: skip
def test_a_printed_range_has_two_limits(tmp_path: Path, low: str, high: str, word: str) -> None:
    """Outside of it is another number, and refutes nothing."""
    rows = [{**JUDGED, "claim": "a above 2", "direction": low}, {**JUDGED, "claim": "a below 3", "direction": high}]
    limits = " & ".join(f"r/claims.parquet; claim={row['claim']}; difference" for row in rows)
    assert one(tmp_path, rows, kind="number", printed="2-3", result=limits)["verdict"] == word


@pytest.mark.parametrize(
    ("cannot", "word"),
    [
        ("no such head: entity heads of pls are not above shuffled roles in 3 of 4 runs", "model too weak to test"),
        ("winograd: log-odds +0.171 (-0.013 … +0.354) of pls, not above 0", "model too weak to test"),
        ("withdrawn: these found heads were not held against shuffled roles", "not measured yet"),
        ("", "different value"),
    ],
)
def test_a_number_of_heads_needs_the_heads(tmp_path: Path, cannot: str, word: str) -> None:
    row = {
        **NUMBER,
        "quantity": "effect",
        "unit": "share",
        "mean": 2.05,
        "ci_low": 2.0,
        "ci_high": 2.1,
        "cannot": cannot,
    }
    of = {"kind": "number", "unit": "share", "result": "r/means.parquet; quantity=effect; preset=a; mean"}
    assert one(tmp_path, row, "means", **of, printed="3")["verdict"] == word


def test_a_number_has_one_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="result: a number is compared with one row, and this names 2"):
        one(tmp_path, kind="number", printed="2", result=CHAIN)


LOSS = {**NUMBER, "quantity": "loss", "unit": "nats/token", "mean": 2.05, "ci_low": 2.0, "ci_high": 2.1}
OF_LOSS = {"kind": "number", "unit": "nats/token", "result": "r/means.parquet; quantity=loss; preset=a; mean"}


@pytest.mark.parametrize("printed", ["2.05", "2.5", "2.095"])
def test_a_loss_on_other_text_is_no_value_to_compare(tmp_path: Path, printed: str) -> None:
    """Nats per token are of one text and one tokenizer: neither another value nor, by accident, the same."""
    found = one(tmp_path, LOSS, "means", **OF_LOSS, printed=printed)
    assert found["verdict"] == "not testable here" and found["measured"] == "2.05"
    assert "other text" in found["finding"] and "tokenizer" in found["finding"]
    share = {**LOSS, "quantity": "cost", "unit": "share of the loss"}
    of_share = {**OF_LOSS, "unit": "share of the loss", "result": "r/means.parquet; quantity=cost; preset=a; mean"}
    assert one(tmp_path, share, "means", **of_share, printed="2.5")["verdict"] == "different value"


def test_the_spread_of_a_loss_over_seeds_is_no_loss(tmp_path: Path) -> None:
    row = {"preset": "a", "loss": 2.0, "loss_sd": 0.1, "loss_sd_low": 0.05, "loss_sd_high": 0.2, "cannot": ""}
    result = "r/means.parquet; preset=a; loss_sd"
    found = one(tmp_path, row, "means", kind="number", unit="nats/token", printed="0.3", result=result)
    assert found["verdict"] == "different value"


def test_a_number_of_what_is_counted_or_computed_needs_no_interval(tmp_path: Path) -> None:
    exact = {**SAME, "undefined": ""}
    assert one(tmp_path, exact, "means", **OF_NUMBER, printed="0.5")["finding"] == "of trained models, and no interval"
    (tmp_path / "results" / "r" / "trained.json").unlink()
    assert judged(tmp_path, tmp_path / "results").iloc[0]["verdict"] == "reproduced"
    about = {"run": "none", "argv": ["python", "-m", "papers.claims.count", "--out", "/elsewhere/r/means.parquet"]}
    write_table(pd.DataFrame([exact]), tmp_path / "results" / "r" / "means.parquet", units={}, about=about)
    found = judged(tmp_path, tmp_path / "results").iloc[0]
    assert (found["verdict"], found["command"]) == ("reproduced", "python -m papers.claims.count --out means.parquet")
    write_table(
        pd.DataFrame([exact]),
        tmp_path / "results" / "r" / "means.parquet",
        units={},
        about={**about, "run": ["stories/a"]},
    )
    assert judged(tmp_path, tmp_path / "results").iloc[0]["verdict"] == "inconclusive"


def test_a_bare_number_of_a_task_that_the_model_cannot_do(tmp_path: Path) -> None:
    found = one(tmp_path, {**NUMBER, "cannot": "gender: at chance"}, "means", **OF_NUMBER, printed="0.5")
    assert (found["verdict"], found["finding"]) == ("model too weak to test", "gender: at chance")
    lost = {**NUMBER, "cannot": "gender: at chance", "mean": NAN, "undefined": "mean: none to suppress"}
    assert one(tmp_path, lost, "means", **OF_NUMBER, printed="0.5")["verdict"] == "model too weak to test"


@pytest.mark.parametrize(
    ("printed", "low", "high", "least", "verdict"),
    [
        (1.04, 1.0440, 1.0442, 0.01, "reproduced"),  # without the number, and all of it within ±.01 of it
        (1.04, 1.0360, 1.0442, 0.01, "reproduced"),
        (1.04, 1.0440, 1.0600, 0.01, "different value"),
        (1.04, 1.0200, 1.0600, 0.01, "inconclusive"),
        (1.04, 1.0440, 1.0442, 0.0, "different value"),
        (-0.30, -0.2995, -0.2990, 0.05, "reproduced"),
        (-0.008, -0.0023, 0.0012, 0.01, "different value"),  # within ±.01 of it, but so is 0
        (0.158, 0.0178, 0.0512, 0.2, "different value"),
        (0.158, 0.1500, 0.1700, 0.2, "reproduced"),
    ],
)
def test_a_precise_measurement_near_a_printed_number_reproduces_it(
    printed: float, low: float, high: float, least: float, verdict: str
) -> None:
    assert _near(printed, low, high, least)[0] == verdict


def test_a_number_about_one_model_is_asked_at_the_gate(tmp_path: Path) -> None:
    row = {"run": "stories/a", "head": "L0.H0", "mean": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    changes = {"kind": "number", "printed": "0.5", "result": "r/means.parquet; head=L0.H0; mean"}
    changes["instrument"] = "probes.coreference"
    found = one(tmp_path, row, "means", **changes)
    assert (found["verdict"], found["finding"]) == ("inconclusive", "copying: these models were not gated")
    line = {
        "run": "stories/a",
        "phenomenon": "copying",
        "value": 0.2,
        "value_low": -0.1,
        "value_high": 0.5,
        "limit": 0.0,
    }
    others = [
        {**line, "run": "stories/b", "verdict": "present"},
        {**line, "phenomenon": "gender", "verdict": "present"},
    ]
    gate = tmp_path / "results" / "specimens"
    gate.mkdir()
    for seen, word in (
        ("present", "reproduced"),
        ("undecided", "model too weak to test"),
        ("absent", "model too weak to test"),
    ):
        pd.DataFrame([*others, {**line, "verdict": seen}]).to_parquet(gate / "phenomena.parquet")
        found = judged(tmp_path, tmp_path / "results").iloc[0]
        assert found["verdict"] == word
        assert found["finding"].startswith(
            "all of the interval" if seen == "present" else "copying of stories/a +0.200 (-0.1"
        )
    of_task = {**row, "task": "gender"}
    assert one(tmp_path, of_task, "means", **changes)["finding"].startswith("all of the interval")
    assert (
        one(tmp_path, {**row, "task": "winograd"}, "means", **changes)["finding"]
        == "winograd: these models were not gated"
    )
    changes["instrument"] = "probes.routing"
    assert one(tmp_path, row, "means", **changes)["finding"].startswith("all of the interval")


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        (JUDGED, {"result": "r/claims.parquet; claim=a > c; quantity=q; difference"}, "result: 0 rows of"),
        ([JUDGED, JUDGED], {}, "result: 2 rows of r/claims.parquet have claim=a > b; quantity=q"),
        (JUDGED, {"result": "r/none.parquet; claim=a > b; difference"}, "result: .*none.parquet is not there"),
        (JUDGED, {"result": "r/claims.parquet; claim=a > b; other"}, "result: .* has no column 'other'"),
        (JUDGED, {"result": "r/claims.parquet; difference"}, "result: .* is not FILE.parquet; column=value"),
        (JUDGED, {"result": "", "instrument": ""}, "instrument: a claim that can be measured names what measures it"),
        (JUDGED, {"verdict": "contradicts itself", "why": "x"}, "verdict: what has a result is judged by it"),
        (
            JUDGED,
            {"verdict": "undefined by construction", "result": ""},
            r"not a test \(true by construction\) needs its",
        ),
        (JUDGED, {"verdict": "holds", "result": ""}, "verdict: Input should be"),
        (JUDGED, {"kind": "hunch"}, "kind: Input should be 'number'"),
        (JUDGED, {"id": "dst-a"}, "id: dst-a must begin with lfa-"),
        (JUDGED, {"quote": ""}, "quote: String should have at least 1 character"),
        (JUDGED, {"instrument": "os.remove"}, "instrument: String should match"),
        ({**JUDGED, "direction": "perhaps"}, {}, "no word for its verdict 'perhaps'"),
        ({**JUDGED, "direction": "undefined: rain"}, {}, "no word for its verdict 'undefined: rain'"),
        ({k: v for k, v in JUDGED.items() if k != "direction"}, {}, "has no verdicts, and order needs one"),
        (
            {**{k: v for k, v in JUDGED.items() if k != "direction"}, "cannot": ""},
            {"kind": "number"},
            "printed: '2 against 1' is no",
        ),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_line_with_its_place(tmp_path: Path, table: Any, changes: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        one(tmp_path, table, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'lfa.csv'}:2") and "\n" not in str(caught.value)


def test_bad_files_are_told(tmp_path: Path) -> None:
    folder, results = planted(tmp_path)
    path, text = folder / "lfa.csv", (folder / "lfa.csv").read_text(encoding="utf-8")
    for bad, said in (
        (text + text.splitlines()[1] + "\n", r"lfa.csv:3: id: lfa-a is that of .*lfa.csv:2 too"),
        (text.replace("quote", "words", 1), "lfa.csv:1: the columns are id, place, words"),
        (text + "lfa-b,x\n", "lfa.csv:3: 2 cells for 12 columns"),
        (text + '"lfa', "lfa.csv:3: no CSV"),
    ):
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            judged(folder, results)
    with pytest.raises(InputError, match="holds no ledger: dst.csv, lfa.csv"):
        judged(tmp_path / "results", results)
    path.write_text(text, encoding="utf-8")
    (results / "r" / "trained.json").write_text("{}")
    with pytest.raises(InputError, match=r"trained.json is damaged \(runs: Field required\)"):
        judged(folder, results)
    with pytest.raises(InputError, match="--results .* is not there"):
        judged(folder, tmp_path / "nowhere")


# ---- the command -------------------------------------------------------------------------------


def test_the_command_filters_counts_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, results = planted(tmp_path)
    own = ["--ledger", str(folder), "--results", str(results)]
    for ending in ("csv", "parquet", "html", "md"):
        main([*own, "--out", str(tmp_path / f"out.{ending}")])
    said = capsys.readouterr().out
    assert "lfa-a" in said and "1.5 (1 … 2), n 3" in said and "verdicts" in said
    assert pd.read_csv(tmp_path / "out.csv")["verdict"].tolist() == ["reproduced"]
    assert pd.read_parquet(tmp_path / "out.parquet")["value"].tolist() == [1.5]
    assert read_about(tmp_path / "out.parquet")["units"]["n"].startswith("training seeds")
    markdown = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert "| A has more than B. | a against b | 2 against 1 | 1.5 (1 … 2), n 3 | heads | reproduced | 1 |" in markdown
    assert "1. `python -m papers.lfa runs/a`" in markdown and "scale tiny, 160 tokens seen" in markdown
    assert "A has more than B." in (tmp_path / "out.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="no claim is all of that"):
        main([*own, "--verdict", "contradicted"])
    with pytest.raises(InputError, match="--out out.pdf: the ending of the name"):
        main([*own, "--out", "out.pdf"])


def test_the_filters_keep_what_they_ask_for(tmp_path: Path) -> None:
    out = tmp_path / "some.csv"
    main(["--paper", "lfa", "--verdict", "paper inconsistent", "inconclusive", "--kind", "number", "--out", str(out)])
    kept = pd.read_csv(out)
    assert set(kept["paper"]) == {"lfa"} and set(kept["kind"]) == {"number"}
    assert set(kept["verdict"]) <= {"paper inconsistent", "inconclusive"}
    main(["--search", "BIMODAL", "--out", str(out)])
    assert pd.read_csv(out)["quote"].str.contains("bimodal").any()


def test_commands_are_found_with_their_room(capsys: pytest.CaptureFixture[str]) -> None:
    streamscope(["papers"])
    said = capsys.readouterr().out
    assert "  claims " in said and "  krom.arithmetic " in said and "ablate" not in said
    with pytest.raises(SystemExit):
        streamscope(["papers", "claims", "--help"])
    assert "--verdict" in capsys.readouterr().out
    with pytest.raises(InputError, match="unknown command of papers 'lafa': did you mean lfa"):
        streamscope(["papers", "lafa"])
