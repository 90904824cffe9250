"""What the blog KROM prints of losses and mixing: 51 M parameters, FineWeb-Edu, 2,000 steps of 16 × 511 tokens."""

from streamscope.papers.comparison.losses import Below, Printed

WHERE = "Architecture comparison (bias −8, N = 3)"
CAPTION = "caption of the training curves"
ARCHITECTURES = {
    "gpt2": Printed(6.016, WHERE),
    "canon": Printed(5.891, WHERE),
    "kromhc": Printed(5.92, CAPTION, control=6.01),
    "kromcanon": Printed(5.836, WHERE),
}
"""Evaluation losses. The caption's 6.01, 5.97 and 5.83 for the others are of an earlier Canon-AB run (SPEC §7.6)."""
BOTH = "no claim: the blog prints both orders (canon 5.891 in its table and 5.97 in the caption that has kromhc's 5.92)"
ORDER = (
    Below("kromcanon", "canon", (5.836, 5.891), WHERE),
    Below("canon", "gpt2", (5.891, 6.016), WHERE),
    Below("kromcanon", "kromhc", (5.83, 5.92), CAPTION),
    Below("kromhc", "gpt2", (5.92, 6.01), CAPTION),
    Below("canon", "kromhc", (5.891, 5.92), "table and caption", BOTH),
)
"""Neighbours in the blog's two orders: kromcanon < canon < gpt2 ("consistent across all three seeds") in the table, and
kromcanon < kromhc < gpt2 in the caption ("both Canon and KromHC independently improve over vanilla; combining them
yields the best result")."""
TOKENS = 2000 * 16 * 511
"""Training tokens that each of the blog's models saw."""
SWAP = {-8.0: 0.0003, -2.0: 0.12, -1.0: 0.27, 0.0: 0.50}
"""Swap probability by initial bias."""
STREAM_COSINE = {-8.0: 0.974, -2.0: 0.994, -1.0: 0.994, 0.0: 0.995}
"""Per-stream cosine of safety-contrast directions, KromCanon, by initial bias."""
SURVIVE = "Directions survive multi-stream coupling"
ABOVE = ((-8.0, "excess", "0", SURVIVE), (-8.0, "cosine", "0.044", SURVIVE), (-2.0, "excess", "0", "What this means"))
"""Bias, quantity of `papers.krom.alike`, limit and place of what the blog says of directions: "random directions would
have cosine ≈ 0 ± 0.044, so these are clearly not noise" of −8, "preserves directional structure" of −2."""
EIGHT = {"cosine": ("0.992 against 0.994", 0.992 - 0.994), "loss": ("identical", float("nan"))}
"""Of eight streams against four, from bias −2."""
JUMP = f"{SURVIVE}, What replicates"
"""Where the cosine "jumps to a plateau"."""
