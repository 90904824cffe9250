"""What the blog KROM prints of losses and mixing: 51 M parameters, FineWeb-Edu, 2,000 steps of 16 × 511 tokens."""

from papers.losses import Printed

CARD = "KROM, the blog on Canon layers and KromHC multi-stream residuals (teilomillet/kromcanon)"
WHERE = "Architecture comparison (bias −8, N = 3)"
ARCHITECTURES = {
    "gpt2": Printed(6.016, WHERE),
    "canon": Printed(5.891, WHERE),
    "kromhc": Printed(5.92, "caption of the training curves"),
    "kromcanon": Printed(5.836, WHERE),
}
"""Evaluation losses. The caption's 6.01, 5.97 and 5.83 for the others are of an earlier Canon-AB run (SPEC §7.6)."""
SWAP = {-8.0: 0.0003, -2.0: 0.12, -1.0: 0.27, 0.0: 0.50}
"""Swap probability by initial bias."""
STREAM_COSINE = {-8.0: 0.974, -2.0: 0.994, -1.0: 0.994, 0.0: 0.995}
"""Per-stream cosine of safety-contrast directions, KromCanon, by initial bias."""
