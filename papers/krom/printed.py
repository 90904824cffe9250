"""What the blog KROM prints of losses and mixing: 51 M parameters, FineWeb-Edu, 2,000 steps of 16 × 511 tokens."""

from streamscope.papers.comparison.losses import Below, Printed

CARD = "KROM, the blog on Canon layers and KromHC multi-stream residuals (teilomillet/kromcanon)"
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
RECIPE = "What differs from the blog's recipe beside sizes, data and tokens, by the blog's public code:"
DIFFERENCES = {
    "muon": """\
- Muon's decay: there wd · W is added to the gradient before it is orthogonalised (MLX), here decay is decoupled
  (torch). The cosines measured between the two moves are .34, .20 and .41 at wd .01 (SPEC §9).""",
    "kernels": """\
- Canon's kernels: there moved by Muon as the matrices are (SPEC §1.2), here by AdamW.""",
    "adamw": """\
- AdamW: there without bias correction (MLX), so that the first move is 3.2 times as large at β .9 and .999
  (SPEC §9).""",
    "init": """\
- Initialisation: there U(±1/√fan-in) for linear maps and N(0, 1/√d) for the embedding (SPEC §1.1); here N(0, .02),
  divided by √(2L) where a map writes to the residual.""",
    "vectors": """\
- Decay of norms: there the vectors of the norms decay as well (SPEC §9), here only tensors of two or more axes do.""",
    "storage": """\
- Storage: there all parameters and moments are bf16 (SPEC §1.1), here only the hyper-connections of arms in bf16.""",
}
"""What a run can have otherwise than the blog's code -> the sentence that says so (`krom_page.differences`)."""
IN_ITS_OWN_CODE = """\
In the blog's own code (2 layers, width 64, 600 steps, one seed, bias −8; SPEC §9) logits stored in bf16 end at −8.000
in every module; stored in fp32 they end at −5.96 to −5.69, where decay alone gives −5.77."""
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
