"""Kinds of tokens by their form, for comparing the tokens of clusters.

    kinds(["The", " cat", " sat", ".", "\n"], before, after)          kind -> bool [n]

start        first of its document          newline       white space only, or with a line break
punctuation  neither letters nor digits     digit         with a digit
capitalised  first character a capital      piece         of a word of several tokens
pronoun, function, content                  whole words, by the lists of `instruments.prompts.word_classes`

Kinds overlap: a capitalised pronoun is both.

`enrichment` says which are over- or under-represented in a cluster. K of N tokens are of a kind, k of the n tokens in
the cluster. The odds of the kind inside over those outside:

    log-odds = ln (k + ½)(N − K − n + k + ½) / ((n − k + ½)(K − k + ½))

p: hypergeometric, two-sided, min(1, 2 min(P(X ≤ k), P(X ≥ k))), Holm over all clusters and kinds. The test assumes
independent tokens; tokens of one document are not, so check `documents` in the profile as well.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from streamscope.instruments.prompts.word_classes import FUNCTION, PRONOUNS
from streamscope.instruments.stats.estimators import holm
from streamscope.text import is_bos

NAMES = {
    "start": "starts of documents", "newline": "line breaks", "punctuation": "punctuation", "digit": "digits",
    "capitalised": "capitalised", "piece": "pieces of words", "pronoun": "pronouns", "function": "function words",
    "content": "content words",
}  # fmt: skip
KINDS = tuple(NAMES)
COLUMNS = ("cluster", "kind", "n", "k", "share", "share_elsewhere", "log_odds", "p", "p_holm")


def kinds(
    tokens: Sequence[str], previous_tokens: Sequence[str], next_tokens: Sequence[str], start: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Kind -> [n], from tokens with leading spaces and their neighbours ("" for none). `start` marks the first tokens
    of documents; BOS has no other kind."""
    once = cache(_kinds)
    rows = [once(*three) for three in zip(tokens, previous_tokens, next_tokens, strict=True)]
    table = np.array(rows, bool).reshape(len(rows), len(KINDS) - 1)
    first = np.zeros(len(rows), bool) if start is None else start
    bos = first & np.array([is_bos(token, 0) for token in tokens], bool)
    return {"start": first} | {kind: table[:, i] & ~bos for i, kind in enumerate(KINDS[1:])}


def _kinds(token: str, previous_token: str, next_token: str) -> tuple[bool, ...]:
    """The kinds of one token, in the order of `KINDS` without the first."""
    word = token.strip()
    letters = any(c.isalnum() for c in word)
    piece = letters and (_same_word(previous_token, token) or _same_word(token, next_token))
    is_word = letters and not piece and not any(c.isdigit() for c in word)
    name = word.lower()
    return (
        not word or "\n" in token,
        bool(word) and not letters,
        any(c.isdigit() for c in word),
        word[:1].isupper(),
        piece,
        is_word and name in PRONOUNS,
        is_word and name in FUNCTION,
        is_word and name not in PRONOUNS and name not in FUNCTION,
    )


def _same_word(first: str, second: str) -> bool:
    return first[-1:].isalnum() and second[:1].isalnum()


def enrichment(clusters: np.ndarray, kinds: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row per cluster and kind, for kinds of some but not all tokens; no rows for a single cluster. clusters [N];
    kind -> [N] booleans. Columns: `COLUMNS`."""
    names, codes, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    total, tables = len(clusters), []
    for kind, member in kinds.items():
        n_members = int(member.sum())
        if not 0 < n_members < total or len(names) < 2:
            continue
        k = np.bincount(codes[member], minlength=len(names))
        n_neither = total - n_members - sizes + k
        odds = np.log((k + 0.5) * (n_neither + 0.5) / ((sizes - k + 0.5) * (n_members - k + 0.5)))
        tails = np.minimum(hypergeom.cdf(k, total, n_members, sizes), hypergeom.sf(k - 1, total, n_members, sizes))
        row = {"cluster": names, "kind": kind, "n": sizes, "k": k, "share": k / sizes}
        row |= {"share_elsewhere": (n_members - k) / (total - sizes), "log_odds": odds, "p": np.minimum(2 * tails, 1.0)}
        tables.append(pd.DataFrame(row))
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(tables, ignore_index=True)
    table["p_holm"] = holm(table["p"])
    return table.sort_values(["cluster", "p", "kind"], kind="stable", ignore_index=True)[list(COLUMNS)]
