"""The words of the ledger: papers, kinds of claims, verdicts. Imports nothing, so that options can name them."""

from typing import Literal

Paper = Literal["dst", "lfa", "hdpl", "pls", "krom"]
Kind = Literal["number", "order", "direction", "property"]
Word = Literal[
    "holds", "opposite", "other value", "negligible", "not resolved", "cannot do the task", "phenomenon absent",
    "not measured yet", "undefined by construction", "contradicts itself", "not measurable here",
]  # fmt: skip
