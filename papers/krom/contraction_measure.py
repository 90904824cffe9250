"""Streams of untrained models of KROM: what `papers.krom.contraction` measures and judges."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from streamscope.instruments.undefined_cells import note
from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.models.mixing import connections
from streamscope.papers.comparison.printed import Ratio, claims_to_judge
from streamscope.papers.comparison.seeds import estimate, put_interval, seeds_of
from streamscope.papers.comparison.verdicts import judge

BIASES = (-8.0, -2.0, -1.0, 0.0)
TOKENS = (2, 128)
"""Sequences and the tokens of each, fewer where the context is shorter."""
VOCABULARY = 1024
"""Smaller than the blog's: embeddings are random whatever their number."""
QUANTITIES = {"spread": "share of the streams' size", "rank": "streams", "contracted": "share"}


def differences(model: Any, tokens: Any) -> dict[str, float]:
    """spread, rank and the mean ‖X − X̄‖ of a model's streams after its last block."""
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
    with torch.no_grad():
        for module in connections(model).values():
            module.b["res"][:, 0] = 0.0
            module.b["res"][:, 1] = bias
            module.alpha["res"].zero_()


def measured(seeds: int, scale: str = "paper", biases: Sequence[float] = BIASES) -> pd.DataFrame:
    """One row per seed, bias and quantity, as `papers.comparison.seeds` reads them; `preset` is the bias."""
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


def table(quantities: pd.DataFrame, modules: int, biases: Sequence[float] = BIASES) -> pd.DataFrame:
    """One row per bias: swap, predicted, and every quantity with its interval over seeds."""
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


def claims(quantities: pd.DataFrame) -> pd.DataFrame:
    """What the blog says of the streams, judged over seeds with one correction.

    Streams whose spread is below .01 of their size count as copies; that limit is ours, the blog has none.
    """
    bounds_and_orders = [one for one in claims_to_judge("krom.contraction") if not isinstance(one, Ratio)]
    return judge(bounds_and_orders, quantities)
