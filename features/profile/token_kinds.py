"""Kinds of tokens by their form, for comparing the tokens of clusters.

    kinds(["The", " cat", " sat", ".", "\n"], before, after)          kind -> bool [n]

start        first of its document          newline       white space only, or with a line break
punctuation  neither letters nor digits     digit         with a digit
capitalised  first character a capital      piece         of a word of several tokens
pronoun, function, content                  whole words, by the lists of `instruments.prompts.word_classes`

Kinds overlap: a capitalised pronoun is both.
"""

from collections.abc import Sequence

import numpy as np

from streamscope.instruments.prompts.word_classes import FUNCTION, PRONOUNS

KINDS = ("start", "newline", "punctuation", "digit", "capitalised", "piece", "pronoun", "function", "content")
NAMES = {
    "start": "starts of documents", "newline": "line breaks", "punctuation": "punctuation", "digit": "digits",
    "capitalised": "capitalised", "piece": "pieces of words", "pronoun": "pronouns", "function": "function words",
    "content": "content words",
}  # fmt: skip


def kinds(
    tokens: Sequence[str], before: Sequence[str], after: Sequence[str], start: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Kind -> [n], from tokens with leading spaces and their neighbours ("" for none).

    `start` marks the first tokens of documents, which have no other kind.
    """
    found: dict[tuple[str, str, str], tuple[bool, ...]] = {}
    rows = []
    for three in zip(tokens, before, after, strict=True):
        if three not in found:
            found[three] = _kinds(*three)
        rows.append(found[three])
    table = np.array(rows, bool).reshape(len(rows), len(KINDS) - 1)
    first = np.zeros(len(rows), bool) if start is None else start
    return {"start": first} | {kind: table[:, i] & ~first for i, kind in enumerate(KINDS[1:])}


def _kinds(token: str, before: str, after: str) -> tuple[bool, ...]:
    """The kinds of one token, in the order of `KINDS` without the first."""
    word = token.strip()
    letters = any(c.isalnum() for c in word)
    piece = letters and (_same_word(before, token) or _same_word(token, after))
    whole = letters and not piece and not any(c.isdigit() for c in word)
    name = word.lower()
    return (
        not word or "\n" in token,
        bool(word) and not letters,
        any(c.isdigit() for c in word),
        word[:1].isupper(),
        piece,
        whole and name in PRONOUNS,
        whole and name in FUNCTION,
        whole and name not in PRONOUNS and name not in FUNCTION,
    )


def _same_word(one: str, other: str) -> bool:
    """Whether a word continues from one token to the next."""
    return one[-1:].isalnum() and other[:1].isalnum()
