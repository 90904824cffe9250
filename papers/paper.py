"""Runs × numbers: the long table of a paper, and its estimates over training seeds.

`results/PAPER/measured.parquet` has a row per training (`grid`), arm, seed and number; `part` is a head, a layer or a
task, and `x` what a figure has on its horizontal axis. Everything that a page shows is a selection of it. The rows of
`results/differences/measured.csv`, many seeds of small models on text that pays for attention, are the grid
`differences` of every paper. `measure_runs` measures more runs, with the same names.

An estimate is a mean over training seeds with a 95 % t interval. A difference of two arms has Welch's interval
(`papers.primary.contrast`), also where both arms have the same seeds; a ratio that of the difference of logarithms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from streamscope.cli.disk import TrainedConfig, read_json
from streamscope.cli.errors import InputError, unknown
from streamscope.instruments.data import Documents, check_tokenizer
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.models.checkpoint import load as load_model
from streamscope.models.checkpoint import read_manifest
from streamscope.models.training.config import tokens_seen
from streamscope.papers.primary import LEVEL, PAPERS, contrast
from streamscope.probes.phenomena.measure import losses_and_depths
from streamscope.probes.probe import measure

RESULTS = PAPERS.parent / "results"
NAMES = ("dst", "lfa", "hdpl", "pls", "krom")
PAGES = (*NAMES, "scorecard")
"""The papers, and the comparison of all architectures, which is a page alike."""
COLUMNS = (
    "grid", "arm", "seed", "quantity", "part", "x", "value", "unit", "parameters", "tokens", "text", "command",
    "commit", "weights",
)  # fmt: skip
"""Columns of the long table: see the head of this module; `text` is the training text in words."""
KEY = ("grid", "arm", "seed", "quantity", "part", "x")
"""Names a row. What the measures of a paper and the registered claims both have is taken from the latter."""
SMALL = "planted stories and TinyStories"
"""Training text of the grid `differences`."""
PAIRS, DOCUMENTS = 600, 300
"""Pairs of held-out nouns, and held-out stories, that a run is measured on."""
OWN = "own runs"
"""The grid of runs that a reader gives."""


def load(paper: str) -> pd.DataFrame:
    """The long table of a paper with the grid `differences`. Raises `InputError` for a name that is no paper."""
    if paper not in PAGES:
        raise unknown("paper", paper, list(PAGES))
    tables = [pd.read_parquet(RESULTS / paper / "measured.parquet")]
    new = RESULTS / "differences" / "measured.csv"
    if new.is_file():
        tables.append(with_parts(pd.read_csv(new)).assign(grid="differences", text=SMALL))
    rows = complete(pd.concat(tables, ignore_index=True))
    rows = rows.assign(text=rows["text"].mask(rows["grid"] == "differences", SMALL))
    return rows.drop_duplicates(list(KEY), keep="last")


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with every column of the long table; what they lack is empty."""
    rows = rows.reindex(columns=list(COLUMNS))
    texts = ["grid", "part", "text", "command", "commit", "weights", "unit"]
    return rows.assign(**{name: rows[name].astype(object).where(rows[name].notna(), "") for name in texts})


def with_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """`pds.L5` as the quantity `pds` of the part L5."""
    names = rows["quantity"].str.extract(r"^(?P<quantity>.*?)(?:\.(?P<part>L\d+))?$")
    return rows.assign(quantity=names["quantity"], part=names["part"].fillna(""))


# ---- estimates ---------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A number of one arm, or of two, with its interval over training seeds."""

    mean: float
    low: float
    high: float
    n: tuple[int, ...]
    """Seeds of each arm."""
    values: np.ndarray
    """Of each seed; empty for a difference."""
    p: float = float("nan")
    """Of a difference or ratio: that there is none, two-sided."""


@dataclass(frozen=True)
class Selection:
    """Which rows of a table a cell shows."""

    arm: str
    """One arm; "lfa − std-t" for a difference, in percent of the second where the unit is percent and that of the rows
    is not; "cfm / lfa" for a ratio."""
    quantity: str
    part: str = ""
    x: float = float("nan")
    grid: str = ""

    def of(self, rows: pd.DataFrame, arm: str) -> pd.DataFrame:
        """The rows of one arm, a row per seed. Raises `InputError` where a seed has two."""
        arm_rows = rows[rows["quantity"] == self.quantity]  # one column after the other: few rows are left
        for name, value in (("arm", arm), ("part", self.part), *([("grid", self.grid)] if self.grid else [])):
            arm_rows = arm_rows[arm_rows[name] == value]
        x = arm_rows["x"].astype(float)
        arm_rows = arm_rows[(x.isna() if np.isnan(self.x) else np.isclose(x, self.x)) & arm_rows["value"].notna()]
        if arm_rows["seed"].duplicated().any():
            raise InputError(f"{arm}, {self.quantity} {self.part}: seeds have several rows; give the grid")
        return arm_rows


def estimate(rows: pd.DataFrame, choice: Selection, unit: str = "") -> Estimate | None:
    """The estimate of a selection; None where an arm has no rows. One seed has no interval."""
    for sign in (" − ", " / "):
        if sign in choice.arm:
            arm_rows = [choice.of(rows, arm) for arm in choice.arm.split(sign)]
            return None if any(part.empty for part in arm_rows) else _of_two(arm_rows, sign, unit)
    arm_rows = choice.of(rows, choice.arm)
    return None if arm_rows.empty else _of_one(arm_rows["value"].to_numpy(float), arm_rows["unit"].iloc[0])


ENDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("heads", "clusters", "tokens", "prompts", "sd of a probability", "range of a probability",
                     "size of a change"), (0.0, np.inf)),
    **dict.fromkeys(("share of tokens", "share of prompts", "share of clusters", "share of heads", "probability",
                     "|Spearman's ρ|"), (0.0, 1.0)),
}  # fmt: skip
"""Units whose values have ends, which are those of an interval as well."""


def _of_one(values: np.ndarray, unit: str) -> Estimate:
    n = len(values)
    mean = float(values.mean() if np.ptp(values) else values[0])
    sd = float(values.std(ddof=1)) if n > 1 and np.ptp(values) else 0.0  # of equal values not what rounding leaves
    half = float(t.isf(LEVEL / 2, n - 1) * sd / np.sqrt(n)) if n > 1 else float("nan")
    low, high = mean - half, mean + half
    bottom, top = ENDS.get(unit, (-np.inf, np.inf))
    if bottom <= values.min() and values.max() <= top and n > 1:
        low, high = max(low, bottom), min(high, top)
    return Estimate(mean, low, high, (n,), values)


def _of_two(arm_rows: Sequence[pd.DataFrame], sign: str, unit: str) -> Estimate:
    """Difference or ratio of two arms. In percent, the mean of the second is taken as known."""
    first, second = (rows["value"].to_numpy(float) for rows in arm_rows)
    n = (len(first), len(second))
    if sign == " / ":
        if min(first.min(), second.min()) <= 0:
            return Estimate(float(first.mean() / second.mean()), float("nan"), float("nan"), n, np.array([]))
        first, second = np.log(first), np.log(second)
    scale = 100 / abs(float(second.mean())) if unit == "percent" and arm_rows[0]["unit"].iloc[0] != "percent" else 1.0
    if min(n) > 1:
        difference, error, df = contrast({"one": first, "other": second}, {"one": 1.0, "other": -1.0})
        half = float(t.isf(LEVEL / 2, df)) * error
        p = float(2 * t.sf(abs(difference) / error, df)) if error else float("nan")
    else:
        difference, half, p = float(first.mean() - second.mean()), float("nan"), float("nan")
    ends = np.array([difference, difference - half, difference + half])
    mean, low, high = map(float, np.exp(ends) if sign == " / " else ends * scale)
    return Estimate(mean, low, high, n, np.array([]), p)


# ---- measuring ---------------------------------------------------------------------------------


@dataclass
class Run:
    """A trained model with what several numbers read, and the rows that were found."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: Any = load_model(self.folder)
        self.tokenizer = check_tokenizer(self.model)
        self.last = self.model.config.n_layers - 1

    def add(self, quantity: str, unit: str, value: Any, part: str = "", x: float = float("nan")) -> None:
        """One row."""
        self.rows.append({"quantity": quantity, "part": part, "x": x, "value": float(value), "unit": unit})

    @cached_property
    def pairs(self) -> Any:
        """The pairs of held-out nouns of suite `stories`, aligned."""
        return self.suite("stories", PAIRS)

    def suite(self, name: str, n: int | None = None) -> Any:
        """The aligned prompts of a suite."""
        return align(load_suite(name, n=n), self.tokenizer, self.model.config.n_ctx)

    def probe(self, probe: Any, edits: Any = None, prompts: Any = None) -> Any:
        """The table of a probe on prompts, `pairs` unless others are given: a row per prompt (or pair) and head."""
        suite = self.pairs if prompts is None else prompts
        return measure(self.model, probe, suite, edits=edits, tokenizer=self.tokenizer)

    def loss(self, data: str) -> float:
        """Nats per token over the first documents of a corpus."""
        total = open_data(Documents(data=data, max_documents=DOCUMENTS), self.model)
        sums, _ = total.sums(self.model.cfg.device, losses_and_depths(self.model, every=0))
        return float(sums["losses"].sum() / sums["targets"].sum())


def measure_runs(
    folders: Sequence[Path], measures: Sequence[Callable[[Run], None]], text: str, command: str
) -> pd.DataFrame:
    """The rows of runs called ARM-sSEED, as the grid `OWN`.

    Raises `InputError` for a run of another name or one that has not ended.
    """
    tables = []
    for folder in folders:
        arm, _, seed = folder.name.rpartition("-s")
        if not arm or not seed.isdigit():
            raise InputError(f"{folder}: a run is called ARM-sSEED, such as lfa-s20")
        manifest = read_manifest(folder)
        if manifest.get("outcome") != "completed":
            raise InputError(f"{folder} has not ended; `python -m models.train --resume` goes on")
        run = Run(folder)
        for measure_part in measures:
            measure_part(run)
        about = {
            "grid": OWN, "arm": arm, "seed": int(seed), "parameters": run.model.n_params(), "text": text,
            "tokens": tokens_of(folder, manifest), "command": command, "weights": manifest["weights"],
        }  # fmt: skip
        tables.append(pd.DataFrame(run.rows).assign(**about))
    return complete(pd.concat(tables, ignore_index=True))


def tokens_of(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Training tokens of a run that has ended."""
    config = read_json(folder / "config.json", TrainedConfig)
    return tokens_seen(config["training"], config["model"]["n_ctx"], manifest["step"])
