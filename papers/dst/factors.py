"""How the weights begin and how long they are trained, as factors of DST's claims about one model.

The paper does not say how its weights begin, and its models saw far more text than those here; what a model loses
without a stream, and under sharpened attention, may depend on both. A model is therefore measured in *cells*: begun in
more than one way (`init.weights`, `init.embed`), and at snapshots of its training, which are the doses of tokens. A
claim that it lies above or below a limit has a verdict where every cell gives the same one (`Cells.instead`).

    dst-kron                 the initialization that most arms of the comparison have, at the end of training
    dst-kron+normal          the same model, begun in another way
    dst-kron@1000            the first again, after 1,000 steps
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pandas as pd

from streamscope.models.checkpoint import snapshots
from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import from_dict
from streamscope.models.runs import evaluations
from streamscope.papers.comparison.printed import Bound, Order
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import seeds_of
from streamscope.papers.comparison.verdicts import bound_row, with_verdicts

FACTORS = ("init.weights", "init.embed")
"""In what runs of a comparison may differ, besides their steps."""
DOSE = 0.5
"""The share of a training at which a run is measured as well (`with_doses`)."""
MODES = {
    "gap": "token_factor", "degradation": "frozen_token", "peak": "frozen_token", "spread": "frozen_token",
    "straight": "frozen_token", "recovered": "frozen_token", "kept": "frozen_token",
}  # fmt: skip
"""First word of a quantity -> the mode of the paper's models: Table 4 has token-factor ones, Table 5 and Figs. 2 and 4
frozen-token ones."""
RESOLVED = ("holds", "opposite", "negligible")
LEAST_CHANNELS = 32
"""Of a head: "Head dimension should not fall below 32 to avoid capacity bottlenecks" (§5.2); in Table 3 none does."""


# ---- cells -------------------------------------------------------------------------------------


def init_of(run: Run) -> str:
    """The rule of a run's weights, and that of its embedding where it is another: normal, fan_in_normal/normal."""
    words, begun = [], from_dict(ModelConfig, run.config["model"]).init
    for rule in (begun.weights, begun.embed):
        own = [f".{f.name}={getattr(rule, f.name)}" for f in fields(rule) if getattr(rule, f.name) != f.default]
        words.append(f"{rule.kind}{''.join(own)}")
    return "/".join(dict.fromkeys(words))


def cell(init: str, tokens: int) -> str:
    """A cell in a sentence."""
    return f"{init}, {tokens / 1e6:.3g} M tokens"


def with_cells(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their cells: +INIT where they did not begin as most arms did (of equals, as the first
    given), @STEP where others were trained for longer."""
    counts = Counter(init for _, init in dict.fromkeys((run.preset + run.variant, init_of(run)) for run in runs))
    usual = max(counts, key=counts.__getitem__)
    last = max(run.manifest["steps"] for run in runs)
    named_runs = []
    for run in runs:
        began = "" if init_of(run) == usual else f"+{init_of(run)}"
        named_runs.append(replace(run, cell=began + (f"@{step}" if (step := run.manifest["steps"]) < last else "")))
    return named_runs


def with_doses(runs: Sequence[Run]) -> list[str]:
    """The folders of the runs, and of those that began in more than one way a snapshot near half of their training.

    It is the nearest to `DOSE` of the steps at which the run was evaluated; a run without such a step has none.
    """
    cells, folders = Cells(runs), [str(run.folder) for run in runs]
    for run in runs:
        if len({init_of(one) for one in cells.of(run.preset + run.variant).values()}) < 2:
            continue
        evaluated = {row["step"] for row in evaluations(run.folder)}
        steps = [row["step"] for row in snapshots(run.folder) if row["step"] in evaluated]
        if steps := [step for step in steps if 0 < step < run.manifest["steps"]]:
            nearest = min(steps, key=lambda step: abs(step - DOSE * run.manifest["steps"]))
            folders.append(f"{run.folder}@{nearest}")
    return folders


@dataclass(frozen=True)
class Cells:
    """Which arms are one model in other cells of the factors, and of which mode it is.

    Without runs every arm is its own only cell and nothing is confounded: quantities that were planted.
    """

    runs: Sequence[Run] = ()
    _first: dict[str, Run] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", {run.arm: run for run in reversed(self.runs)})

    def of(self, model: str) -> dict[str, Run]:
        """The cells of a model by the names of their arms, its own first."""
        mine = {run.arm: run for run in self.runs if run.preset + run.variant == model}
        return dict(sorted(mine.items(), key=lambda one: one[0] != model))

    def models(self, arms: Sequence[str]) -> list[str]:
        """Those of the arms that are no other cell of a model."""
        return [arm for arm in arms if arm not in self._first or not self._first[arm].cell]

    def instead(self, claim: Bound, row: dict[str, Any], factor_rows: pd.DataFrame) -> str:
        """Why a claim about one model cannot be judged on these runs, whatever they say; "" where it can, and where
        there is nothing to judge. `factor_rows` are the rows of `factors`."""
        if not self.runs or row["difference"] != row["difference"] or _kind(claim) not in MODES:
            return ""  # MODES lacks what is about several models: an order
        own, theirs = self._first[claim.preset].config["model"]["residual"]["kind"], MODES[_kind(claim)]
        if own != theirs:
            return f"confounded: {claim.preset} is {_word(own)}, the paper's model {_word(theirs)}"
        mine = factor_rows[(factor_rows["claim"] == row["claim"]) & (factor_rows["quantity"] == claim.quantity)]
        if mine["alone"].iloc[0].startswith("undefined"):
            return ""  # as it stands
        words = {"init": "one initialization", "tokens": "one amount of tokens"}
        if only := [word for column, word in words.items() if mine[column].nunique() < 2]:
            where = "; ".join(mine["cell"])
            return f"confounded: measured with {' and '.join(only)} ({where}), on which it may depend"
        return ""

    def withheld(self, claim: Bound, row: dict[str, Any], factor_rows: pd.DataFrame) -> str:
        """That the cells of a claim's model do not have one verdict; "" where they do.

        It is found in the values, so the claim stays in the family (`comparison.verdicts.with_verdicts`).
        """
        if not self.runs or row["difference"] != row["difference"] or _kind(claim) not in MODES:
            return ""
        mine = factor_rows[(factor_rows["claim"] == row["claim"]) & (factor_rows["quantity"] == claim.quantity)]
        sides = [next((word for word in RESOLVED if text.startswith(word)), "not resolved") for text in mine["alone"]]
        if len(set(sides)) < 2:
            return ""
        cells = (f"{where}: {one}" for where, one in zip(mine["cell"], sides, strict=True))
        return f"confounded: not one verdict over initialization and tokens ({'; '.join(cells)})"

    def narrow(self, claim: Order) -> str:
        """Why a claim about two numbers of heads cannot be judged, as their heads are too small; else ""."""
        shapes = {arm: self._first[arm].config["model"] for arm in (claim.more, claim.less) if arm in self._first}
        widths = {arm: shape["d_model"] // shape["n_heads"] for arm, shape in shapes.items()}
        if len({shape["n_heads"] for shape in shapes.values()}) < 2 or min(widths.values()) >= LEAST_CHANNELS:
            return ""
        channels = " and of ".join(f"{width}" for width in widths.values())
        return f"not measurable here: heads of {channels} channels, where §5.2 asks for {LEAST_CHANNELS}"


def _kind(claim: Bound) -> str:
    return claim.quantity.split(".")[0]


def _word(mode: str) -> str:
    """A mode in a sentence."""
    return {"single": "single-stream", "frozen_token": "frozen-token", "token_factor": "token-factor"}.get(mode, mode)


# ---- the table ---------------------------------------------------------------------------------


def factors(quantities: pd.DataFrame, bounds: Sequence[Bound], cells: Cells) -> pd.DataFrame:
    """One row per claim about one model and cell of it: what is measured there with its interval over seeds.

    `alone` is the verdict by this interval alone (`comparison.verdicts`), p not corrected: it says whether the cells
    agree. `runs` counts those whose own value has the sign that the paper says.
    """
    rows = []
    for claim in bounds:
        name = bound_row(claim, quantities)["claim"]
        for arm, run in cells.of(claim.preset).items():
            row = bound_row(claim._replace(preset=arm), quantities)
            alone = with_verdicts([row]).iloc[0]
            kept = {name: alone[name] for name in ("difference", "ci_low", "ci_high", "p", "seeds", "undefined")}
            rows.append({
                "claim": name, "quantity": claim.quantity, "preset": arm,
                "init": init_of(run), "tokens": run.tokens_seen, "cell": cell(init_of(run), run.tokens_seen),
                "runs": agreeing(claim, quantities, arm), **kept, "alone": alone["direction"],
            })  # fmt: skip
    return pd.DataFrame(rows)


def agreeing(claim: Bound, quantities: pd.DataFrame, arm: str) -> str:
    """How many runs of an arm have the sign that the paper says, as "2 of 3"."""
    values, _ = seeds_of(quantities, claim.quantity, arm)
    sign = 1 if claim.side == "above" else -1
    return f"{int((sign * (values - claim.limit) > 0).sum())} of {len(values)}"
