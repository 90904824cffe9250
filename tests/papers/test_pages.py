"""Pages of results and the page of claims: what they say is in the tables, and they can be read."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Prompts
from streamscope.instruments.open_data import open_data
from streamscope.interventions.patch.pairs import make_pairs
from streamscope.models import load
from streamscope.papers import claims as papers_claims
from streamscope.papers.__main__ import main
from streamscope.papers.claims import HERE, RESULTS
from streamscope.papers.claims.judged import Tables, judged
from streamscope.papers.claims.words import CODES, DECIDED, MEANINGS, plain, word_of
from streamscope.papers.comparison.printed import number as printed_number
from streamscope.papers.comparison.runs import Run, trained_runs
from streamscope.papers.pages.folder import dose, general, seeds_and_tokens, table_of
from streamscope.papers.pages.markdown import LINE, measurement, number, quotation, three_digits, with_unit, wrapped
from streamscope.papers.pages.results import (
    Source,
    Value,
    agreement,
    fill_in,
    measurements,
    page_texts,
    pages_of,
    read,
    readme,
)
from streamscope.papers.pages.site import Drawn, html, models
from streamscope.papers.pages.strips import Row, Strip, TokenMap
from streamscope.papers.scorecard.report import in_arms
from tests.viewer.pages import browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(RESULTS.rglob("*.md"))
NAN = math.nan


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(Tables(RESULTS), judged(HERE, RESULTS))


# ---- the pages of results ----------------------------------------------------------------------


def declared() -> list[dict[str, Any]]:
    """What `pages.toml` declares with sentences."""
    given = page_texts()
    folders = [one for one in given["folder"].values() if "sentences" in one]
    papers = given["paper"].values()
    return [*given["front"]["finding"], *papers, *given["real"]["part"], *given["tables"].values(), *folders]


def declared_texts() -> list[str]:
    """All sentences of `pages.toml`."""
    return [text for one in declared() for part in (one, *one.get("detail", ())) for text in part["sentences"]]


def test_pages_are_what_the_tables_say(source: Source) -> None:
    """A table that changes makes this fail: `python -m papers --write results` writes the pages again."""
    for name, page in pages_of(source).items():
        assert (RESULTS / name).read_text(encoding="utf-8") == page.text(), name
        for figure in (page.figure, *(section.figure for section in page.sections)):
            assert (
                figure is None
                or not figure.rows
                or ((RESULTS / name).parent / figure.path).read_text(encoding="utf-8") == figure.svg()
            ), name


def test_snapshots_of_a_run_are_no_runs() -> None:
    end = trained_runs(RESULTS / "krom_long")[:2]
    half = [replace(run, manifest=run.manifest | {"outcome": "snapshot", "steps": 1000}) for run in end[:1]]
    seeds = ", ".join(sorted(str(run.seed) for run in end))
    assert dose(end) == f"2 runs (model size zoo, seeds {seeds}) saw 8.09 million tokens each."
    assert dose([*end, *half]) == (
        f"{dose(end)} One snapshot (model size zoo, seed {end[0].seed}) saw 0.512 million tokens."
    )
    assert not dose([])


def test_runs_of_all_arms_and_seeds_have_one_command() -> None:
    runs = ["lfa-s0", "lfa-cfm-s1"]
    lines = {general(f"python -m papers.lfa runs/long/{run} --out {run} --static none") for run in runs}
    assert lines == {"python -m papers.lfa runs/long/{arm}-s{seed} --out {arm}-s{seed} --static none"}


def test_a_page_has_at_most_eighty_lines_that_fit_a_screen() -> None:
    for path in PAGES:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 80, f"{path}: {len(lines)} lines"
        assert max(len(line) for line in lines if not line.startswith("|")) <= 160, path
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in PAGES) <= 25_000


def test_the_title_of_a_figure_fits_its_width() -> None:
    """760 pixels at 14 pixels a letter, of which a letter takes about half."""
    titles = [figure["title"] for one in declared() if (figure := one.get("figure")) and "title" in figure]
    assert len(titles) > 10 and not [title for title in titles if len(title) > 98]


def test_sentences_are_short_and_their_numbers_come_from_tables() -> None:
    """At most 25 words and one number from a table; no digits but those of names such as −8 and fp32."""
    texts = declared_texts()
    for text in texts:
        for sentence in re.split(r"(?<=[.:]) (?=[A-Z])", text):
            assert len(sentence.split()) <= 25, sentence
        assert not re.search(r"\d\.\d|\d ?%", re.sub(r"\{[^}]*\}", "", text)), text
    for paper in page_texts()["paper"].values():
        assert len(re.findall(r"\.(?= [A-Z`]|$)", " ".join(paper["sentences"]))) <= 5, "three to five sentences on top"


def test_the_readme_counts_the_ledger(source: Source) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme(text, source.claims) == text, "python -m papers --write results"
    old = re.sub(r"(?m)\| \d+ \| \d+ \| \d+ \|$", "| 0 | 0 | 0 |", re.sub(r"of \d+ claims", "of 7 claims", text))
    assert old.count("| 0 | 0 | 0 |") == 5 and readme(old, source.claims) == text
    with pytest.raises(InputError, match="README.md: 0 places for the number of lfa; it must have one"):
        readme(text.replace("(LFA)", ""), source.claims)
    assert text.count("\n") <= 90 and len(text.split()) <= 700


def test_a_guide_says_what_the_verdicts_mean() -> None:
    text = (ROOT / "docs" / "guides" / "measuring.md").read_text(encoding="utf-8")
    rows = [f"| *{word}* | {meaning} |" for word, meaning in MEANINGS.items() if word != "not measured yet"]
    assert "### What the verdicts mean\n" in text and "\n".join(rows) in text


def test_a_decided_claim_stands_on_its_page(source: Source) -> None:
    for paper in page_texts()["paper"]:
        page = pages_of(source)[f"{paper}.md"]
        mine = source.claims[source.claims["paper"].eq(paper) & source.claims["verdict"].isin(DECIDED)]
        quotes = {row[0] for row in page.sections[0].rows}
        assert quotes == {quotation(quote) for quote in mine["quote"]}


def decided(source: Source, paper: str) -> tuple[pd.DataFrame, list[list[str]]]:
    """The decided claims of a paper, and their rows on its page, in the same order."""
    mine = source.claims[source.claims["paper"].eq(paper) & source.claims["verdict"].isin(DECIDED)]
    mine = mine.iloc[mine["verdict"].map(DECIDED.index).argsort(kind="stable")]
    return mine, [list(row) for row in pages_of(source)[f"{paper}.md"].sections[0].rows]


def test_rows_of_one_measurement_have_one_letter_and_are_counted_once(source: Source) -> None:
    seen = 0
    for paper in page_texts()["paper"]:
        mine, rows = decided(source, paper)
        letters = [re.findall(r"<sup>(\w)</sup>", row[4]) for row in rows]
        by_letter = pd.Series([found[0] if found else f"own {i}" for i, found in enumerate(letters)])
        assert by_letter.nunique() == measurements(mine)
        assert mine.groupby(by_letter.to_numpy())["measurement"].nunique().max() == 1
        text = pages_of(source)[f"{paper}.md"].sections[0].text
        were, many = ("was", "") if len(mine) == 1 else ("were", "s")
        assert f"{len(mine)} {were} decided, from {by_letter.nunique()} measurement{many}." in text
        seen += len(mine) - by_letter.nunique()
    assert seen > 5
    pls, _ = decided(source, "pls")
    assert (len(pls), measurements(pls)) == (19, 16)


def test_a_difference_stands_with_its_levels(source: Source) -> None:
    """A difference that is not called one reads as a level; of two printed levels ours are shown as well."""
    two = re.compile(r"\d[\d.]*[%M]? (against|versus|<) [\d.]+[%M]?$")
    levels = page_texts()["levels"]
    given = {source.row(name, "here")["measurement"]: cells for name, cells in levels.items()}
    seen = 0
    for paper in page_texts()["paper"]:
        mine, rows = decided(source, paper)
        for claim, row in zip(mine.itertuples(), rows, strict=True):
            if two.search(claim.printed) or re.search(r"claim=[^;]* [<>] ", claim.result):
                assert "difference" in row[4] or claim.value != claim.value, claim.id
            if two.search(claim.printed):
                assert len(given[claim.measurement]) == (0 if " − " in claim.printed else 2), claim.id
            if cells := given.get(claim.measurement):
                seen += 1
                one, other = (read(cell, source, claim.id).value for cell in cells)
                assert abs(one - other) == pytest.approx(abs(claim.value), rel=1e-6), claim.id
    assert seen > 10 and set(levels) <= set(source.claims["id"])


def test_a_reading_is_whole(source: Source) -> None:
    for paper in page_texts()["paper"]:
        mine, rows = decided(source, paper)
        for claim, row in zip(mine.itertuples(), rows, strict=True):
            assert row[1] == claim.configuration and claim.why.startswith(row[2])
            assert len(row[2]) <= 330, f"{claim.id}: {len(row[2])} characters"
            assert (claim.verdict == "no effect") == row[6].startswith("no effect: "), claim.id


def rows_of_pls(source: Source) -> list[list[str]]:
    return decided(source, "pls")[1]


def test_what_was_measured_has_its_unit() -> None:
    one = pd.Series({"value": 0.188, "ci_low": 0.152, "ci_high": 0.224, "printed": "", "unit": "share of tokens"})
    assert measurement(one) == "18.8 % (15.2 % to 22.4 %) of tokens"
    assert measurement(one, [0.526, 0.338]) == "52.6 % against 33.8 % of tokens, difference 18.8 points (15.2 to 22.4)"
    assert measurement(one, []) == "difference 18.8 points (15.2 to 22.4)"
    assert measurement(one.replace("share of tokens", "r²")) == "r² 0.188 (0.152 to 0.224)"
    nats = one.replace("share of tokens", "nats/token")
    assert measurement(nats, [2.007, 2.043]) == "2.007 against 2.043 nats/token, difference 0.188 (0.152 to 0.224)"
    assert measurement(nats, []) == "difference 0.188 (0.152 to 0.224) nats/token"
    factor = one.replace("share of tokens", "factor")
    factor["printed"] = "+1.15% against +0.05%"
    assert measurement(factor) == "factor 0.188 (0.152 to 0.224)", "a factor of percentages is none"


# ---- what sentences say in words ---------------------------------------------------------------


def table(name: str) -> pd.DataFrame:
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def claim_row(name: str, claim: str, quantity: str = "") -> pd.Series:
    """One row of a table of claims."""
    found = table(name)
    (row,) = found[found["claim"].eq(claim) & (found["quantity"].eq(quantity) if quantity else True)].iloc
    return row


def verdict(name: str, claim: str, quantity: str = "") -> str:
    """The verdict of one row of a table of claims."""
    return str(claim_row(name, claim, quantity)["direction"]).split(":")[0]


def mean(name: str, quantity: str, preset: str, column: str = "mean") -> float:
    found = table(name)
    (value,) = found.loc[found["quantity"].eq(quantity) & found["preset"].eq(preset), column]
    return float(value)


def every(found: pd.Series) -> bool:
    """Whether all hold, and there are any."""
    return bool(len(found) and found.all())


def cosines_are_of_shuffled_labels_too() -> bool:
    far = {run: table(f"{run}/alike").eval("abs(cosine - shuffled)").max() for run in ("krom_eighth", "krom_long")}
    return far["krom_eighth"] < 0.01 and far["krom_long"] < 0.04


def nothing_given_back() -> bool:
    found = claim_row("dst_calibration/claims", "dst-kron+frozen_token above 0.5", "recovered.16")
    return bool(found["direction"].startswith("opposite"))


def above_the_clamp() -> bool:
    found = table("hdpl_zoo/kl").query("preset == 'hdpl'")
    return bool(len(found) and (found[["kl_clamped_first", "kl_clamped"]] == 1).all(axis=None) and
                (found["kl_nats"] > found["kl_nats_first"]).all())  # fmt: skip


def both_follow_identity() -> bool:
    own, raw = (mean("pls_modes/presets", f"hdbscan.identity{end}", "pls", "ci_low") for end in ("", "_raw"))
    return own > 0.1 and raw > mean("pls_modes/presets", "hdbscan.identity", "pls")


def lfa_arms(name: str, quantity: str) -> pd.DataFrame:
    """Rows of a table of results/lfa_long about a quantity, by preset."""
    return table(f"lfa_long/{name}").query("quantity == @quantity").set_index("preset")


def loss_gap(claim: str, folder: str = "lfa_long") -> pd.Series:
    """What one architecture of LFA loses more than another."""
    (row,) = table(f"{folder}/claims").query("claim == @claim and quantity == 'loss'").iloc
    return row


def only_cfm_copies_no_nouns() -> bool:
    found = table("lfa_long/competence").set_index("preset")["cannot"]
    return bool((found[["std-t", "d-cas", "lfa"]] == "").all() and found["cfm"] != "")


def test_the_tables_over_more_training_say_their_tokens_and_seeds() -> None:
    """What is typed into them, and what the text of LFA's says of sizes."""
    for paper, folders in (("lfa", ("eighth", "long", "tinystories")), ("pls", ("eighth", "tinystories", "long"))):
        (given,) = page_texts()["paper"][paper]["table"]
        for row, folder in zip(given["rows"], folders, strict=True):
            seeds, amount = seeds_and_tokens(trained_runs(RESULTS / f"{paper}_{folder}"))
            assert row[1:3] == [amount.removesuffix(" million tokens"), str(len(seeds.split(",")))]
    doses = {
        "krom_long": (3, "8.09"),
        "krom_eighth": (3, "1.5"),
        "krom_finetuning": (3, "8.09"),
        "hdpl_zoo": (3, "12"),
        "hdpl_eighth": (3, "1.5"),
        "dst_long": (4, "8.09"),
    }
    for folder, (seeds, amount) in (doses | {"pls_long": (4, "12.1"), "pls_modes": (4, "12.1")}).items():
        found = seeds_and_tokens(trained_runs(RESULTS / folder))
        assert (found[0].count(",") + 1, found[1]) == (seeds, f"{amount} million tokens"), "as figures of pages say"
    first, *others = (table(f"pls_{one}/competence").query("task == 'winograd'").set_index("preset")["cannot"]["pls"]
                      for one in ("eighth", "tinystories", "long"))  # fmt: skip
    assert first.startswith("P(answer)") and all(one.startswith("log-odds") for one in others)
    size = lfa_arms("architectures", "parameters")["mean"]
    assert size["d-cas"] > size["lfa"] and 0.45 < size["cfm"] / size["lfa"] < 0.55
    assert len(trained_runs(RESULTS / "lfa_long")) == 6 * 4, "the title of the figure says four seeds"


def above_shuffled(group: str) -> pd.Series:
    """By model and seed, whether the heads that attention finds for a role are above shuffled roles in all cases."""
    rows = table("pls_long/roles")
    return rows[rows["group"] == group].groupby(["preset", "seed"])["above_shuffled"].all()


def real(name: str, **where: str) -> pd.Series:
    """The one row of a table of the real model."""
    found = table(f"smollm2/{name}")
    (row,) = [row for _, row in found.iterrows() if all(row[k] == v for k, v in where.items())]
    return row


def drawn_heads() -> list[str]:
    """The heads in the figure of the Hydra effect."""
    (hydra,) = (one for one in page_texts()["real"]["part"] if one["name"] == "hydra")
    return [row["label"].partition(",")[0] for row in hydra["figure"]["rows"]]


def overlaps() -> pd.DataFrame:
    """Overlaps of the best twentieth of the edges of two tasks."""
    return table("circuits/overlap").query("share == 0.05").set_index(["run", "task", "other"])


def random_needs_most() -> bool:
    found = table("circuits/circuits")
    return every(found["needed_random_low"].fillna(found["needed_random"]) > 0.8 * found["edges"])


def further_apart(task: str, other: str, arm: str, than: str = "std-t+rope+cln") -> bool:
    """Whether the circuits of two tasks are significantly further apart in one architecture than in another."""
    found = table("lfa_circuits/contrasts").query("preset == @arm and other_preset == @than and task == @task")
    (row,) = found[found["other"] == other].iloc
    return bool(row["ci_low"] > 0 and row["p_holm"] < 0.05)


def less_passes_the_token_stream() -> bool:
    """In D-Cas and LFA, scores of other tasks pass the token stream less than those of name-copying do."""
    found = table("circuits/streams").query("group == 'token' and run in ('stories/d-cas', 'stories/lfa')")
    copying = found["task"] == "name-copying"
    return bool(found[~copying]["share_high"].max() < found[copying]["share_low"].min())


KROM, LONG = "krom_eighth", "kromcanon {}, {}, adamw, 2,850 steps"


def sides(folder: str, quantity: str, of: Callable[[Run], bool], n: int = 0) -> set[str]:
    """On which sides of the control the n arms lie whose runs are chosen; the control itself left out."""
    chosen = {run.arm for run in in_arms(trained_runs(RESULTS / folder)) if of(run)} - {"std-t+positions=rope"}
    found = table(f"{folder}/against").query("quantity == @quantity").set_index("arm")["side"]
    assert len(chosen) == n or (not n and len(chosen) > 1)
    return set(found[sorted(chosen)])


def has_token_stream(run: Run) -> bool:
    return run.config["model"]["residual"]["kind"] in ("frozen_token", "token_factor")


def learns_positions(run: Run, *, canon: bool) -> bool:
    return run.config["model"]["positions"]["kind"] == "learned" and ("canon" in run.preset) == canon


def costs_least(folder: str) -> set[str]:
    """The arms in which a head is worth less than in the control."""
    return set(table(f"{folder}/against").query("quantity == 'heads.mean' and side == 'lower'")["arm"])


VALUES = "lfa+attention.v=hdpl"
IN_WORDS: dict[str, Callable[[], bool]] = {
    "lose about half a nat more than Std-T with RoPE": lambda: (
        sides("scorecard_eighth", "loss", lambda run: learns_positions(run, canon=False)) == {"higher"}
        and table("scorecard_eighth/against").query("quantity == 'loss' and arm.str.match('std-t|gpt2|kromhc')")[
            "mean"].between(0.45, 0.6).all()),
    "unless they have Canon layers": lambda: sides(
        "scorecard_eighth", "loss", lambda run: learns_positions(run, canon=True)) == {""},
    "Two streams alone cost nothing that shows": lambda: set(table("scorecard_eighth/against").query(
        "quantity == 'loss' and arm in ('d-cas', 'dst-dense')")["side"]) == {""},
    "All twelve models with a token stream spread attention over fewer tokens": lambda: all(
        sides("scorecard_eighth", name, has_token_stream, 12) == {"lower"} for name in ("entropy", "amplification")),
    "The loss of `lfa` no longer differs significantly": lambda: [
        table(f"scorecard_{one}/against").query("quantity == 'loss' and arm == 'lfa'")["side"].item()
        for one in ("eighth", "long")] == ["higher", ""],
    "With HDPL values, which no paper tried, `lfa` copies in no seed": lambda: (
        not table("scorecard_long/runs").query("quantity == 'copying' and preset == @VALUES and ci_low > 0").size
        and table("scorecard_long/against").query("quantity == 'loss' and arm == @VALUES")["side"].item() == "higher"),
    "Learned positions (`std-t`) still cost": lambda: [
        table(f"scorecard_{one}/against").query("quantity == 'loss' and arm == 'std-t'")["side"].item()
        for one in ("eighth", "long")] == ["higher"] * 2,
    "Every model with a token stream still spreads attention over fewer tokens": lambda: all(
        {run.arm for run in in_arms(trained_runs(RESULTS / "scorecard_long")) if has_token_stream(run)}
        == set(table("scorecard_long/against").query("quantity == @name and side == 'lower'")["arm"])
        for name in ("entropy", "amplification")),
    "In each of three seeds `lfa` copies the noun that is meant, `d-cas` in one, and Std-T in none": lambda: (
        table("scorecard_long/runs").query("quantity == 'copying' and ci_low > 0")["preset"].value_counts().reindex(
            ["lfa", "d-cas", "std-t", "std-t+positions=rope"], fill_value=0).tolist() == [3, 1, 0, 0]
        and table("scorecard_long/between").query("quantity == 'copying'")["p_holm"].item() > 0.05),
    "A head still matters least in `pls` and its control `c2`": lambda: (
        costs_least("scorecard_long") == set(table("scorecard_long/arms").query(
            "quantity == 'heads.mean'").nsmallest(2, "mean")["arm"]) == {"pls", "c2"}),
    "The loss of each is about a tenth of a nat above that of Std-T with RoPE": lambda: (
        (given := table("scorecard_long/against").query("quantity == 'loss' and arm in ('pls', 'c2')"))["side"].eq(
            "higher").all() and given["mean"].between(0.09, 0.11).all()),
    "Heads matter least in `pls`, its control `c2`, and the two with Canon layers": lambda: costs_least(
        "scorecard_eighth") == {"pls", "c2", "canon", "kromcanon"},
    "No model copies nouns, and no head has an induction score above": lambda: not table("scorecard_eighth/runs").query(
        "quantity == 'copying' and ci_low > 0").size,
    "stays frozen only if parameters are stored in bf16": lambda: verdict(
        f"{KROM}/sweep-claims", f"{LONG.format(-8, 'bf16')} below 0.01", "in use") == "holds",
    "The loss holds it below that": lambda: mean(
        f"{KROM}/sweep", "mixed", LONG.format(-8, "fp32"), "ci_high") < 0,
    "With parameters stored in fp32 the swap in use ends at": lambda: mean(
        f"{KROM}/sweep", "in use", LONG.format(-8, "fp32"), "ci_low") > 0.01,
    "With parameters stored in bf16, as in the authors' code, it stays": lambda: verdict(
        f"{KROM}/sweep-claims", f"{LONG.format(-8, 'bf16')} below 0.01", "best.high") == "holds",
    "Directions between shuffled labels": cosines_are_of_shuffled_labels_too,
    "Cosines between streams are about as large for shuffled labels": cosines_are_of_shuffled_labels_too,
    "the penalty has no gradient": above_the_clamp,
    "The best temperature recovers": nothing_given_back,
    "No temperature of the logits gives back": nothing_given_back,
    "Above the clamp the penalty is constant": above_the_clamp,
    "The KL grows between the first and the last": above_the_clamp,
    "At every logged step that we kept the KL lies above the clamp": lambda: bool(
        above_the_clamp() and table("hdpl_zoo/kl-steps")["kl_clamped"].eq(1).all()),
    "feature clusters and token identity have AMI": both_follow_identity,
    "HDBSCAN puts two fifths of the tokens into clusters both": lambda: table("pls_modes/agreement").query(
        "preset == 'pls' and measure == 'AMI' and method == 'hdbscan'").groupby("tokens")["n"].mean().pipe(
        lambda n: 0.38 < n["in clusters of both"] / n["all, noise a cluster"] < 0.43),
    "the reverse of the paper": lambda: verdict(
        "dst_long/claims", "dst-kron above 0", "gap.zero.head") == "opposite",
    "of the loss after 8 million tokens, not significantly": lambda: (
        mean("dst_long/presets", "cost", "dst-kron", "ci_low") < 0
        < mean("dst_long/presets", "cost", "dst-kron", "ci_high") < printed_number("2.5%")),
    "whether the cost falls with the tokens is open": lambda: mean(
        "dst_eighth/presets", "cost", "dst-kron", "ci_low") < mean("dst_long/presets", "cost", "dst-kron", "ci_high"),
    "in attention cost": lambda: mean("dst_eighth/presets", "cost", "dst-ind", "ci_low") < printed_number(
        "3.3%") < mean("dst_eighth/presets", "cost", "dst-ind", "ci_high"),
    "after 8 million tokens, more than the printed": lambda: mean(
        "dst_long/presets", "cost", "dst-full-ind", "ci_low") > printed_number("8%"),
    "The token stream costs more in each seed. At half of the training one of two initializations": lambda: (
        (one := claim_row("dst_long/claims", "dst-kron above 0", "gap.zero.everywhere"))["runs"] == "4 of 4"
        and one["direction"].count("holds") == 3 and "normal, 3.58 M tokens: not resolved" in one["direction"]),
    "of its weight on one key, on average over all layers, as the paper says": lambda: verdict(
        "dst_long/claims", "dst-kron+frozen_token above 0.5", "peak.16") == "holds",
    "that of about nine equal weights": lambda: 8.5 < math.exp(
        mean("dst_long/presets", "spread.1", "dst-kron+frozen_token")) < 9.5,
    "As in the paper's Table 5, the loss is nearly a line over log2": lambda: all(
        over_log > 0.95 > 0.9 > over_alpha for over_log, over_alpha in (
            [mean("dst_long/presets", f"straight.{axis}", "dst-kron+frozen_token") for axis in ("log2", "linear")],
            [np.corrcoef(x, [1.84, 1.90, 2.00, 2.09, 2.14])[0, 1] ** 2 for x in (range(5), [1, 2, 4, 8, 16])])),
    "so that cost shrank": lambda: bool(
        loss_gap("lfa > d-cas", "lfa_long")["ci_high"] < loss_gap("lfa > d-cas", "lfa_eighth")["ci_low"]),
    "The difference is not significant when it is corrected": lambda: bool(
        loss_gap("lfa > d-cas")["ci_low"] > 0 and loss_gap("lfa > d-cas")["p_holm"] > 0.05),
    "That `cfm` loses more than `lfa` is as the paper says": lambda: loss_gap("cfm > lfa")["direction"] == "holds",
    "after correction it is not significant": lambda: bool(
        loss_gap("d-cas > std-t+rope+cln")["difference"] < 0 and loss_gap("d-cas > std-t+rope+cln")["p_holm"] > 0.05),
    "copy the noun that is meant": only_cfm_copies_no_nouns,
    "We could not show it of `cfm`": only_cfm_copies_no_nouns,
    "no head finds the antecedent significantly more often": lambda: table(
        "lfa_long/rules").query("rule == 'recency' and difference > 0")["p"].min() > 0.05,
    "The main claim, a lower loss, is not decided": lambda: verdict(
        "hdpl_zoo/order", "hdpl < llama").startswith("not resolved"),
    "nats higher, which is not significant": lambda: bool(
        (one := table("hdpl_zoo/order").query("claim == 'hdpl < llama'").iloc[0])["ci_low"] < 0 < one["ci_high"]),
    "a significant difference that is gone in the longer training": lambda: verdict(
        "hdpl_eighth/order", "hdpl < llama") == "opposite",
    "After more steps than the paper's the hybrid's loss": lambda: bool(
        (steps := table("hdpl_zoo/losses")["steps"]).min() > 20_000 and len(steps) == 6),
    "Windows that long are rare in training": lambda: table("hdpl_zoo/lengths")["share"].min() > 0.95,
    "One seed kept every logged step": lambda: table("hdpl_zoo/kl-steps")["seed"].nunique() == 1,
    "Five of the reproduced claims are sizes": lambda: judged(HERE, RESULTS).query(
        "paper == 'hdpl' and verdict == 'reproduced' and table.str.startswith('parameter_counts')").shape[0] == 5,
    "the best validation loss of the hybrid is lower as well": lambda: mean(
        "hdpl_overfit/arms", "lowest", "hdpl", "ci_high") < mean("hdpl_overfit/arms", "lowest", "llama", "ci_low"),
    "the hybrid overfits less, as the paper says": lambda: verdict(
        "hdpl_overfit/claims", "llama > hdpl", "overfit") == "holds",
    "Keeping the projections that write to the residual stream dense helps": lambda: all(
        verdict("hdpl_eighth/order", f"hdpl < hdpl+{arm}") == "holds"
        for arm in ("o=hdpl", "down=hdpl", "o=hdpl+down=hdpl")),
    "settle on their prediction earlier, as the paper says": lambda: verdict(
        "pls_long/claims", "pls > c2", "depth.early") == "holds",
    "settle in the middle and in the last layers, also as the paper says": lambda: all(
        verdict("pls_long/claims", "c2 > pls", f"depth.{where}") == "holds" for where in ("middle", "late")),
    "From −8 in fp32 the loss moves it, too": lambda: table(f"{KROM}/sweep").query(
        "preset.str.startswith('kromcanon -8, fp32') and quantity == 'moved'")["ci_low"].min() > 0.01,
    "in most of the models, attention finds none of them": lambda: all(
        above_shuffled(group).mean() < 0.5 for group in ("entity", "anchor")),
    "Entity heads beat shuffled roles in one of four supervised models, anchor heads in none": lambda: (
        sorted(above_shuffled("entity")["pls"]) == [False, False, False, True]
        and not above_shuffled("anchor")["pls"].any() and len(above_shuffled("anchor")["pls"]) == 4),
    "the models do capitalization alone, after TinyStories alone they do gender alone": lambda: [
        sorted(table(f"pls_{one}/competence").query("cannot == ''")["task"]) for one in ("long", "tinystories")
    ] == [["capitalization"] * 2, ["gender"] * 2],
    "of the Kronecker model rises by": lambda: mean(
        "dst_long/presets", "degradation.16", "dst-kron+frozen_token", "ci_low") > printed_number("27%"),
    "Whether they help hyper-connections is not decided": lambda: verdict(
        "krom_long/order", "kromcanon < kromhc").startswith("not resolved on both texts"),
    "does not get away from −8. AdamW in fp32 does": lambda: every(
        table("krom_arithmetic/arithmetic-claims").set_index("claim")["holds"][[
            "SGD, fp32, no decay: frozen at the rate 0.005", "the same without decay: p(1−p) alone is no trap"]]),
    "In the shorter training hyper-connections lower the loss, as the blog says": lambda: verdict(
        f"{KROM}/order", "kromhc < gpt2") == "holds",
    "Corrected for the four comparisons that were tested, neither is significant": lambda: int(
        table("krom_long/order")["p"].notna().sum()) == 4 and all(
        verdict("krom_long/order", claim).endswith("seeds, corrected") for claim in ("kromhc < gpt2", "canon < gpt2")),
    "so that no contrast is left": lambda: every(table("krom_finetuning/arms").set_index(["preset", "quantity"])[
        "mean"].unstack().eval("abs(gain - `gain.control`) < 0.01")),
    "The models do not learn to refuse selectively": lambda: every(table("krom_finetuning/arms").set_index(
        ["preset", "quantity"])["mean"].unstack().eval("`refusal.harmful` - `refusal.harmless` < 0.1")),
    "nats in the longer training, which is not significant": lambda: bool(
        (one := table("krom_long/order").query("claim == 'kromcanon < canon'").iloc[0])["ci_low"] < 0 < one["ci_high"]),
    "In the shorter one it was": lambda: verdict(f"{KROM}/order", "kromcanon < canon") == "holds",
    "The loss holds it at": lambda: bool((one := table("krom_long/mixing").query(
        "b_res == -8 and storage == 'fp32'"))["swap"].max() < one["swap_without_gradient"].min() - 0.1),
    "In the shorter training the two texts disagree": lambda: verdict(
        f"{KROM}/order", "canon < gpt2").startswith("not resolved on both texts"),
    "below what weight decay alone would give": lambda: mean(
        f"{KROM}/sweep", "mixed", LONG.format(-2, "fp32"), "ci_high") < -0.01,
    "none of them is in the first third of the layers": lambda: every(
        table("smollm2/pds").query("over")["layer"] >= 10),
    "with always choosing the first noun the difference is not significant": lambda: bool(
        (one := real("coreference-held-out", halves="both", rule="first_mention"))["ci_low"] < 0 < one["ci_high"]),
    "harm that preference more than random heads do on average": lambda: real(
        "suppress-controls", measure="coherence")["above_high"] < 0,
    "the harm is not unusual": lambda: real("suppress-controls", measure="coherence")["p_rank"] > 0.05,
    "the eight heads that write the right name most directly": lambda: len(heads := table("smollm2/hydra")) == 8
        and heads["direct"].is_monotonic_increasing,
    "The figure has the four whose direct effect is significant": lambda: drawn_heads() == table(
        "smollm2/hydra").query("direct_p_holm < 0.05")["group"].tolist(),
    "no less than by its direct effect alone": lambda: (
        (one := real("hydra", group="L23.H3"))["total"] <= one["direct"] and one["total_high"] < 0),
    "Of the four heads in the figure, only this one has an interval above 0": lambda: table(
        "smollm2/hydra").query("compensation_low > 0")["group"].tolist() == ["L23.H2"],
    "Without the fourth we detect no change": lambda: (
        (one := real("hydra", group="L23.H2"))["total_low"] < 0 < one["total_high"]),
    "Later attention and a new scale of the norm make up for its direct effect": lambda: (
        (one := real("hydra", group="L23.H2"))["attn"] + one["norm"] >= -one["direct"]
        and max(one["attn_p_holm"], one["norm_p_holm"]) < 0.05),
    "what later layers add is not significant": lambda: real("hydra", group="L23.H2")["compensation_p_holm"] > 0.05,
    "Two draws of one task share far more of their best edges than two tasks do": lambda: every(
        overlaps()["separate_low"] > overlaps()["jaccard_high"]),
    "Two tasks still share more than random edges": lambda: every(overlaps()["jaccard_low"] > overlaps()["chance"]),
    "On the other tasks less passes there": less_passes_the_token_stream,
    "SmolLM2 does eleven of twelve tasks, all but stories": lambda: set(
        table("circuits/ability").query("run == 'runs/smollm2' and not does")["task"]) == {"stories"},
    "Random circuits need over four fifths of all edges": random_needs_most,
    "For one of three pairs of tasks, stories and letter-case, D-Cas has a wider gap": lambda: further_apart(
        "stories", "letter-case", "d-cas"),
    "which is not significant after correction": lambda: not further_apart("stories", "letter-case", "lfa"),
    "For the other two pairs the gaps do not differ significantly": lambda: not any(
        further_apart(*pair, arm) for arm in ("d-cas", "lfa")
        for pair in (("stories", "name-copying"), ("name-copying", "letter-case"))),
    "Nor, after correction, do any gaps differ from those of Std-T with RoPE alone": lambda: not any(
        further_apart(*pair, arm, "std-t+rope") for arm in ("d-cas", "lfa")
        for pair in (("stories", "letter-case"), ("stories", "name-copying"), ("name-copying", "letter-case"))),
    "The architectures have other numbers of edges": lambda: table("lfa_circuits/circuits")["edges"].nunique() > 1,
    "CFM does not do the task stories": lambda: not table("lfa_circuits/ability").query(
        "task == 'stories' and run.str.contains('cfm')")["does"].any(),
}  # fmt: skip
"""What a sentence of `pages.toml` says without a number -> whether its tables hold it."""


@pytest.mark.parametrize("words", IN_WORDS)
def test_what_sentences_say_in_words_is_what_the_tables_hold(words: str) -> None:
    """A sentence that is written anew needs its words here anew."""
    texts = declared_texts()
    assert any(words in text for text in texts), "no sentence says this"
    assert IN_WORDS[words]()


def test_statements_about_the_real_model_name_what_is_in_its_tables() -> None:
    """Heads, limits, cases and effects that pages.toml spells out."""
    statements = {one["says"]: one for one in page_texts()["real"]["claim"]}
    pds = table("smollm2/pds")
    assert pds.loc[pds.groupby(pds["layer"] // 10)["pds"].idxmax(), "head"].tolist() == ["L9.H2", "L13.H8", "L22.H2"]
    (half,) = (one["limit"] for says, one in statements.items() if "we ask for half of it" in says)
    assert half == pytest.approx(-table("smollm2/sps").loc[0, "sps"] / 2, abs=1e-5)
    for name, cases, texts in (("coreference", 29, 8), ("competing", 60, 30)):
        one = real(f"{name}-held-out", halves="both", rule="recency")
        assert (one["n"], one["clusters"]) == (cases, texts)
        assert any(f"({cases} cases, {texts} texts)" in says for says in statements)
    heads = table("smollm2/hydra").set_index("group")
    assert heads.index[3] == "L23.H2" and heads.index[heads["compensation_low"] > 0].tolist() == ["L23.H2"]
    (hydra,) = (one for one in statements.values() if one["of"].startswith("smollm2/hydra"))
    assert "group=L23.H3" in hydra["of"] and heads.index[0] == "L23.H3", "the strongest: none is chosen by its result"
    assert hydra["unit"] == f"nats, of a direct effect of {heads.loc['L23.H3', 'direct']:.2f}".replace("-", "−")


# ---- numbers, words, figures -------------------------------------------------------------------


def test_a_number_is_read_with_its_interval(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    rows = [{"arm": "a", "mean": 0.25, "ci_low": -0.5, "ci_high": 1.0}]
    rows += [{"arm": "b", "mean": 0.75, "ci_low": 0.0, "ci_high": 1.0}]
    pd.DataFrame(rows).to_parquet(tmp_path / "r" / "t.parquet")
    source = Source(Tables(tmp_path), pd.DataFrame([{"id": "x-a", "value": 3.0, "ci_low": 1.0, "ci_high": 4.0}]))
    one = read("r/t.parquet; arm=a; mean", source, "here")
    assert one == Value(0.25, -0.5, 1.0) and f"{one:.2f}" == "0.25 (−0.50 to 1.00)"
    assert f"{Value(-0.004, -0.02, 0.02):.2f}" == "0.00 (−0.02 to 0.02)", "what rounds to zero has no sign"
    assert fill_in("{a.value:.0%} of it, {a:.1f}", {"a": one}, "here") == "25\u00a0% of it, 0.2 (−0.5 to 1.0)"
    assert read("r/t.parquet; arm=a; mean times -100", source, "here") == Value(-25.0, -100.0, 50.0)
    assert read("r/t.parquet; arm=*; max(mean)", source, "here").value == 0.75
    assert read("r/t.parquet; arm=*; count(mean)", source, "here").value == 2
    assert read("claim x-a", source, "here") == Value(3.0, 1.0, 4.0)
    assert read("claim x-a times 100", source, "here") == Value(300.0, 100.0, 400.0)
    for bad, told in (
        ("r/t.parquet; arm=c; mean", "0 rows"), ("r/t.parquet; arm=*; mean", "2 rows"),
        ("r/t.parquet; arm=c; min(mean)", "no row"),
        ("r/t.parquet; arm=a; loss", "no column 'loss'"), ("claim x-b", "no claim x-b"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"here.*{told}"):
            read(bad, source, "here")
    with pytest.raises(InputError, match="here: 'b'"):
        fill_in("{b:.2f}", {"a": one}, "here")


def test_a_table_of_a_page_has_intervals_where_its_file_has_them(tmp_path: Path) -> None:
    frame = pd.DataFrame({"run": ["a", "b"], "needed": [1234.5, 7.0], "needed_low": [900.25, NAN],
                          "needed_high": [1500.0, NAN], "does": [True, False]})  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    made = table_of(
        tmp_path, "t.parquet", {"run": "model", "needed": "edges", "does": "does it"}, "Title", text="Text."
    )
    assert made.rows == [["a", "1,234 (900 to 1,500)", "yes"], ["b", "7", "no"]]
    assert (made.title, made.text, made.columns) == ("Title", "Text.", ["model", "edges", "does it"])


def test_three_digits() -> None:
    numbers = (0.0, 0.03583, -2.1031, 51192320.0, 100.0, 9.643e-05, 1e-9)
    assert [three_digits(x) for x in numbers] == ["0", "0.0358", "−2.1", "51,192,320", "100", "0.0000964", "1.0e−09"]


def test_verdicts_have_one_word_each() -> None:
    assert set(CODES.values()) == set(MEANINGS) and all(word_of(word) == word for word in MEANINGS)
    assert plain("holds: the same at n=3 seeds") == "reproduced: the same at n=3 seeds"
    assert plain("not resolved at n=3 seeds, corrected") == "inconclusive: at n=3 seeds, corrected"
    assert plain("opposite") == "contradicted" and word_of("perhaps") is None
    assert plain("reproduced") == "reproduced" and plain("perhaps: so") == "perhaps: so"


def test_printed_numbers_are_read_from_the_ledger() -> None:
    source = Source(Tables(RESULTS), pd.DataFrame([{"id": "x-a", "printed": "9.5%"}, {"id": "x-b", "printed": "more"}]))
    assert read("printed x-a times 100", source, "here").value == pytest.approx(9.5)
    for name in ("x-b", "x-c"):
        with pytest.raises(InputError, match=f"here.*{name}"):
            read(f"printed {name}", source, "here")
    rows = [row for one in declared() if "figure" in one for row in one["figure"]["rows"]]
    typed = [row for row in rows if not isinstance(row.get("printed", ""), str)]
    assert not typed


def test_a_page_says_the_least_and_the_most_tokens(source: Source) -> None:
    for paper in page_texts()["paper"]:
        mine = source.claims.loc[source.claims["paper"] == paper, "tokens"]
        seen = [int(end.replace(",", "")) for tokens in mine if tokens for end in tokens.split(" to ")]
        assert f"judged on saw {min(seen):,} to {max(seen):,} training tokens" in pages_of(source)[f"{paper}.md"].note


def test_formulas_and_units_are_shown_once() -> None:
    for text, shown in {
        r"growth as α\alpha increases, at α=16\alpha=16.": "growth as α increases, at α=16.",
        r"while 𝐱t\mathbf{x}_{t} and 𝐱e\mathbf{x}_{e}": "while x_t and x_e",
        r"(44%\approx 44\% reduction)": "(≈ 44% reduction)",
        r"8×642=32,7688\times 64^{2}=32,768": "8× 64²=32,768",
        r"rate 5×1045\times 10^{-4}": "rate 5× 10⁻⁴",
        r"\(0.76^{16} \approx 0.012\)": "0.76¹⁶ ≈ 0.012",
        r"consistent \(\alpha_{res}\) sign": "consistent α_res sign",
        r"\(-8\)0.03%0.00035.836 ± 0.0060.974 ± 0.0053": "-8 0.03% 0.0003 5.836 ± 0.006 0.974 ± 0.005 3",
        "six heads of 16, see §3.2": "six heads of 16, see §3.2",
    }.items():
        assert quotation(text) == shown
    assert with_unit("2-3 tokens", "nats") == "2-3 tokens" and with_unit("2.12", "nats") == "2.12 nats"


def test_a_measured_text_is_in_words_and_counted_seeds_are_a_count(source: Source) -> None:
    of = {claim.id: number(claim) for claim in source.claims.itertuples()}
    assert of["krom-gradient-trap"] == "swap 0.3000 (logits −3.576 and −4.424)"
    assert of["krom-mhc-no-bottleneck"] == "0.000331 against 0.000335"
    assert of["krom-l0-ffn-robust"] == "0 of 3" and "(" in of["krom-jump-robust"]


def test_colours_of_verdicts_are_those_of_the_claims(source: Source) -> None:
    """Also where a verdict between them has no claim."""
    rows = source.claims[source.claims["verdict"].isin(["reproduced", "different value"])]
    for word in ("reproduced", "different value"):
        assert len(set(re.findall(rf'class="word k(\d)">{word}<', html(rows, {})))) == 1, word


def test_the_examples_of_the_claims_command_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"python -m papers\.claims (.*)", papers_claims.__doc__ or "")
    for line in (line for line in lines if "--out" not in line):
        papers_claims.main(shlex.split(line))
        assert capsys.readouterr().out
    assert len(lines) == 3


def test_a_figure_puts_numbers_where_they_belong() -> None:
    rows = [Row("a", 0.0, -1.0, 1.0), Row("<b>", 2.0, printed=4.0), Row("none", NAN)]
    figure = Strip(title="t", unit="nats", rows=rows, line=0.0)
    drawn = figure.drawn()
    first, second, third = drawn["rows"]
    assert first["value"] - first["low"] == pytest.approx(first["high"] - first["value"], abs=0.2)
    per_unit = first["high"] - first["value"]
    assert second["value"] - first["value"] == pytest.approx(2 * per_unit, abs=0.3)
    assert second["printed"] - first["value"] == pytest.approx(4 * per_unit, abs=0.5)
    assert third["value"] is None and drawn["line"]["x"] == first["value"]
    assert "&lt;b&gt;" in figure.svg() and "<b>" not in figure.svg()
    log = Strip(title="t", unit="nats", rows=[Row("a", 1.0), Row("b", 10.0), Row("c", 100.0)], log=True).drawn()["rows"]
    assert log[1]["value"] - log[0]["value"] == pytest.approx(log[2]["value"] - log[1]["value"], abs=0.2)


def test_a_statement_agrees_if_the_whole_interval_lies_where_the_paper_expects_it() -> None:
    inside = Value(0.1, 0.05, 0.15)
    assert agreement(inside, "above", 0.04) == "agrees" and agreement(inside, "below", 0.04) == "does not agree"
    assert agreement(inside, "above", 0.1) == "inconclusive" and agreement(inside, "below", 0.2) == "agrees"
    with pytest.raises(InputError, match="3 has no interval"):
        agreement(Value(3.0), "above", 2)


def test_a_map_puts_tokens_and_names_of_clusters_where_they_belong() -> None:
    rows = [(0.0, 0.0, 0, 0), (2.0, 0.0, 0, 0), (4.0, 8.0, 1, 1)]
    text = TokenMap(title="<t>", rows=rows, groups=("early", "late")).svg()
    first, second = (re.findall(r"M([\d.]+) ([\d.]+)h0", line) for line in re.findall(r'class="g\d" d="([^"]+)"', text))
    (left, low), (middle, _) = ((float(x), float(y)) for x, y in first)
    ((right, high),) = ((float(x), float(y)) for x, y in second)
    assert middle - left == pytest.approx(right - middle, abs=0.2) and high < low, "up is up"
    marks = re.findall(r'class="mark" x="([\d.]+)" y="([\d.]+)"[^>]*>(\d)<', text)
    assert [(float(x), m) for x, _, m in marks] == [(pytest.approx((left + middle) / 2, abs=0.1), "0"), (right, "1")]
    assert "&lt;t&gt;" in text and text.startswith("<svg")


def test_text_is_wrapped() -> None:
    assert max(map(len, wrapped("word " * 200).splitlines())) <= LINE


# ---- the page of claims ------------------------------------------------------------------------


class Found(HTMLParser):
    """Claims, tags and addresses of a page; checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.claims: dict[str, dict[str, str]] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.addresses += [value for name, value in given.items() if name in ("src", "href")]
        if given.get("class") == "claim":
            self.claims[given["id"]] = given
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def test_the_page_has_every_claim_and_needs_no_network(source: Source) -> None:
    text = html(source.claims, {"dst": {"2": Drawn("a figure", 300)}})
    found = Found(text)
    assert list(found.claims) == list(source.claims["id"])
    for one in source.claims.itertuples():
        shown = found.claims[one.id]
        assert (shown["data-paper"], shown["data-verdict"]) == (one.paper, one.verdict)
        assert shown["data-models"].split() == models(one.configuration)
    assert not [to for to in found.addresses if not re.fullmatch(r"data:,|#.*|figures/[\w.-]+", to)]
    assert not re.search(r"url\(|@import|fetch\(|https?://[^\s\"<]+\.(js|css)", text)
    assert "figures/dst-2.html" in found.addresses


def test_the_page_escapes_what_it_shows(source: Source) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    rows = source.claims.head(2).copy()
    for name in ("quote", "configuration", "why", "finding", "command", "printed", "place", "unit"):
        rows[name] = evil
    plain_page, page = Found(html(source.claims.head(2), {})), Found(html(rows, {}))
    assert page.tags <= plain_page.tags | {"pre", "blockquote"} and "img" not in page.tags
    assert html(rows, {}).count("<script>") == 1


@pytest.mark.browser
def test_a_figure_loads_where_its_claim_is_opened(source: Source, tmp_path: Path) -> None:
    """Eighty frames that each load the script of figures took fifteen seconds, though all claims were closed."""
    rows = source.claims[source.claims["place"].str.contains("Fig. 2") & source.claims["paper"].eq("dst")]
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "dst-2.html").write_text("<p>a figure</p>", encoding="utf-8")
    (tmp_path / "index.html").write_text(html(rows, {"dst": {"2": Drawn("a figure", 300)}}), encoding="utf-8")
    with browser() as chromium:
        page = chromium.new_page()
        asked: list[str] = []
        page.on("request", lambda one: asked.append(one.url.rpartition("/")[2]))
        page.goto((tmp_path / "index.html").as_uri())
        assert len(rows) > 2 and asked == ["index.html"]
        assert page.text_content("#count") == f"{len(rows)} claims"
        page.fill("input[name=text]", rows["id"].iloc[1])
        assert page.text_content("#count") == "1 claim" and not page.is_visible("#none")
        page.fill("input[name=text]", "no claim has this")
        assert page.text_content("#count") == "0 claims" and not page.is_visible("#columns")
        assert page.inner_text("#none").startswith("No claim matches.")
        page.click("#none button")
        page.wait_for_selector("#none", state="hidden")
        assert page.text_content("#count") == f"{len(rows)} claims" and page.is_visible("#columns")
        page.fill("input[name=text]", rows["id"].iloc[1])
        page.click(".claim:not([hidden]) summary")
        frame = page.frame_locator(".claim[open] iframe")
        assert page.locator(".claim[open] iframe").bounding_box()["height"] == 300
        assert frame.locator("p").text_content() == "a figure" and asked == ["index.html", "dst-2.html"]


def test_models_of_a_claim() -> None:
    assert models("std-t against d-cas") == ["std-t", "d-cas"] and models("pls, entity heads") == ["pls"]
    assert models("α = 16") == []


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="nothing to write: give --out FOLDER"):
        main([])
    main(["--out", str(tmp_path / "site"), "--no-figures"])
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["index.html"]
    assert str(tmp_path / "site" / "index.html") in capsys.readouterr().out


def test_the_dispatcher_knows_the_page(tmp_path: Path) -> None:
    from streamscope.__main__ import main as streamscope

    streamscope(["papers", "--out", str(tmp_path), "--no-figures"])
    assert (tmp_path / "index.html").is_file()


def test_folders_of_tables_name_their_runs() -> None:
    for path in RESULTS.glob("*/trained.json"):
        runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
        assert all(run["folder"] for run in runs), path


def test_the_prompts_that_the_page_on_circuits_shows_are_pairs_of_their_task() -> None:
    """With their answers, of which the model may have the first token alone."""
    (given,) = (one for one in page_texts()["tables"]["circuits"]["table"] if "examples" in one)
    model = load("stories/lfa")
    for task, text in given["examples"].items():
        (clean, answer), (corrupt, foil) = (half.split(" → ") for half in text.split("; "))
        opened = open_data(Prompts(suite=task), model)
        pairs = make_pairs(opened.aligned, opened.tokenizer, "clue" if task == "stories" else "corrupt").pairs
        decode = opened.tokenizer.decode
        (mine,) = [one for one in pairs if [decode(one.clean), decode(one.corrupt)] == [clean, corrupt]]
        for ids, word in ((mine.answers, answer), (mine.foils, foil)):
            starts = [decode([token]).strip() for token in ids]
            assert all(starts) and word.startswith(tuple(starts)), task
