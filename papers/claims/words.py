"""The words of the ledger: papers, kinds of claims, verdicts. Imports nothing heavy, so that options can name them."""

import tomllib
from pathlib import Path
from typing import Any, Literal

Paper = Literal["dst", "lfa", "hdpl", "pls", "krom"]
Kind = Literal["number", "order", "direction", "property"]
Word = Literal[
    "reproduced", "contradicted", "no effect", "different value", "inconclusive", "model too weak to test",
    "not measured yet", "not a test (true by construction)", "paper inconsistent", "not testable here",
]  # fmt: skip
Written = Literal["", "not a test (true by construction)", "paper inconsistent", "not testable here"]
"""Verdicts that a person may write into a ledger, with a reason: no measurement decides them."""
_TEXT: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
MEANINGS: dict[Word, str] = _TEXT["meanings"]
"""Verdicts in the order in which they are counted, and what each means."""
DECIDED: tuple[Word, ...] = ("reproduced", "contradicted", "no effect")
CODES: dict[str, Word] = _TEXT["codes"]
"""How a verdict of a result table begins, or the word of an older ledger -> the word for it. The one place."""
UNDEFINED: dict[str, Word] = _TEXT["undefined"]
"""What is in the reason of an undefined value -> the word for it."""
SMALL = (
    "Models here are small and were trained little; a bare number is not expected to be the paper's, and says nothing "
    "of the direction of a claim. Of an order, *measured* is the difference as claimed; of a limit "
    "it is the value itself."
)
"""How bare numbers are to be read."""


def word_of(code: str) -> Word | None:
    """The word for a verdict of a result table or of a ledger; None where it has none."""
    if code in MEANINGS:
        return code
    if code.startswith("undefined: "):
        return undefined(code.removeprefix("undefined: "))
    return next((word for begin, word in CODES.items() if code.startswith(begin)), None)


def undefined(why: str) -> Word | None:
    """The word for a value that is undefined for this reason; None where it has none."""
    return next((word for part, word in UNDEFINED.items() if part in why), None)


def reason(text: str) -> str:
    """What a verdict of a result table adds to its word: "the same at n=3 seeds" of "holds: the same at n=3 seeds"."""
    if text in MEANINGS:
        return ""
    for begin in CODES:
        if text.startswith(begin):
            return text.removeprefix(begin).lstrip(": ")
    return text


def plain(code: str) -> str:
    """A verdict of a result table as people read it: its word, and the reason where it has one.

    A verdict that has no word stays what it is.
    """
    if (word := word_of(code)) is None:
        return code
    why = reason(code)
    return f"{word}: {why}" if why else word


def legend() -> str:
    """The verdicts and what they mean, a line each."""
    width = max(map(len, MEANINGS))
    return "\n".join(f"    {word:{width}}  {meaning}" for word, meaning in MEANINGS.items())
