"""The best head of one half of the cases, scored on the other half: no luck of the best of many.

Reads the table of `probes.coreference`: columns cluster, relation, layer, index, head, hit, attention, chance, and
one column of booleans per rule.
"""

from typing import TYPE_CHECKING

from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

RULES = ("recency", "first_mention", "longest")


def held_out(table: "pd.DataFrame", *, seed: int = 0) -> "pd.DataFrame":
    """The best head of one half of the cases, scored on the other half, both ways, against the rules without meaning.

    Independent cases (pairs, texts) are split in halves at random, each relation evenly; the best head has the largest
    Top-1, then the largest mean attention. Rows: half A → B, B → A, and both, where every case is scored by the head
    that was chosen without it; each against the rules `RULES` on the same cases
    (`proportions.paired_proportions`: McNemar's test, or its clustered form). "Beats recency by 15 points" means
    ci_low ≥ 0.15. The pooled interval takes the two chosen heads as given.

    Raises `InputError` for fewer than four independent cases.
    """
    import numpy as np
    import pandas as pd

    from probes.proportions import paired_proportions

    half = halves(table, seed)
    side = table["cluster"].map(half)
    chosen, parts = [], []
    for name, (train, test) in {"A→B": (0, 1), "B→A": (1, 0)}.items():
        scores = table[side == train].groupby(["layer", "index", "head"])[["hit", "attention"]].mean()
        best = scores.sort_values(["hit", "attention"], ascending=False, kind="stable").index[0]
        mine = (side == test) & (table["layer"] == best[0]) & (table["index"] == best[1])
        chosen.append((name, best[2]))
        parts.append(table[mine])
    chosen.append(("both", " / ".join(head for _, head in chosen)))
    parts.append(pd.concat(parts))
    rows = []
    for (name, head), one in zip(chosen, parts, strict=True):
        alone = one["cluster"].is_unique
        for rule in RULES:
            clusters = None if alone else one["cluster"].to_numpy()
            result = paired_proportions(one["hit"].to_numpy(), one[rule].to_numpy(), clusters, seed=seed)
            about = {"halves": name, "head": head, "rule": rule, "top1": result.share, "rule_share": result.reference}
            tested = {k: getattr(result, k) for k in ("difference", "ci_low", "ci_high", "p", "n", "clusters")}
            rows.append({**about, "chance": float(np.mean(one["chance"])), **tested, "undefined": result.undefined})
    return pd.DataFrame(rows)


def halves(table: "pd.DataFrame", seed: int) -> dict[str, int]:
    """Independent case -> half 0 or 1; within each relation they alternate in random order."""
    import numpy as np

    cases = table.drop_duplicates("cluster")[["cluster", "relation"]]
    if len(cases) < 4:
        raise InputError(
            f"choosing heads on one half of the cases needs at least four independent ones, got {len(cases)}"
        )
    shuffled = cases.iloc[np.random.default_rng(seed).permutation(len(cases))].sort_values("relation", kind="stable")
    return {name: i % 2 for i, name in enumerate(shuffled["cluster"])}
