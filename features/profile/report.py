"""The readable report of `features.profile`: Markdown, a section per cluster."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamscope.features.profile.contexts import Context
from streamscope.features.profile.profiles import NOISE
from streamscope.features.profile.token_kinds import NAMES

if TYPE_CHECKING:
    import pandas as pd

P = 0.05
"""Kinds of tokens with a corrected p above this are not named."""
CORE = ("confidence", "anchor_mass", "entity_mass", "context_span")
HEADS = 4
"""Heads named per cluster."""
SHOWN = 5
"""Representative tokens per cluster in the report; all are in samples.parquet."""
RARE = 0.005
"""Share below which a token is not named."""


def report(
    profiles: "pd.DataFrame",
    kinds: "pd.DataFrame",
    samples: "pd.DataFrame",
    *,
    title: str,
    about: Mapping[str, Any],
    show: int,
) -> str:
    """Markdown of the `show` largest clusters: depth, tokens, kinds, heads, confidence, tokens in their texts."""
    clusters = profiles[profiles["cluster"] != NOISE]
    n = int(profiles["n"].sum())
    noise = n - int(clusters["n"].sum())
    lines = [
        f"# {title}",
        "",
        f"{n:,} tokens, {len(clusters)} clusters, {noise:,} tokens ({noise / n:.1%}) in none. Features of tier "
        f"{about['tier']} of `{about['run']}` ({about['preset']}).",
        "",
        "`⟦ ⟧` is the token whose processing the features describe, `→` what the model says next, `⏎` a line break. "
        "k* is the layer from which on the prediction stays the same. Kinds of tokens: share in the cluster (share "
        f"elsewhere), hypergeometric test, Holm-corrected p < {P:g}. Heads: largest attention weight, mean in the "
        "cluster (over all tokens), those that differ most.",
        "",
    ]  # fmt: skip
    rest = len(clusters) - show
    if rest > 0:
        lines += [f"The {show} largest clusters; the other {rest} are in `profiles.parquet` and `samples.parquet`.", ""]
    overall = _overall(profiles)
    for _, row in clusters.head(show).iterrows():
        mine = samples[samples["cluster"] == row["cluster"]]
        lines += _section(row, kinds[kinds["cluster"] == row["cluster"]], mine, overall)
    return "\n".join(lines)


def _overall(profiles: "pd.DataFrame") -> "pd.Series":
    """Means over all tokens of the columns mean_…"""
    means = profiles.filter(like="mean_")
    return means.mul(profiles["n"], axis=0).sum() / profiles["n"].sum()


def _section(row: "pd.Series", kinds: "pd.DataFrame", samples: "pd.DataFrame", overall: "pd.Series") -> list[str]:
    depth = f"k* {row['depth_mean']:.1f} ± {row['depth_sd']:.1f}"
    lines = [
        f"## Cluster {row['cluster']}: {row['n']:,} tokens ({row['share']:.1%}), {depth}",
        "",
        f"- tokens: {_shares(row['tokens'])}",
        f"- predictions: {_shares(row['predictions'])}",
    ]
    lines += [
        f"- {text}" for text in (_kinds(kinds), _heads(row, overall), _confidence(row), _core(row, overall)) if text
    ]
    files = f": {_shares(row['files'])}" if "files" in row else ""
    lines.append(f"- from {row['documents']:,} documents{files}")
    near = samples[samples["kind"] == "representative"].head(SHOWN)
    far = samples[samples["kind"] == "diverse"]
    lines += ["", "Nearest to the centre:", "", *map(_line, near.to_dict("records")), ""]
    lines += [
        f"<details><summary>{len(far)} that differ</summary>",
        "",
        *map(_line, far.to_dict("records")),
        "",
        "</details>",
        "",
    ]
    return lines


def _shares(text: str) -> str:
    return (
        ", ".join(f"`{_code(token)}` {share:.0%}" for token, share in json.loads(text).items() if share >= 0.005)
        or "all rare"
    )


def _kinds(kinds: "pd.DataFrame") -> str:
    sure = kinds[kinds["p_holm"] < P]
    found = []
    for name, rows in (("more", sure[sure["log_odds"] > 0]), ("fewer", sure[sure["log_odds"] < 0])):
        each = [f"{NAMES[r['kind']]} {r['share']:.0%} ({r['share_elsewhere']:.0%})" for r in rows.to_dict("records")]
        found += [f"{name}: {', '.join(each)}"] if each else []
    return "; ".join(found)


def _heads(row: "pd.Series", overall: "pd.Series") -> str:
    """The heads whose attention differs most from that over all tokens."""
    names = [name for name in overall.index if name.startswith(("mean_head_act_", "mean_topk_"))]
    order = sorted(names, key=lambda name: -abs(row[name] - overall[name]))[:HEADS]
    each = [f"{_head(name)} {row[name]:.2f} ({overall[name]:.2f})" for name in order]
    return f"heads: {', '.join(each)}" if each else ""


def _head(name: str) -> str:
    """L5H4 at k*, of mean_head_act_stable_L5H4."""
    head = next(part for part in name.split("_") if part[:1] == "L" and part[1:2].isdigit())
    return f"{head} at {'k*' if '_stable_' in name else 'the end'}"


def _confidence(row: "pd.Series") -> str:
    values = [f"{row[name]:.2f}" for name in row.index if name.startswith("mean_traj_prob_")]
    return f"probability of the prediction by layer: {' '.join(values)}" if values else ""


def _core(row: "pd.Series", overall: "pd.Series") -> str:
    """Means of the features of tier core."""
    names = [f"mean_{name}" for name in CORE if f"mean_{name}" in overall]
    each = [f"{name[5:].replace('_', ' ')} {row[name]:.2f} ({overall[name]:.2f})" for name in names]
    return f"means (over all tokens): {', '.join(each)}" if each else ""


def _line(sample: Mapping[str, Any]) -> str:
    text = Context(sample["left"], sample["token"], sample["right"]).marked()
    return f"- `{_code(text)}` → `{_code(sample['prediction'])}`"


def _code(text: str) -> str:
    """`text` for a code span: no backticks, and not empty."""
    return text.replace("\n", "⏎").replace("`", "ʼ") or " "
