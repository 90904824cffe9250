"""Test whether swap logits stay at −8 because of a saturated softmax or of bf16 storage (KROM).

    python -m papers.krom.arithmetic
    python -m papers.krom.arithmetic --seeds 10        streams of untrained models of the blog's size, too

KROM says that mixing stays frozen at bias −8 because p(1−p) is 313 times smaller there than at −2. But AdamW divides
by the size of the gradient, and weight decay does not see p at all. One factor U = [[1−s, s], [s, 1−s]] with
(1−s, s) = softmax(b), b = [0, bias] at the start, is trained by itself under three pulls:

    swap   ½ (s − .30)²     towards a swap of 30 %; its gradient in b has p(1−p) as a factor
    unit   b_0 − b_1        a gradient of ±1 whatever b is
    none   0                weight decay alone

Parameters, gradients and moments are stored in fp32 or bf16; rates, betas, decay, warm-up and cosine are those of the
hyper-connections in training (SPEC §1.2). SGD has no momentum and is given every rate of `SGD_RATES`.

The blog's formula has mixing at −2 remove 98.8 % of what differs between streams. `untrained` measures it before any
training, by initial bias: spread, ‖X − X̄‖ / ‖X‖ of the streams X after the last block; rank, the exponential of the
entropy of their normalised squared singular values; contracted, the share of ‖X − X̄‖ that mixing removes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamscope.cli.bounds import Count, Whole
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

TARGET = 0.30
BIASES = (-8.0, -2.0, -1.0, 0.0)
PULLS = ("swap", "unit", "none")
SGD_RATES = (5e-3, 0.05, 0.5, 5.0, 50.0)
"""The first is that of the hyper-connections under AdamW."""
WARMUP = 200
FLOOR = 0.1
ARRIVED = 0.01
"""Largest |s − .30| that counts as reaching .30."""
VOCABULARY, LENGTH = 1024, 128
"""Of the random tokens that untrained models read: embeddings are random whatever their number."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """How one factor is trained."""

    pull: str = "swap"
    optimizer: str = "adamw"
    lr: float = 5e-3
    decay: float = 0.2
    dtype: str = "fp32"


def _loss(pull: str, b: "Tensor") -> "Tensor":
    """The pull on logits b [n, 2], summed over n: each row is a problem of its own."""
    if pull == "unit":
        return (b[:, 0] - b[:, 1]).sum()
    return 0.5 * (b.softmax(-1)[:, 1] - TARGET).square().sum() * (pull == "swap")


def updates(case: Case, biases: Sequence[float] = BIASES, steps: int = 2000) -> "pd.DataFrame":
    """Train b = [0, bias] for every bias; one row each: b, swap and `reached` at the end, `moved`, the first gradient.

    Both optimisers work element by element, so the rows of one tensor [n, 2] do not see each other. Raises
    `InputError` for an unknown pull, optimiser or dtype.
    """
    import pandas as pd
    import torch

    from streamscope.instruments.table import mark
    from streamscope.models.tensors import DTYPES
    from streamscope.models.training.config import Training
    from streamscope.models.training.optim import lr_factor

    for option, value, names in (("pull", case.pull, PULLS), ("optimizer", case.optimizer, ("adamw", "sgd"))):
        if value not in names:
            raise InputError(f"{option} {value!r} is unknown: {', '.join(names)}")
    if case.dtype not in DTYPES:
        raise InputError(f"dtype {case.dtype!r} is unknown: {', '.join(DTYPES)}")
    t = Training()
    b = torch.nn.Parameter(torch.tensor([[0.0, bias] for bias in biases]).to(DTYPES[case.dtype]))
    wide: dict[str, Any] = {"lr": case.lr, "weight_decay": case.decay}
    optimizer: torch.optim.Optimizer = torch.optim.SGD([b], **wide)
    if case.optimizer == "adamw":
        optimizer = torch.optim.AdamW([b], betas=(t.hc_beta1, t.hc_beta2), fused=True, **wide)
    first = torch.zeros_like(b)
    n_moves = torch.zeros(len(biases), dtype=torch.long)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = case.lr * lr_factor(step, steps, WARMUP, FLOOR)
        optimizer.zero_grad()
        _loss(case.pull, b.float()).backward()
        assert b.grad is not None
        old_b = b.detach().clone()
        if step == 0:
            first = b.grad.clone()
        optimizer.step()
        n_moves += (b.detach() != old_b).any(-1).long()
    end, start = b.detach().double(), torch.tensor(biases).double().sigmoid()
    is_diverged = ~end.isfinite().all(-1)
    end[is_diverged] = math.nan
    swap = end.softmax(-1)[:, 1]
    table = pd.DataFrame(
        {
            **asdict(case),
            "bias": list(biases),
            "p(1-p)": (start * (1 - start)).tolist(),
            "gradient": first[:, 1].double().tolist(),
            "b0": end[:, 0].tolist(),
            "b1": end[:, 1].tolist(),
            "swap": swap.tolist(),
            "moved": n_moves.tolist(),
            "reached": ((swap - TARGET).abs() < ARRIVED).tolist(),
        }
    )
    return mark(table, ["b0", "b1", "swap"], is_diverged.numpy(), "diverged")


def table(steps: int = 2000) -> "pd.DataFrame":
    """Every pull × decay {.2, 0} × dtype × (AdamW, SGD at each of `SGD_RATES`) × bias."""
    import pandas as pd

    rates = [("adamw", Case.lr), *(("sgd", lr) for lr in SGD_RATES)]
    cases = [
        Case(pull=pull, optimizer=optimizer, lr=lr, decay=decay, dtype=dtype)
        for pull in PULLS
        for decay in (0.2, 0.0)
        for optimizer, lr in rates
        for dtype in ("fp32", "bf16")
        if pull != "none" or decay
    ]
    return pd.concat([updates(case, steps=steps) for case in cases], ignore_index=True)


def sinkhorn_slope(bias: float) -> float:
    """∂H_12/∂M_12 of mHC's H_res where its logits M are 0 on the diagonal and `bias` elsewhere (SPEC §2.3)."""
    import torch

    from streamscope.models.config import MHC
    from streamscope.models.layers.hyper_mixing import SinkhornConnection

    mixing = SinkhornConnection(MHC(b_res=bias), 8, 0)
    logits = mixing.identity_logits().double().requires_grad_()
    (gradient,) = torch.autograd.grad(mixing.mixing(logits)[0, 1], logits)
    return float(gradient[0, 1])


def untrained(seeds: int, scale: str = "paper", biases: Sequence[float] = BIASES) -> "pd.DataFrame":
    """A row per seed and bias: spread, rank and contracted of kromcanon's streams on random tokens."""
    import pandas as pd
    import torch

    from streamscope.models.make import build
    from streamscope.papers.krom.tables import set_bias

    rows = []
    for seed in range(seeds):
        model = build("kromcanon", scale, seed=seed, d_vocab=VOCABULARY)
        length = min(LENGTH, model.config.n_ctx)
        tokens = torch.randint(VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed))
        set_bias(model, -torch.inf)
        no_mixing = stream_differences(model, tokens)["apart"]
        for bias in biases:
            set_bias(model, bias)
            differences = stream_differences(model, tokens)
            rows.append({"seed": seed, "bias": bias, **differences, "contracted": 1 - differences["apart"] / no_mixing})
    return pd.DataFrame(rows).drop(columns="apart")


def stream_differences(model: Any, tokens: Any) -> dict[str, float]:
    """spread, rank and the mean ‖X − X̄‖ of a model's streams after its last block."""
    import torch

    from streamscope.models.hooks import capture

    with torch.no_grad(), capture(model, name := f"blocks.{model.config.n_layers - 1}.hook_streams_post") as cache:
        model(tokens)
    X = cache[name].double()
    deviation = (X - X.mean(2, keepdim=True)).square().sum((2, 3)).sqrt()
    p = torch.linalg.svdvals(X).square()
    p = p / p.sum(-1, keepdim=True)
    return {
        "spread": float((deviation / X.square().sum((2, 3)).sqrt()).mean()),
        "rank": float(torch.special.entr(p).sum(-1).exp().mean()),
        "apart": float(deviation.mean()),
    }


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom.arithmetic`."""

    steps: Count = 2000
    """Updates of each problem."""
    seeds: Whole = 0
    """Untrained models of the blog's size to measure; none unless given."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, compute, print."""
    options = parse(Options, argv, __doc__)

    cases = table(options.steps)
    keys = ["pull", "decay", "optimizer", "lr", "dtype"]
    print(f"swap after {options.steps} steps, by initial bias; the pull swap aims at {TARGET}\n")
    print(cases.pivot(index=keys, columns="bias", values="swap").to_string(float_format="{:.4f}".format))
    p = 1 / (1 + math.exp(8.0))
    print(f"\nslope of an entry of mHC's H_res at −8: {sinkhorn_slope(-8.0):.6f}; p(1−p): {p * (1 - p):.6f}")
    if options.seeds:
        streams = untrained(options.seeds).groupby("bias").agg(["mean", "sem"]).drop(columns="seed", level=0)
        print(f"\n{streams.to_string(float_format='{:.4f}'.format)}")


if __name__ == "__main__":
    command(main)
