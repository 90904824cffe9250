"""The losses that the blog KROM prints: 51 M parameters, FineWeb-Edu, 2,000 steps of 16 × 511 tokens."""

from streamscope.papers.comparison.losses import Below
from streamscope.papers.comparison.printed import printed, rows

CONTROL = "gpt2"
ARCHITECTURES = {name: printed(f"krom-loss-{name}") for name in ("gpt2", "canon", "kromhc", "kromcanon")}
"""Evaluation losses. The caption's numbers for the others are of an earlier Canon-AB run (SPEC §7.6)."""
OF_CONTROL = {"kromhc": printed("krom-caption-loss-gpt2")}
"""The control's loss as it stands next to that of an architecture, where its own is of another run."""
BOTH = "no claim: the blog prints both orders (canon 5.891 in its table and 5.97 in the caption that has kromhc's 5.92)"
NEIGHBOURS = (
    ("kromcanon", "canon", ""), ("canon", "gpt2", ""), ("kromcanon", "kromhc", ""), ("kromhc", "gpt2", ""),
    ("canon", "kromhc", BOTH),
)  # fmt: skip


def _below(less: str, more: str, instead: str) -> Below:
    row = rows()[f"krom-order-{less}-below-{more}"]
    low, high = map(float, row["printed"].split(" < "))
    return Below(less, more, (low, high), row["place"], instead)


ORDER = tuple(_below(*pair) for pair in NEIGHBOURS)
"""Neighbours in the blog's orders: kromcanon < canon < gpt2 (table), kromcanon < kromhc < gpt2 (caption)."""
BIASES = (-8.0, -2.0, -1.0, 0.0)
"""Initial biases of the blog's sweep."""
