"""The words of the ledger: papers, kinds of claims, verdicts. Imports nothing, so that options can name them."""

from typing import Literal

Paper = Literal["dst", "lfa", "hdpl", "pls", "krom"]
Kind = Literal["number", "order", "direction", "property"]
Word = Literal[
    "reproduced", "contradicted", "no effect", "different value", "inconclusive", "model too weak to test",
    "not measured yet", "not a test (true by construction)", "paper inconsistent", "not testable here",
]  # fmt: skip
Written = Literal["", "not a test (true by construction)", "paper inconsistent", "not testable here"]
"""Verdicts that a person may write into a ledger, with a reason: no measurement decides them."""
MEANINGS: dict[Word, str] = {
    "reproduced": "we measured what the paper says; of a number, our whole interval is as good as equal to it",
    "contradicted": "we measured the opposite of what the paper says",
    "no effect": "what we measured is smaller than the smallest effect of interest",
    "different value": "our number is another one; our models are smaller and read other text, so this refutes nothing",
    "inconclusive": "our interval allows both, there is none, or the models differ in something else too",
    "model too weak to test": "our models cannot do the task, or have nothing of the kind that the claim is about",
    "not measured yet": "the command of the claim will measure it",
    "not a test (true by construction)": "a definition or arithmetic decides it, whatever a model does",
    "paper inconsistent": "two places of the paper, or the paper and its authors' code, say different things",
    "not testable here": "it needs what we do not have, such as the paper's text or size; the reason says what",
}
"""Verdicts in the order in which they are counted, and what each means."""
DECIDED: tuple[Word, ...] = ("reproduced", "contradicted", "no effect")
CODES: tuple[tuple[str, Word], ...] = (
    ("holds", "reproduced"),
    ("opposite", "contradicted"),
    ("negligible", "no effect"),
    ("not resolved", "inconclusive"),
    ("confounded", "inconclusive"),
    ("other value", "different value"),
    ("the model cannot do the task", "model too weak to test"),
    ("cannot do the task", "model too weak to test"),
    ("no such head", "model too weak to test"),
    ("phenomenon absent", "model too weak to test"),
    ("undefined by construction", "not a test (true by construction)"),
    ("no claim", "paper inconsistent"),
    ("contradicts itself", "paper inconsistent"),
    ("withdrawn", "not measured yet"),
    ("not measured yet", "not measured yet"),
    ("not measurable here", "not testable here"),
)
"""How a verdict of a result table begins, or the word of an older ledger -> the word for it. The one place."""


UNDEFINED: tuple[tuple[str, Word], ...] = (
    ("none to suppress", "model too weak to test"),
    ("no head hits", "model too weak to test"),
    ("no seed in which both are defined", "model too weak to test"),
    ("one seed", "inconclusive"),
    ("one pair of seeds", "inconclusive"),
    ("fewer than three seeds", "inconclusive"),
    ("seeds without spread", "inconclusive"),
    ("no evaluation there in all seeds", "not measured yet"),
    ("not kept when these tables were made", "not measured yet"),
    ("not measured", "not measured yet"),
    ("no run of", "not measured yet"),
)
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
    return next((word for begin, word in CODES if code.startswith(begin)), None)


def undefined(why: str) -> Word | None:
    """The word for a value that is undefined for this reason; None where it has none."""
    return next((word for part, word in UNDEFINED if part in why), None)


def reason(text: str) -> str:
    """What a verdict of a result table adds to its word: "the same at n=3 seeds" of "holds: the same at n=3 seeds"."""
    if text in MEANINGS:
        return ""
    for begin, _ in CODES:
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
