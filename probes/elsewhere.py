"""The control of coherence: the same question after another prompt's nouns.

"Mia found a crayon and a basket. She used it to draw. She looked at the" can be answered without its first sentence:
what one draws with is known from the verb. So the sentences that hold the nouns are exchanged for those of another
prompt of the same relation, whose nouns are of the same kinds but other words; what remains of the log-odds is not due
to the nouns of the text.

    own text        opening_i + rest_i
    elsewhere       opening_j + rest_i      j of another pair, same relation, no noun of i in it, its rest begins alike
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamscope.probes.suite import Prompt, Suite

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.probes.align import Aligned

_END = re.compile(r"[.!?][\"'”’]?\s+")
COLUMNS = ("elsewhere", "due", "due_low", "due_high", "due_p", "lift")
NO_CONTROL = "no nouns in sentences of their own before the query, or no other prompt that fits"
UNITS = {
    "elsewhere": "nats, the same prompts after another prompt's nouns",
    "due": "nats, log-odds − elsewhere, on the prompts that have a control",
    "due_low": "nats",
    "due_high": "nats",
    "lift": "nats, mean over both continuations of ln p − ln p elsewhere",
    "controls": "prompts with a control",
}


def opening(prompt: Prompt) -> int | None:
    """Characters up to the end of the sentence that holds the last noun; None if the query lies inside it."""
    nouns = [span for role, span in prompt.roles.items() if role != "query"]
    if not nouns:
        return None
    end = _END.search(prompt.text, max(stop for _, stop in nouns))
    return end.end() if end is not None and end.end() <= prompt.roles["query"][0] else None


def elsewhere(aligned: "Aligned", seed: int = 0) -> Suite | None:
    """The prompts of `aligned` that can have a control, each after another's opening; None if there is none.

    Ids and continuations stay, roles but the query go. The donor is drawn among those that fit, by `seed`.
    """
    import numpy as np

    cut = {p.id: opening(p) for p in aligned.prompts if p.coherent is not None}
    usable = [p for p in aligned.prompts if cut.get(p.id) is not None]
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str | None, str], list[Prompt]] = {}
    for p in usable:
        groups.setdefault((p.relation, _first_word(p, cut)), []).append(p)
    made = []
    for p in usable:
        donors = groups[p.relation, _first_word(p, cut)]
        for i in rng.permutation(len(donors))[:50]:
            donor, stop, own = donors[i], cut[donors[i].id], cut[p.id]
            assert stop is not None and own is not None
            other = donor.text[:stop]
            if (donor.pair or donor.id) != (p.pair or p.id) and not _names(p) & set(re.findall(r"\w+", other.lower())):
                start, end = p.roles["query"]
                made.append(
                    replace(
                        p, text=other + p.text[own:], roles={"query": (start - own + stop, end - own + stop)},
                        pair=None, order=None,
                    )
                )  # fmt: skip
                break
    return Suite(f"{seed}-elsewhere", tuple(made), "other prompts' openings") if made else None


def _first_word(prompt: Prompt, cut: Mapping[str, int | None]) -> str:
    found = re.match(r"\W*(\w+)", prompt.text[cut[prompt.id] :])
    return found[1] if found else ""


def _names(prompt: Prompt) -> set[str]:
    """The words of its nouns."""
    spans = [span for role, span in prompt.roles.items() if role != "query"]
    return {word for start, end in spans for word in re.findall(r"\w+", prompt.text[start:end].lower())}


def due_to_nouns(table: "pd.DataFrame", control: "pd.DataFrame | None") -> "pd.DataFrame":
    """Per relation (and "all"): `elsewhere`, the mean log-odds of the control, and `due`, own − control, with interval.

    `lift` is how much likelier the text's nouns make both of its words, in nats: copying without a choice. All are over
    the prompts that have a control, clusters as in `table`; undefined, with the reason, where none has.
    """
    import pandas as pd

    from streamscope.probes.report import estimate
    from streamscope.probes.undefined import note, reasons

    names = ["log_odds", "log_p", "log_p_incoherent"]
    after = pd.DataFrame(columns=["id", *names]) if control is None else control[["id", *names]]
    both = table.merge(after, on="id", suffixes=("", "_after")).rename(columns={"log_odds_after": "elsewhere"})
    both["lift"] = sum(both[n] - both[f"{n}_after"] for n in names[1:]) / 2
    named = table[table["relation"] != ""]
    rows: list[dict[str, Any]] = []
    for name in ["all", *sorted(named["relation"].unique())]:
        one = both if name == "all" else both[both["relation"] == name]
        if one.empty:
            why = note(dict.fromkeys(COLUMNS, NO_CONTROL))
            rows.append({"relation": name, "controls": 0, **dict.fromkeys(COLUMNS, float("nan")), "undefined": why})
            continue
        found = estimate(one["log_odds"] - one["elsewhere"], one["cluster"])
        why = note({f"due_{k.removeprefix('ci_')}": r for k, r in reasons(found["undefined"]).items() if k != "sd"})
        rows.append(
            {
                "relation": name, "controls": len(one), "elsewhere": float(one["elsewhere"].mean()),
                "due": found["mean"], "due_low": found["ci_low"], "due_high": found["ci_high"], "due_p": found["p"],
                "lift": float(one["lift"].mean()),
                "undefined": why,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
