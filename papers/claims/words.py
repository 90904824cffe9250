"""The words of the ledger: papers, kinds of claims, verdicts. Imports nothing, so that options can name them."""

from typing import Literal

Paper = Literal["dst", "lfa", "hdpl", "pls", "krom"]
Kind = Literal["number", "order", "direction", "property"]
Word = Literal[
    "holds", "opposite", "other value", "negligible", "not resolved", "cannot do the task", "phenomenon absent",
    "not measured yet", "undefined by construction", "contradicts itself", "not measurable here",
]  # fmt: skip
MEANINGS: dict[Word, str] = {
    "holds": "by the table's own rule (papers.comparison.verdicts); a bare number where the whole interval lies within "
    "± the smallest effect of interest around it",
    "opposite": "by the table's own rule, the other way round",
    "other value": "a bare number outside the interval of models of another size and text",
    "negligible": "the whole interval lies within ± the smallest effect of interest",
    "not resolved": "the interval allows both, there is none, or the arms differ in something else as well",
    "cannot do the task": "the unedited model is not shown to be above chance at what the claim is about",
    "phenomenon absent": "no model here has what the claim speaks of",
    "not measured yet": "with the command that will measure it",
    "undefined by construction": "a definition or its arithmetic decides it, whatever a model does",
    "contradicts itself": "two places of the paper, or the paper and its authors' public code, say different things",
    "not measurable here": "with what it would need; so is every loss, for ours are of other text and tokenizers",
}
"""Verdicts in the order in which they are counted. The last three need no measurement and are written with a reason;
only a loss gets the last one by itself."""


def legend() -> str:
    """The verdicts and what they mean, a line each."""
    width = max(map(len, MEANINGS))
    return "\n".join(f"    {word:{width}}  {meaning}" for word, meaning in MEANINGS.items())
