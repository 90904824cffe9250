"""Claims about one model: `claims.toml`, and the rule by which `papers.claims.single` judges it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired

import pandas as pd
from scipy import optimize, stats
from typing_extensions import TypedDict

from streamscope.cli.disk import Config, read_json
from streamscope.instruments.table import read_about
from streamscope.instruments.undefined_cells import note, reasons
from streamscope.models.checkpoint import read_manifest, run_folder
from streamscope.papers.claims.judged import NAN, WITH_CI, Tables, interval, lacking
from streamscope.papers.claims.ledger import Key
from streamscope.papers.comparison.printed import SMALLEST, number
from streamscope.papers.comparison.verdicts import CANNOT, NEGLIGIBLE, OPPOSITE, measured, with_verdicts

CLAIMS = "claims.toml"
NO_HEAD = "no such head"
NO_INTERVAL = "the table has no interval"
NO_LEAST = "the claim is that there is no effect: its limit says how large one may be"
INDEPENDENT = ("clusters", "layers", "documents", "n")
"""Columns that say how many independent units an interval has, the first that is there: a slope over depth has layers,
predictions over tokens have documents, a table of `papers.lfa` counts independent cases only."""


LOPSIDED = 1e-6
"""Halves of a Student interval differ by rounding, by no more than this share."""
FEWEST = 0.99
"""Degrees of freedom of a Student interval: 1, less what rounding may take."""


class Span(TypedDict):
    """The row and column that say how much a curve spans, in the unit of `smallest`, with its interval."""

    table: str
    row: dict[str, str]
    value: str


class SingleClaim(TypedDict):
    """A claim of `claims.toml`."""

    run: str
    """The model, as stories/lfa."""
    quantity: str
    """What is measured; with model, side and limit it names the claim."""
    where: str
    """Place in the paper."""
    table: str
    """File in the folder of `claims.toml`, or its path from there."""
    row: dict[str, str]
    """Columns and what they hold, so that one row is selected."""
    value: str
    """The column with the measured value."""
    side: Literal["above", "below", "within"]
    limit: NotRequired[str]
    """As printed; 0 if it is left out."""
    unit: str
    smallest: NotRequired[float]
    """The smallest effect of interest, where it is not that of the unit."""
    p: NotRequired[str]
    """The column of p, where the limit is 0 and the table corrected over more rows than this one."""
    flat: NotRequired[Span]
    """For a claim about the shape of a curve: what it spans."""
    there_is: NotRequired[bool]
    """Whether the claim is that there is such a thing: resolved on the other side it is absent, as at the gate."""
    has: NotRequired[tuple[str, ...]]
    """Phenomena that the claim speaks of."""
    does: NotRequired[tuple[str, ...]]
    """Tasks that the claim is about."""


class File(TypedDict):
    """`claims.toml`."""

    claim: tuple[SingleClaim, ...]


def judged(claims: Sequence[SingleClaim], folder: Path, gate: Path) -> pd.DataFrame:
    """One row per claim with its verdict. Raises `InputError` for a row that no key or two rows have."""
    tables, gates = Tables(folder), Tables(gate.parent)
    rows = [_row(one, tables, f"{folder / CLAIMS}: {one['quantity']}") for one in claims]
    instead = {i: why for i, one in enumerate(claims) if (why := absent(one, gates, gate.name))}
    withheld = {i: why for i, one in enumerate(claims) if i not in instead and (why := flat(one, tables))}
    table = with_verdicts(rows, instead, withheld=withheld)
    n = table.pop("seeds")
    cases = " independent cases, one training seed"
    verdicts = table["direction"].str.replace(" seeds", cases, regex=False)
    for i, one in enumerate(claims):
        if one.get("there_is") and verdicts[i].startswith(OPPOSITE):
            verdicts[i] = f"{NO_HEAD}: {one['quantity']} of {one['run']} not {one['side']} {one.get('limit', '0')}"
    return table.assign(clusters=n, direction=verdicts)


def _row(one: SingleClaim, tables: Tables, where: str) -> dict[str, Any]:
    """The row without its verdict (`papers.comparison.verdicts.measured`)."""
    found = tables.row(Key(one["table"], tuple(one["row"].items()), one["value"], False), where)
    text = one.get("limit", "0")
    limit, sign = number(text), 1.0 if one["side"] == "above" else -1.0
    value, (low, high) = float(found[one["value"]]), interval(one["value"], found)
    clusters = int(next((found[name] for name in INDEPENDENT if name in found), 0))
    df = interval_df(value, low, high, _own_p(one["value"], found), clusters)
    p = float(found[one["p"]]) if "p" in one else student(value, low, high, limit, df)
    difference = sign * (value - limit)
    ends = sorted((sign * (low - limit), sign * (high - limit))) if low == low else [low, high]
    if one["side"] == "within":
        difference, ends = limit - abs(value), [limit - max(-low, high), limit - max(low, -high, 0.0)]
        p = max(p, student(value, low, high, -limit, df))
    why = reasons(str(found.get("undefined", ""))).get(one["value"], "undefined") if value != value else ""
    row = {
        "claim": f"{one['run']} {one['side']} {text}", "run": one["run"], "quantity": one["quantity"],
        "where": one["where"], "table": one["table"], "unit": one["unit"], "paper": NAN, "printed": text,
        "value": value, "value_low": low, "value_high": high,
        "smallest": NAN if one["side"] == "within" else least(one),
        "n": str(found.get("n", clusters or "")),
    }  # fmt: skip
    missing = {name: why or NO_INTERVAL for name in ("value", "value_low", "value_high") if row[name] != row[name]}
    missing |= {"smallest": NO_LEAST} if one["side"] == "within" else {}
    found_row = measured(row, difference, ends[0], ends[1], p, str(clusters), why)
    return {**found_row, "undefined": note({**reasons(found_row["undefined"]), **missing})}


def least(one: SingleClaim) -> float:
    """The smallest effect of interest: the claim's own, or that of its unit."""
    return one.get("smallest", SMALLEST.get(one["unit"], NAN))


def _own_p(name: str, found: dict[str, Any]) -> float:
    """The p that a table itself has of a column, that it is 0; NaN where it has none."""
    own = f"{name}_p" if f"{name}_low" in found else "p" if name in WITH_CI else ""
    return float(found.get(own, NAN))


def interval_df(value: float, low: float, high: float, p: float, clusters: int) -> float:
    """Degrees of freedom of a 95 % Student interval, from the p of the same test that the value is 0.

    Clusters of unequal size have fewer than one less than their number D (`estimators.degrees_of_freedom`), and tables
    have no column of them. With h half the width of the interval they are the solution, between 1 and D − 1, of

        p = 2 P(T_df > |value| / h · t_df(.975))

    D − 1, the most there can be, where there is no solution: the table has no p, the interval is lopsided (a
    bootstrap's), or p is of another test.
    """
    half, most = high - value, float(clusters - 1)
    if most < 1:
        return NAN
    if not 0 < p < 1 or not half > 0 or abs(value - low - half) > LOPSIDED * half:
        return most

    def excess(df: float) -> float:
        return float(2 * stats.t.sf(abs(value) / half * stats.t.ppf(0.975, df), df)) - p

    if (excess(FEWEST) > 0) == (excess(most) > 0):
        return most
    return float(optimize.brentq(excess, FEWEST, most))


def student(value: float, low: float, high: float, limit: float, df: float) -> float:
    """Two-sided p that the value is the limit, from the half of its 95 % interval on the limit's side."""
    half = value - low if limit < value else high - value
    if not half > 0 or not df > 0:
        return NAN
    return float(2 * stats.t.sf(abs(value - limit) / half * stats.t.ppf(0.975, df), df))


def flat(one: SingleClaim, tables: Tables) -> str:
    """That a curve does not show a span; "" where it does, or the claim is about no curve."""
    if "flat" not in one:
        return ""
    of = one["flat"]
    found = tables.row(Key(of["table"], tuple(of["row"].items()), of["value"], False), CLAIMS)
    low, high = interval(of["value"], found)
    spans = f"the curve spans {float(found[of['value']]):+.2g} ({low:+.2g} … {high:+.2g}) {one['unit']}"
    if -least(one) <= low and high <= least(one):
        return f"{NEGLIGIBLE}: {spans}"
    return f"not resolved: {spans}, no shape to judge" if low <= 0 <= high else ""


def absent(one: SingleClaim, gates: Tables, name: str) -> str:
    """Why the gate leaves nothing to judge: what is spoken of is absent, or the task is at chance; "" otherwise."""
    for phenomena, begin in ((one.get("has", ()), NO_HEAD), (one.get("does", ()), CANNOT)):
        for phenomenon in phenomena:
            pairs = (("run", one["run"]), ("phenomenon", phenomenon))
            row = gates.row(Key(name, pairs, "value", False), f"{one['quantity']}: the gate")
            if row["verdict"] == "absent" or (begin == CANNOT and row["verdict"] != "present"):
                return f"{begin}: {lacking(row)}"
    return ""


def trained(folder: Path) -> dict[str, Any]:
    """How the models of the folder's tables were trained, in the form of a comparison's `trained.json`."""
    names: dict[str, None] = {}
    for path in sorted(folder.glob("*.parquet")):
        run = read_about(path).get("about", {}).get("run", [])
        names |= dict.fromkeys([run] if isinstance(run, str) else run)
    runs = []
    for name in sorted(names):
        where = run_folder(name)
        manifest, config = read_manifest(where), read_json(where / "config.json", Config)
        kept = {k: manifest[k] for k in ("preset", "scale", "seed", "steps", "commit") if k in manifest}
        runs.append({"folder": name, "preset": manifest["preset"], "seed": manifest["seed"], "manifest": kept,
                     "config": {"training": config["training"], "model": config["model"]}})  # fmt: skip
    return {"runs": runs}
