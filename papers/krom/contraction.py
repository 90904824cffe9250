"""Test on untrained models whether mixing contracts stream differences as the blog computes (KROM).

    python -m papers.krom.contraction
    python -m papers.krom.contraction --out contraction.parquet

The blog: at bias −2 a mixing operation contracts differences by |1 − 2s| = .76, sixteen of them to .012, "meaning 98.8%
of inter-stream difference is contracted away". But streams begin equal: what differs is written by the modules
themselves, each with unlike weights for the streams, and only those that follow mix it. The product speaks of what the
first module writes. Here KromCanon of the blog's size is built as its authors start it, where s is that of the bias and
nothing else; random tokens; every bias, and H_res = I, on the same weights.

    spread      ‖X − X̄‖ / ‖X‖ of the streams X [n, d] of a token after the last block, mean over tokens; X̄ their mean
    rank        exp(−Σ p ln p), p the squared singular values of X over their sum: 1 for copies, at most n
    contracted  1 − ‖X − X̄‖ at the bias / the same with H_res = I, each a mean over tokens
    predicted   1 − |1 − 2s|^modules
    gained      contracted at one bias − at another

Seeds of the weights and tokens are the units. What training makes of it is another question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from streamscope.cli.bounds import Bounds
from streamscope.cli.parse import command, parse
from streamscope.instruments.command import check_results, finish

if TYPE_CHECKING:
    import pandas as pd

BIASES = (-8.0, -2.0, -1.0, 0.0)
TOKENS = (2, 128)
"""Sequences and the tokens of each, fewer where the context is shorter."""
VOCABULARY = 1024
"""Smaller than the blog's: embeddings are random whatever their number."""
QUANTITIES = {"spread": "share of the streams' size", "rank": "streams", "contracted": "share"}
NEAR = 0.01
"""Streams whose spread is a smaller share of their size count as copies; ours, the blog has no limit."""
MEANS = "Directions survive multi-stream coupling"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom.contraction`."""

    seeds: Annotated[int, Bounds(low=2, high=1000)] = 10
    """Models of each bias."""
    scale: str = "paper"
    """Size of the preset."""
    out: Path | None = None
    """Write the tables (.parquet) here."""


def differences(model: Any, tokens: Any) -> dict[str, float]:
    """spread, rank and the mean ‖X − X̄‖ of a model's streams after its last block."""
    import torch

    from streamscope.models.hooks import capture

    with torch.no_grad(), capture(model, name := f"blocks.{model.config.n_layers - 1}.hook_streams_post") as cache:
        model(tokens)
    X = cache[name].double()
    apart = (X - X.mean(2, keepdim=True)).square().sum((2, 3)).sqrt()
    p = torch.linalg.svdvals(X).square()
    p = p / p.sum(-1, keepdim=True)
    return {
        "spread": float((apart / X.square().sum((2, 3)).sqrt()).mean()),
        "rank": float(torch.special.entr(p).sum(-1).exp().mean()),
        "apart": float(apart.mean()),
    }


def set_bias(model: Any, bias: float) -> None:
    """b_res = [0, bias] in every factor, and nothing dynamic; −inf is H_res = I."""
    import torch

    from streamscope.models.mixing import connections

    with torch.no_grad():
        for module in connections(model).values():
            module.b["res"][:, 0] = 0.0
            module.b["res"][:, 1] = bias
            module.alpha["res"].zero_()


def measured(seeds: int, scale: str = "paper", biases: Sequence[float] = BIASES) -> "pd.DataFrame":
    """One row per seed, bias and quantity, as `papers.comparison.seeds` reads them; `preset` is the bias."""
    import pandas as pd
    import torch

    from streamscope.models.make import build

    rows = []
    for seed in range(seeds):
        model = build("kromcanon", scale, seed=seed, d_vocab=VOCABULARY)
        text = (TOKENS[0], min(TOKENS[1], model.config.n_ctx))
        tokens = torch.randint(VOCABULARY, text, generator=torch.Generator().manual_seed(seed))
        set_bias(model, -torch.inf)
        alone = differences(model, tokens)["apart"]
        contracted = {}
        for bias in biases:
            set_bias(model, bias)
            one = differences(model, tokens)
            contracted[bias] = one["contracted"] = 1 - one.pop("apart") / alone
            rows += [(f"{bias:g}", seed, name, x) for name, x in one.items()]
        rows += [
            (f"{a:g} to {b:g}", seed, "gained", contracted[b] - contracted[a])
            for a, b in ((-8.0, -2.0), (-2.0, 0.0)) if {a, b} <= set(biases)
        ]  # fmt: skip
    units = {**QUANTITIES, "gained": "share"}
    quantities = pd.DataFrame(rows, columns=["preset", "seed", "quantity", "value"])
    return quantities.assign(unit=quantities["quantity"].map(units), undefined="")


def table(quantities: "pd.DataFrame", modules: int, biases: Sequence[float] = BIASES) -> "pd.DataFrame":
    """One row per bias: swap, predicted, and every quantity with its interval over seeds."""
    import math

    import pandas as pd

    from streamscope.instruments.undefined_cells import note
    from streamscope.papers.comparison.seeds import estimate, put_interval, seeds_of

    rows = []
    for bias in biases:
        swap = 1 / (1 + math.exp(-bias))
        row: dict[str, Any] = {"bias": bias, "swap": swap, "predicted": 1 - abs(1 - 2 * swap) ** modules}
        why: dict[str, str] = {}
        for name in QUANTITIES:
            one = estimate(seeds_of(quantities, name, f"{bias:g}")[0])
            put_interval(row, why, name, one)
        rows.append({**row, "n": one["n"], "undefined": note(why)})
    return pd.DataFrame(rows)


def claims(quantities: "pd.DataFrame") -> "pd.DataFrame":
    """What the blog says of the streams, judged over seeds with one correction."""
    from streamscope.papers.comparison.printed import SMALLEST, Bound, Order
    from streamscope.papers.comparison.verdicts import bound_row, order_row, with_verdicts

    more, less = "-8 to -2", "-2 to 0"
    copies = Bound("spread", "-8", "below", str(NEAR), "One stream, four streams", 0.0)
    saturated = Bound("gained", less, "below", str(SMALLEST["share"]), MEANS, 0.0)
    diminishing = order_row(Order("gained", more, less, MEANS, SMALLEST["share"]), quantities)
    return with_verdicts([bound_row(copies, quantities), diminishing, bound_row(saturated, quantities)])


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, build, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_results(options.out, "papers.krom.contraction", ("", "claims"))

    from streamscope.cli.provenance import provenance
    from streamscope.instruments.result import Result
    from streamscope.models.config.presets import preset
    from streamscope.papers.comparison.report import CLAIMS
    from streamscope.papers.comparison.tables import table_of

    quantities = measured(options.seeds, options.scale)
    modules = 2 * preset("kromcanon", options.scale).n_layers
    title = f"streams after {modules} modules, means over {options.seeds} untrained models"
    tables = {
        "contraction": table_of(table(quantities, modules), "krom/contraction", title),
        "claims": table_of(claims(quantities), "claims", "the blog's claims", CLAIMS),
    }
    about = {**provenance("cpu"), "seeds": options.seeds, "scale": options.scale}
    finish(Result(tables), options.out, about)


if __name__ == "__main__":
    command(main)
