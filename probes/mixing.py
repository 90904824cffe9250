"""Tables of the mixing metrics, from a run's log and its weights, by module (KROM; SPEC §1.5).

`models.mixing` has the formulas (`METRICS`) and computes them (`measure`); training logs them at each evaluation.
Streams mix where training made them mix: weight decay pulls every logit towards 0, where mixing is full, whatever the
loss says. So a module counts only if its mixing can change an output (`models.mixing.inert_modules`), and against
what the run's decay, schedule and storage make of the initial bias without any gradient (`without_gradient`):

    mix                          that much exceeded by at least `NO_MIXING` of ‖H_res − I‖_F
    no more than decay alone     not above that, but it mixes at least that much: the initial bias or decay mixes
    still                        less than that
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.layers.hyper_mixing import DTYPES
from streamscope.models.mixing import Row, connections, distance, gates, has_mixing, measure
from streamscope.models.tensors import read_tensors
from streamscope.models.training.optim import lr_factor
from streamscope.models.training.run import read_metrics

KEYS = ["module", "metric", "part"]


def log(folder: Path) -> pd.DataFrame:
    """The mixing rows of metrics.jsonl, if there are any: step, module, metric, part, value (NaN where undefined), why.
    Raises `InputError` for a damaged file."""
    rows = [r for r in read_metrics(folder) if r["kind"] == "mixing"] if (folder / "metrics.jsonl").is_file() else []
    return _frame(rows, ["step", *KEYS, "value", "why"])


def _frame(rows: Sequence[Row], columns: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame([{**row, "why": row.get("undefined", "")} for row in rows], columns=columns)
    return frame.astype({"value": float})


def final(model: Any, logged: pd.DataFrame, step: int) -> pd.DataFrame:
    """Every metric at the weights of `step`: static ones from `model`, the others from the log of that step, or
    undefined, with the reason. Raises `InputError` for a model without mixing."""
    if not has_mixing(model):
        raise InputError(
            f"{model.config.name} has no mixing matrices: one residual stream, no gate, no routing. Hyper-connections "
            "(kromhc, kromcanon, any residual=hc|mhc|mhc_lite|kromhc), head gates (pls, c2) and Kronecker projections "
            "(dst-kron) have some"
        )
    current = _frame(measure(model), [*KEYS, "value", "why"])
    step_rows = logged[logged["step"] == step].drop(columns="step")
    table = pd.concat([current, step_rows]).drop_duplicates(KEYS, ignore_index=True)
    if not step_rows.empty:
        return table
    reason = "metrics.jsonl has no mixing rows" if logged.empty else f"not logged at step {step}"
    absent = [(module, metric) for module in connections(model) for metric in ("distance_dynamic", "gradient")]
    absent += [(module, metric) for module in gates(model) for metric in ("gate_mean", "gate_sd", "gate_low")]
    rows = [{"module": m, "metric": metric, "part": "", "value": None, "undefined": reason} for m, metric in absent]
    return pd.concat([table, _frame(rows, list(table))], ignore_index=True) if rows else table


def without_gradient(b: Tensor, training: Mapping[str, Any], steps: int, until: int | None = None) -> Tensor:
    """Logits `b` after `until` of a run's `steps` with zero gradients: only decay, schedule and storage act.

    `b` has the run's dtype. In exact arithmetic b ← b (1 − η_t λ). Stochastic rounding is replayed in fp32, its mean.
    """
    t = training
    p = torch.nn.Parameter(b.detach().float() if t.get("rounding") == "stochastic" else b.detach().clone())
    rates: dict[str, Any] = {"lr": t["hc_lr"], "weight_decay": t["hc_decay"]}
    optimizer: torch.optim.Optimizer = torch.optim.SGD([p], **rates)
    if t["hc_optimizer"] == "adamw":
        optimizer = torch.optim.AdamW([p], betas=(t["hc_beta1"], t["hc_beta2"]), fused=True, **rates)
    for step in range(steps if until is None else until):
        optimizer.param_groups[0]["lr"] = t["hc_lr"] * lr_factor(step, steps, t["warmup"], t["lr_floor"])
        p.grad = torch.zeros_like(p)
        optimizer.step()
    return p.detach()


def distances_without_gradient(
    model: Any, training: Mapping[str, Any], steps: int, until: int | None = None
) -> dict[str, float]:
    """‖H_res − I‖_F of each connection of a model after `without_gradient`, by its name."""
    modules = {n: m for n, m in connections(model).items() if "res" in m.b}
    if not modules:
        return {}
    first = next(iter(modules.values()))  # all modules of a model start with the same b_res
    start = first.biases()["res"].to(DTYPES[first.spec.hc_dtype])
    return dict.fromkeys(
        modules, float(distance(first.mixing(without_gradient(start, training, steps, until).float())))
    )


def kept_step(folder: Path) -> int:
    """The step of the weights in model.safetensors; −1 if the file does not say."""
    return int(read_tensors(folder / "model.safetensors")[1].get("step", -1))
