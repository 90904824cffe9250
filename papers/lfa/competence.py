"""Which numbers of LFA say anything: where heads look for nouns is about models that copy them.

A model copies when, over its training seeds, the 95 % interval lies above the limit of the gate (`probes.phenomena`) of

    copying      what the gate measures, log-odds of the coherent word that are due to the nouns of the text
    induction    in comparisons from before the gate was part of them: the largest induction score of any head

Where seeds leave no interval, the mean itself has to lie above the limit; what was not measured is not above anything.
A claim about heads of a model that does not copy is no evidence for or against anything; it gets that as its verdict.

Three kinds of claims need less. Parameters, losses and what they cost need no competence. PDS needs none: how far
attention goes by position can be measured whatever the model does with it (§5.1), and the paper says that in CFM
such heads fail to form (App. C). Of heads that keep to their noun (`stability`) only the arm has to copy that is
said to have more: that the other has none, since it cannot learn the task, is what the paper claims of CFM (§3.1,
§4.2).
"""

import pandas as pd

from streamscope.instruments.undefined_cells import note
from streamscope.papers.comparison.seeds import estimate, nothing, seeds_of
from streamscope.probes.phenomena import PHENOMENA

COPYING, INDUCTION = "copying", "induction.max"
READ = {COPYING: "copying", INDUCTION: "not gated, induction"}
"""What is read of a comparison, the first that it has -> its name in a sentence."""
ALWAYS = ("loss", "cost", "parameters", "copying", "induction", "prompts", "pds")
"""First words of the quantities that need no competence."""
FAILS = "stability"
"""First word of the quantities of which the paper says that an arm has few because it fails."""


def needs_copying(quantity: str) -> bool:
    """Whether a quantity is about where heads look for nouns."""
    return quantity.split(".")[0] not in ALWAYS


def competence(quantities: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: what says whether it copies, its mean over seeds with a 95 % interval, and why it cannot.

    `cannot` is "" where it copies.
    """
    measured = set(quantities["quantity"])
    read = next((name for name in READ if name in measured), COPYING)
    (gate,) = (one for one in PHENOMENA if one.name == read.split(".")[0])
    rows = []
    ends = ("mean", "ci_low", "ci_high")
    for preset in dict.fromkeys(quantities["preset"]):
        values, _ = seeds_of(quantities, read, preset)
        numbers = estimate(values, "" if len(values) else nothing(quantities, read, preset))
        mean, low, high = (numbers[name] for name in ends)
        width = "" if low != low else f" ({low:+.3f} … {high:+.3f})"
        cannot = f"{READ[read]} {mean:+.3f}{width} of {preset}, not above {gate.limit:g}"
        if (mean if low != low else low) > gate.limit:
            cannot = ""
        elif mean != mean:
            cannot = f"{READ[read]} of {preset} not measured"
        row = {"preset": preset, "task": COPYING, "quantity": read, "unit": gate.unit, "n": numbers["n"]}
        row |= {"mean": mean, "ci_low": low, "ci_high": high, "limit": gate.limit, "cannot": cannot}
        rows.append({**row, "undefined": note({k: why for k, why in numbers["why"].items() if k in ends})})
    return pd.DataFrame(rows)


def unable(quantity: str, presets: tuple[str, ...], able: pd.DataFrame, few: str = "") -> str:
    """Why a quantity of these arms says nothing, by the table of `competence`; "" where it does.

    `few` is the arm of which a claim says that it has little of it.
    """
    if not needs_copying(quantity):
        return ""
    if quantity.split(".")[0] == FAILS:
        presets = tuple(preset for preset in presets if preset != few)
    cannot = dict(zip(able["preset"], able["cannot"], strict=True))
    return ", ".join(text for preset in presets if (text := cannot.get(preset, "")))
