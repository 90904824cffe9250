"""The rule of verdicts on planted numbers: what must hold, be opposite, negligible, open, or not be judged at all."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.papers.comparison.printed import Bound, Order, number, smallest
from streamscope.papers.comparison.seeds import estimate, over_seeds, paired
from streamscope.papers.comparison.verdicts import (
    COUNTED,
    bound_row,
    direction,
    measured,
    order_row,
    seeds_row,
    size,
    summary,
    verdicts,
    with_verdicts,
)
from tests.papers.pages import NAN, planted

RESULTS = Path(__file__).parents[2] / "results"
ROW = {"claim": "a > b", "quantity": "x", "unit": "share", "where": "", "paper": NAN, "printed": "", "smallest": NAN}


def row(difference: float, half: float, p: float, **changes: object) -> dict:
    """The row of a claim with the interval difference ± half."""
    return measured({**ROW, **changes}, difference, difference - half, difference + half, p, "3", "")


# ---- one claim ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "p", "least", "verdict"),
    [
        (0.1, 0.3, 0.01, 0.0, "holds"),
        (-0.3, -0.1, 0.01, 0.0, "opposite"),
        (-0.1, 0.3, 0.4, 0.0, "not resolved at n=3 seeds"),
        (0.0, 0.3, 0.05, 0.0, "not resolved at n=3 seeds"),
        (-0.3, 0.0, 0.05, 0.0, "not resolved at n=3 seeds"),
        (0.1, 0.3, 0.06, 0.0, "not resolved at n=3 seeds, corrected"),
        (0.1, 0.3, NAN, 0.0, "not resolved at n=3 seeds, corrected"),
        (0.01, 0.03, 0.001, 0.05, "negligible: within ±0.05"),  # however sure its sign
        (-0.01, 0.03, 0.5, 0.05, "negligible: within ±0.05"),
        (0.01, 0.06, 0.001, 0.05, "holds"),  # may be as large as what is of interest
    ],
)
def test_direction_follows_from_interval_corrected_p_and_smallest_effect(
    low: float, high: float, p: float, least: float, verdict: str
) -> None:
    assert direction(low, high, p, "3", least) == verdict


def test_an_interval_that_is_turned_round_or_has_no_ends_is_an_error() -> None:
    for low, high in ((0.3, 0.1), (NAN, 0.1), (NAN, NAN)):
        with pytest.raises(ValueError, match="turned round or has no ends"):
            direction(low, high, 0.01, "3")


def test_size_says_where_the_printed_difference_lies() -> None:
    assert size(0.2, 0.1, 0.3) == "printed value inside"
    assert size(0.2, 0.3, 0.4) == "larger than printed"
    assert size(0.2, -0.1, 0.1) == "smaller than printed"
    assert size(NAN, 0.1, 0.3) == size(0.2, NAN, NAN) == ""


@pytest.mark.parametrize("unit", ["nats/token", "nats", "nats, log-odds", "parameters", ""])
def test_the_size_of_what_text_and_width_set_is_not_compared(unit: str) -> None:
    """A difference of two losses is of their text and tokenizer; a share, or a cosine, is not."""
    quantities = pd.DataFrame({"quantity": ["x", "y"], "unit": [unit, "cosine"]})
    rows = [row(0.2, 0.1, 0.03, paper=0.5), row(0.2, 0.1, 0.03, paper=0.5, quantity="y")]
    own = [{**one, "unit": of} for one, of in zip(rows, quantities["unit"], strict=True)]
    looked_up = [{name: cell for name, cell in one.items() if name != "unit"} for one in rows]
    for judged in (with_verdicts(own), with_verdicts(looked_up, quantities=quantities)):
        assert judged["size"].tolist() == ["", "smaller than printed"]
    assert with_verdicts(looked_up)["size"].tolist() == ["", ""]


def test_no_published_table_compares_the_size_of_losses() -> None:
    sized = []
    for path in sorted(RESULTS.glob("*/*.parquet")):
        table = pd.read_parquet(path)
        if {"size", "direction"} <= set(table):
            sized.append(table.loc[table["size"] != "", "quantity"])
    found = set(pd.concat(sized))
    assert {"depth.early", "in use"} <= found
    assert not [name for name in found if "loss" in name or name in ("entropy", "parameters")]


def test_every_published_limit_can_hold() -> None:
    """A size below .2 whose smallest effect of interest is .2 could only be negligible, however small it is."""
    never = []
    for path in sorted(RESULTS.glob("*/*claims.parquet")):
        table = pd.read_parquet(path)
        for r in table.itertuples() if {"claim", "smallest"} <= set(table) else ():
            found = re.fullmatch(r".+ (above|below|within) (\d*\.?\d+%?)", r.claim)
            if found and (limit := number(found[2])) > 0:
                most = 1 - limit if found[1] == "above" and limit < 1 else np.inf if found[1] == "above" else limit
                never += [f"{path.parent.name}: {r.claim}, {r.quantity}"] if r.smallest >= most else []
    assert not never


N8 = "kromcanon+n=8 -2, fp32, adamw, 2,850 steps > kromcanon -2, fp32, adamw, 2,850 steps"
ALIKE = {"dst-kron > dst-kron+frozen_token", N8}
"""Orders of which the paper says that the difference is negligible."""


def test_no_printed_difference_is_negligible_before_it_is_measured() -> None:
    """Where the smallest effect of interest is as large as what the paper prints, its own numbers were no effect."""
    never = []
    for path in sorted(RESULTS.glob("*/*.parquet")):
        table = pd.read_parquet(path)
        if not {"claim", "quantity", "paper", "smallest", "direction"} <= set(table):
            continue
        printed = table.set_index(["claim", "quantity"])["paper"].abs()
        for r in table[~table["claim"].isin(ALIKE) & ~table["claim"].str.contains(" = ")].itertuples():
            of = re.sub(r"suppress\.top\d", "suppress.over", r.quantity)  # printed of the heads over the threshold
            size_printed = printed.get((r.claim, of), NAN)
            never += [f"{path.parent.name}: {r.claim}, {r.quantity}"] if size_printed <= r.smallest else []
    assert not never


def test_a_bound_is_judged_by_students_interval_on_its_side() -> None:
    seeds = [0.10, 0.13, 0.12]
    table = planted({("lfa", "x"): seeds})
    above, below, near = (
        bound_row(Bound("x", "lfa", side, text, ""), table)
        for side, text in (("above", "0.075"), ("below", "0.075"), ("below", "0.12"))
    )
    test = stats.ttest_1samp(seeds, 0.075)
    low, high = test.confidence_interval(0.95)
    assert (above["ci_low"], above["ci_high"]) == pytest.approx((low - 0.075, high - 0.075))
    assert above["p"] == below["p"] == pytest.approx(test.pvalue)
    # p .039 alone; three tests correct it
    assert with_verdicts([above])["direction"].tolist() == ["holds"]
    assert with_verdicts([below])["direction"].tolist() == ["opposite"]
    judged = with_verdicts([above, below, near])
    assert judged["direction"].str.startswith("not resolved").all()
    assert judged["alone"].tolist() == ["holds", "opposite", ""]


def test_pairs_are_judged_by_students_interval_of_their_differences() -> None:
    a, b = np.array([1.0, 1.4, 1.9]), np.array([0.9, 1.2, 1.75])
    found = seeds_row(dict(ROW), paired(planted({("a", "x"): list(a), ("b", "x"): list(b)}), "x", "a", "b"))
    test = stats.ttest_rel(a, b)
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found["p"] == pytest.approx(test.pvalue) and found["seeds"] == "3"


def test_seeds_that_all_give_one_number_are_judged_by_it() -> None:
    def verdict(values: list[float], smallest: float = NAN) -> str:
        claim = Bound("x", "lfa", "below", "1.9", "", None if smallest != smallest else smallest)
        judged = with_verdicts([bound_row(claim, planted({("lfa", "x"): values}))])
        assert np.isnan(judged["p"][0]) and "without spread" in judged["undefined"][0]
        return str(judged["direction"][0])

    assert verdict([1.8] * 3) == "holds: the same at n=3 seeds"
    assert verdict([2.0] * 2) == "opposite: the same at n=2 seeds"
    assert verdict([1.9] * 2) == "not resolved at n=2 seeds"
    assert verdict([1.9 + 1e-15] * 2) == "not resolved at n=2 seeds"  # what rounding makes is no difference
    assert verdict([1.89] * 2, 0.05) == "negligible: within ±0.05, the same at n=2 seeds"


def test_one_seed_and_no_run_are_undefined() -> None:
    table = planted({("lfa", "x"): [1.8], ("cfm", "x"): [NAN, NAN]})
    claims = [Bound("x", preset, "above", "1", "") for preset in ("lfa", "cfm", "std-t")]
    judged = with_verdicts([bound_row(claim, table) for claim in claims])
    assert judged["direction"].tolist() == [
        "undefined: one seed of lfa", "undefined: no head", "undefined: no run of std-t"
    ]  # fmt: skip


def test_what_is_counted_is_called_so() -> None:
    found = with_verdicts([measured(dict(ROW), 5.0, 5.0, 5.0, NAN, "3", "")])
    assert found["direction"][0] == f"holds: {COUNTED}" and COUNTED in found["undefined"][0]
    assert verdicts(found).to_dict() == {COUNTED: 1}


def test_the_smallest_effect_is_the_claims_own_or_that_of_its_unit() -> None:
    table = planted({("a", "x"): [1.0]}).assign(unit="nats/token")
    assert smallest(Order("x", "a", "b", ""), table) == 0.01
    assert smallest(Order("x", "a", "b", "", 0.5), table) == 0.5
    assert np.isnan(smallest(Order("y", "a", "b", ""), table))
    assert np.isnan(smallest(Order("x", "a", "b", ""), table.assign(unit="bushels")))


def test_printed_numbers_are_read_from_their_text() -> None:
    assert [number(t) for t in ("22.2M", "48.3%", "-0.158", "+0.00215", "7")] == pytest.approx(
        [22.2e6, 0.483, -0.158, 0.00215, 7]
    )
    with pytest.raises(ValueError, match="no printed number"):
        number("about 3")


def test_the_interval_over_seeds_is_students() -> None:
    x = np.array([1.8, 1.9, 2.3])
    low, high = stats.t.interval(0.95, 2, x.mean(), x.std(ddof=1) / np.sqrt(3))
    found = estimate(x)
    assert (found["mean"], found["ci_low"], found["ci_high"]) == pytest.approx((2.0, low, high))
    assert estimate(x[:1])["why"]["ci_low"] == "one seed"
    assert estimate(np.array([2.0, 2.0]))["why"]["ci_low"] == "seeds without spread"


# ---- a table of claims -------------------------------------------------------------------------


def test_a_p_that_does_not_survive_the_correction_gives_no_verdict() -> None:
    rows = [row(0.2, 0.1, p) for p in (0.001, 0.02, 0.04)] + [row(0.0, 0.1, 0.9) for _ in range(7)]
    judged = with_verdicts(rows)
    assert judged["p_holm"][:3].tolist() == pytest.approx([0.01, 0.18, 0.32])
    assert judged["direction"][:3].tolist() == ["holds", *["not resolved at n=3 seeds, corrected"] * 2]
    assert judged["alone"][:4].tolist() == ["", "holds", "holds", ""]


def test_a_claim_that_cannot_be_judged_is_no_test_of_the_family() -> None:
    rows = [row(0.2, 0.1, 0.03, paper=0.5), row(0.2, 0.1, 0.04, paper=0.5)]
    both, one = with_verdicts(rows), with_verdicts(rows, {1: "confounded: a differs from b in z as well"})
    assert both["direction"].tolist() == ["not resolved at n=3 seeds, corrected"] * 2  # .06 and .06
    assert one["direction"].tolist() == ["holds", "confounded: a differs from b in z as well"]
    assert np.isnan(one.loc[1, ["p", "p_holm"]].astype(float)).all()
    assert one["undefined"][1].count("not judged") and one["size"].tolist() == ["smaller than printed", ""]
    assert one["difference"][1] == 0.2  # the number stays


def test_a_claim_that_was_tested_and_is_not_confirmed_stays_in_the_family() -> None:
    rows = [row(0.2, 0.1, 0.03, paper=0.5), row(0.2, 0.1, 0.04, paper=0.5)]
    judged = with_verdicts(rows, withheld={1: "not resolved on both texts"})
    assert judged["p_holm"].tolist() == pytest.approx([0.06, 0.06]) and judged["p"].tolist() == [0.03, 0.04]
    assert judged["direction"].tolist() == ["not resolved at n=3 seeds, corrected", "not resolved on both texts"]
    assert judged["size"].tolist() == ["smaller than printed", ""] and "not judged" not in judged["undefined"][1]


@pytest.mark.slow
def test_of_null_claims_about_one_table_in_twenty_gets_a_verdict() -> None:
    """Thirty claims without any effect, three seeds each: uncorrected, three tables in four have a verdict."""
    rng, some, alone = np.random.default_rng(0), 0, 0
    for _ in range(200):
        rows = []
        x = rng.normal(size=(30, 3))
        test = stats.ttest_1samp(x, 0, axis=1)
        for mean, low, high, p in zip(x.mean(1), *test.confidence_interval(0.95), test.pvalue, strict=True):
            rows.append(measured(dict(ROW), mean, low, high, p, "3", ""))
        judged = with_verdicts(rows)
        some += bool(judged["direction"].isin(["holds", "opposite"]).any())
        alone += bool(((judged["ci_low"] > 0) | (judged["ci_high"] < 0)).any())
    assert some / 200 < 0.09 and alone / 200 > 0.6


def test_the_summary_counts_every_claim_once_and_says_what_chance_would_do() -> None:
    rows = [
        row(0.2, 0.1, 0.001), row(-0.2, 0.1, 0.001), row(0.0, 0.1, 0.9, paper=0.5), row(0.0, 0.1, 0.8, paper=0.05),
        row(0.2, 0.1, 0.04), row(0.001, 0.001, 0.3, smallest=0.05), measured(dict(ROW), 5, 5, 5, NAN, "3", ""),
        row(0.2, 0.1, 0.001), row(0.2, 0.1, 0.001), measured(dict(ROW), NAN, NAN, NAN, NAN, "0", "no run of a"),
    ]  # fmt: skip
    judged = with_verdicts(rows, {7: "withdrawn: measured otherwise", 8: "confounded: two things"})
    counts = verdicts(judged).to_dict()
    assert counts == {
        "not resolved": 3, "holds": 1, "opposite": 1, "negligible": 1, COUNTED: 1, "withdrawn": 1, "confounded": 1,
        "undefined": 1,
    }  # fmt: skip
    text = summary(judged)
    assert sum(counts.values()) == len(rows) and all(f"{kind}: {n}" in text for kind, n in counts.items())
    assert "1 exclude the printed size" in text and "1 more have an interval on one side of 0" in text
    assert "over 6 tests (about 0.3 such intervals" in text
    assert isinstance(judged, pd.DataFrame) and "why" not in judged


def test_a_seed_that_is_there_twice_does_not_count_as_two() -> None:
    table = planted({("lfa", "x"): [0.2, 0.3], ("std-t", "x"): [0.1, 0.1]}).assign(unit="share")
    twice = pd.concat([table, table[table["preset"] == "lfa"].iloc[1:]], ignore_index=True)
    line = "^seed 1 of lfa has x twice; give each run once$"
    for judge in (
        lambda: bound_row(Bound("x", "lfa", "above", "0.1", ""), twice),
        lambda: order_row(Order("x", "lfa", "std-t", ""), twice),
        lambda: paired(twice, "x", "std-t", "lfa"),
        lambda: over_seeds(twice),
    ):
        with pytest.raises(InputError, match=line):
            judge()
    assert over_seeds(table)["n"].tolist() == [2, 2]
