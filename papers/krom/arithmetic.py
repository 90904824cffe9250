"""Test whether swap logits stay at −8 because of a saturated softmax or of bf16 storage (KROM).

    python -m papers.krom.arithmetic
    python -m papers.krom.arithmetic --out arithmetic.parquet

KROM says that mixing stays frozen at bias −8 because p(1−p) is 313 times smaller there than at −2. But AdamW divides
by the size of the gradient, and weight decay does not see p at all. One factor U = [[1−s, s], [s, 1−s]] with
(1−s, s) = softmax(b), b = [0, bias] at the start, is trained by itself under three pulls:

    swap   ½ (s − .30)²     towards a swap of 30 %; its gradient in b has p(1−p) as a factor
    unit   b_0 − b_1        a gradient of ±1 whatever b is
    none   0                weight decay alone

Parameters, gradients and moments are stored in fp32 or bf16; rates, betas, decay, warm-up and cosine are those of the
hyper-connections in training (SPEC §1.2). SGD has no momentum and is given every rate of `SGD_RATES`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamscope.cli.bounds import Count
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.instruments.command import check_results

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

    from streamscope.instruments.undefined_cells import mark
    from streamscope.models.layers.hyper_mixing import DTYPES
    from streamscope.models.training.config import Training
    from streamscope.models.training.optim import lr_factor

    for what, value, known in (("pull", case.pull, PULLS), ("optimizer", case.optimizer, ("adamw", "sgd"))):
        if value not in known:
            raise InputError(f"{what} {value!r} is unknown: {', '.join(known)}")
    if case.dtype not in DTYPES:
        raise InputError(f"dtype {case.dtype!r} is unknown: {', '.join(DTYPES)}")
    t = Training()
    b = torch.nn.Parameter(torch.tensor([[0.0, bias] for bias in biases]).to(DTYPES[case.dtype]))
    wide: dict[str, Any] = {"lr": case.lr, "weight_decay": case.decay}
    optimizer: torch.optim.Optimizer = torch.optim.SGD([b], **wide)
    if case.optimizer == "adamw":
        optimizer = torch.optim.AdamW([b], betas=(t.hc_beta1, t.hc_beta2), fused=True, **wide)
    first = torch.zeros_like(b)
    moved = torch.zeros(len(biases), dtype=torch.long)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = case.lr * lr_factor(step, steps, WARMUP, FLOOR)
        optimizer.zero_grad()
        _loss(case.pull, b.float()).backward()
        assert b.grad is not None
        before = b.detach().clone()
        if step == 0:
            first = b.grad.clone()
        optimizer.step()
        moved += (b.detach() != before).any(-1).long()
    end, start = b.detach().double(), torch.tensor(biases).double().sigmoid()
    gone = ~end.isfinite().all(-1)
    end[gone] = math.nan
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
            "moved": moved.tolist(),
            "reached": ((swap - TARGET).abs() < ARRIVED).tolist(),
        }
    )
    return mark(table, ["b0", "b1", "swap"], gone.numpy(), "diverged")


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


def conclusions(table: "pd.DataFrame") -> list[tuple[str, str, bool]]:
    """(what SPEC §1.10 d and KROM say, what came out, whether it holds), from the table alone."""

    def one(pull: str, dtype: str, bias: float, decay: float = 0.2, optimizer: str = "adamw", lr: float = 5e-3) -> Any:
        keys = {"pull": pull, "dtype": dtype, "bias": bias, "decay": decay, "optimizer": optimizer, "lr": lr}
        rows = table
        for name, value in keys.items():
            rows = rows[rows[name] == value]
        (row,) = rows.itertuples(index=False)
        return row

    def end(row: Any) -> str:
        return f"swap {row.swap:.4f} (logits {row.b0:.3f} and {row.b1:.3f})".replace("-", "−")

    def slope(row: Any) -> float:  # the gradient without its factor s − .30
        return row.gradient / (1 / (1 + math.exp(-row.bias)) - TARGET)

    def rates(dtype: str) -> list[float]:
        rows = table[(table["optimizer"] == "sgd") & (table["pull"] == "swap") & (table["decay"] == 0)]
        return rows[(rows["dtype"] == dtype) & (rows["bias"] == -8.0) & rows["reached"]]["lr"].tolist()

    decayed = {dtype: one("swap", dtype, -8.0) for dtype in ("fp32", "bf16")}
    bare = {dtype: one("swap", dtype, -8.0, decay=0.0) for dtype in ("fp32", "bf16")}
    alone = {dtype: one("none", dtype, -8.0) for dtype in ("fp32", "bf16")}
    unit = {dtype: one("unit", dtype, -8.0) for dtype in ("fp32", "bf16")}
    mild = [one("swap", dtype, -2.0) for dtype in ("fp32", "bf16")]
    ratio = slope(one("swap", "fp32", -2.0, optimizer="sgd")) / slope(one("swap", "fp32", -8.0, optimizer="sgd"))
    fp32, bf16 = decayed["fp32"], decayed["bf16"]
    softmax, sinkhorn = slope(one("swap", "fp32", -8.0, optimizer="sgd")), sinkhorn_slope(-8.0)
    return [
        ("AdamW, fp32, from −8: reaches .30", end(fp32), bool(fp32.reached)),
        ("the same without decay: p(1−p) alone is no trap", end(bare["fp32"]), bool(bare["fp32"].reached)),
        ("AdamW, bf16, from −8: b_1 stays −8", end(bf16), bf16.b1 == -8.0),
        ("… and swap ends at .0025, with decay", end(bf16), abs(bf16.swap - 0.0025) < 5e-5),
        ("… and swap ends at .0025, without decay", end(bare["bf16"]), abs(bare["bf16"].swap - 0.0025) < 5e-5),
        ("AdamW, from −2: fp32 and bf16 reach .30", "; ".join(map(end, mild)), all(row.reached for row in mild)),
        ("unit steps up, fp32: b_1 = .63", f"{unit['fp32'].b1:.3f}", abs(unit["fp32"].b1 - 0.63) < 5e-3),
        ("unit steps up, bf16: b_1 = −8", f"{unit['bf16'].b1:.3f}".replace("-", "−"), unit["bf16"].b1 == -8.0),
        ("no pull, fp32: decay alone leaves −8", end(alone["fp32"]), alone["fp32"].b1 > -7.0),
        ("no pull, bf16: nothing moves", end(alone["bf16"]), alone["bf16"].moved == 0),
        ("p(1−p) at −2 is 313 times that at −8", f"{ratio:.1f}", abs(ratio - 313.2) < 0.5),
        (
            "mHC at −8: an entry moves with its logit as little as p(1−p)",
            f"{sinkhorn:.6f} against {softmax:.6f}",
            abs(sinkhorn / softmax - 1) < 0.1,
        ),
        (
            f"SGD, fp32, no decay: frozen at the rate {SGD_RATES[0]}",
            _rates(rates("fp32")),
            SGD_RATES[0] not in rates("fp32"),
        ),
        ("SGD, fp32, no decay: reaches .30 at some rate", _rates(rates("fp32")), bool(rates("fp32"))),
        ("SGD, bf16, no decay: reaches .30 at some rate", _rates(rates("bf16")), bool(rates("bf16"))),
    ]


def _rates(rates: list[float]) -> str:
    reached, tried = (", ".join(f"{lr:g}" for lr in some) for some in (rates, SGD_RATES))
    return f"reaches .30 at rates {reached} (tried: {tried})"


def swaps(table: "pd.DataFrame") -> "pd.DataFrame":
    """Final swap, one column per bias."""
    keys = ["pull", "decay", "optimizer", "lr", "dtype"]
    wide = table[table["pull"] != "unit"].copy()
    wide["swap"] = [f"{x:.4f}" if x == x else "diverged" for x in wide["swap"]]
    wide["bias"] = [f"from {bias:g}" for bias in wide["bias"]]
    order = list(dict.fromkeys(wide["bias"]))
    return wide.pivot(index=keys, columns="bias", values="swap")[order].reset_index()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom.arithmetic`."""

    steps: Count = 2000
    """Updates of each problem."""
    out: Path | None = None
    """Write all rows (.parquet) here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, compute, print, write."""
    options = parse(Options, argv, __doc__)
    check_results(options.out, "papers.krom.arithmetic", ("", "claims"))

    import pandas as pd

    from streamscope.cli.provenance import provenance
    from streamscope.instruments.result import Result
    from streamscope.papers.comparison.tables import table_of

    cases = table(options.steps)
    verdicts = pd.DataFrame(conclusions(cases), columns=["claim", "computed", "holds"])
    title = f"swap probability after {options.steps} steps; the pull swap aims at {TARGET}"
    claims = table_of(verdicts, "krom/arithmetic", "what holds")
    for shown in (table_of(swaps(cases), "krom/arithmetic", title), claims):
        shown.print()
    if options.out is not None:
        about = {**provenance("cpu"), "steps": options.steps}
        tables = {"arithmetic": table_of(cases, "krom/arithmetic", title), "claims": claims}
        print(*(f"written {path}" for path in Result(tables, about=about).save(options.out)), sep="\n")


if __name__ == "__main__":
    command(main)
