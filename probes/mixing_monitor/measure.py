"""A run's log and weights as tables by module and step, and whether its streams mix (KROM; SPEC §1.5).

`models.mixing` has the formulas (`METRICS`) and computes them (`measure`); training logs them at each evaluation.
Streams mix where training made them mix: weight decay pulls every logit towards 0, where mixing is full, whatever the
loss says. So a module counts only if its mixing can change an output (`models.mixing.inert_modules`), and against
what the run's decay, schedule and storage make of the initial bias without any gradient (`without_gradient`):

    mix                          that much exceeded by at least `NO_MIXING` of ‖H_res − I‖_F
    no more than decay alone     not above that, but it mixes at least that much: the initial bias or decay mixes
    still                        less than that
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.table import Column, Table, key, note, number
from streamscope.models import mixing
from streamscope.models.checkpoint import read_manifest
from streamscope.models.mixing import METRICS, NO_MIXING, UNITS, Row, connections, gates, has_mixing, inert_modules
from streamscope.models.runs import evaluations
from streamscope.models.tensors import DTYPES, read_tensors
from streamscope.models.training.optim import lr_factor
from streamscope.models.training.run import read_metrics
from streamscope.probes.mixing_monitor import MixingMonitor

KEYS = ["module", "metric", "part"]
MIX, DECAY, AT_REST = "mix", "no more than decay alone", "still"
NONE_ACTS = "no hyper-connections whose mixing can act"


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
    current = _frame(mixing.measure(model), [*KEYS, "value", "why"])
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


def kept_step(folder: Path) -> int:
    """The step of the weights in model.safetensors; −1 if the file does not say."""
    return int(read_tensors(folder / "model.safetensors")[1].get("step", -1))


@dataclass(frozen=True)
class RunMixing:
    """One run: its log over steps, every metric at the kept weights, the modules whose mixing cannot change an output,
    and `rest`: ‖H_res − I‖_F of each module without any gradient, or the reason why it is unknown."""

    log: pd.DataFrame
    final: pd.DataFrame
    about: dict[str, Any]
    inert_modules: Collection[str]
    rest: dict[str, float] | str


def watch(model: Any) -> RunMixing:
    """The tables of a model loaded from a run. Raises `InputError` for other models, and if nothing mixes."""
    folder = getattr(model, "run", None)
    if folder is None:
        raise InputError("this model was not loaded from a run and has no log of its mixing; save it, then load it")
    step, logged = kept_step(folder), log(folder)
    rows = final(model, logged, step)
    ends = evaluations(folder) if (folder / "metrics.jsonl").is_file() else []
    losses = [row["loss"] for row in ends if row["step"] == step]
    manifest = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    about = {
        "preset": model.config.name, "seed": str(manifest.get("seed", "unknown")), "step": step,
        "bias": getattr(model.config.residual, "b_res", float("nan")), "loss": losses[-1] if losses else float("nan"),
    }  # fmt: skip
    training = read_json(folder / "config.json", Config).get("training")
    decay: dict[str, float] | str = "made from other weights, whose decay is unknown"
    if "parent" not in manifest:
        decay = "the run records no training whose decay could be replayed"
        if training and "steps" in manifest and step >= 0:
            modules = {name: module for name, module in connections(model).items() if "res" in module.b}
            decay = {}
            for first in list(modules.values())[:1]:  # all start with the same b_res
                start = first.biases()["res"].to(DTYPES[first.spec.hc_dtype])
                end = without_gradient(start, training, int(manifest["steps"]), step).float()
                decay = dict.fromkeys(modules, float(mixing.distance(first.mixing(end))))
    return RunMixing(logged, rows, about, inert_modules(model), decay)


def overview(run: RunMixing) -> pd.DataFrame:
    """One row: bias, kept step, its validation loss, and means over the modules and factors that can act.

    `distance_decay` is ‖H_res − I‖ without any gradient. `streams` counts the modules by the rule above,
    on ‖H_res − I‖ in use (mean over tokens) if measured, else from the biases alone. Missing values have reasons.
    """
    nan = float("nan")
    row, distances = {**run.about}, _in_use(run)
    reasons = {} if row["bias"] == row["bias"] else {"bias": "the model has no initial bias of mixing"}
    reasons |= {} if row["loss"] == row["loss"] else {"loss": "these weights were not evaluated"}
    for metric in ("swap_static", "swap_best", "distance_static", "distance_dynamic", "sigma2_static", "alpha_res"):
        rows = _acting(run, metric)
        row[metric] = float(rows["value"].mean())
        if row[metric] != row[metric]:
            reasons[metric] = rows["why"].iloc[0] if len(rows) else NONE_ACTS
    row |= {"modules": len(distances), "distance_decay": nan, "streams": "none to mix"}
    if distances.empty:
        reasons["distance_decay"] = NONE_ACTS
    elif isinstance(run.rest, str):
        # without a replay of the decay nothing else can be shown
        moving = any((_acting(run, f"distance_{kind}")["value"] >= NO_MIXING).any() for kind in ("static", "dynamic"))
        row["streams"] = "not still; decay unknown" if moving else AT_REST
        reasons["distance_decay"] = run.rest
    else:
        row["distance_decay"] = sum(run.rest[name] for name in distances.index) / len(distances)
        counts = Counter(kinds(run))
        parts = [f"{name} {counts[name]}" for name in (MIX, DECAY, AT_REST) if counts[name]]
        row["streams"] = f"{', '.join(parts)} of {len(distances)}" if len(counts) > 1 else next(iter(counts))
    return pd.DataFrame([{**row, "undefined": note(reasons)}])


def kinds(run: RunMixing) -> list[str] | str:
    """`MIX`, `DECAY` or `AT_REST` for each hyper-connection whose mixing can act, or the reason why it is unknown."""
    distances = _in_use(run)
    if distances.empty:
        return NONE_ACTS
    if isinstance(run.rest, str):
        return run.rest
    over = {name: x - run.rest[name] >= NO_MIXING for name, x in distances.items()}
    return [MIX if over[name] else DECAY if x >= NO_MIXING else AT_REST for name, x in distances.items()]


def _acting(run: RunMixing, metric: str) -> pd.DataFrame:
    return run.final[(run.final["metric"] == metric) & ~run.final["module"].isin(run.inert_modules)]


def _in_use(run: RunMixing) -> pd.Series:
    """‖H_res − I‖_F of the modules that can act, by name: the mean over tokens if measured, else of the biases."""
    static, dynamic = (
        _acting(run, f"distance_{kind}").dropna(subset="value").drop_duplicates("module").set_index("module")["value"]
        for kind in ("static", "dynamic")
    )
    return dynamic.reindex(static.index).fillna(static)


def by_module(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per module and part, one column per metric; a metric of the whole module is repeated in its parts.

    `undefined` gives the reason of missing cells; metrics of other kinds of modules are "not of this module".
    """
    metrics, table = [m for m in METRICS if m in set(rows["metric"])], []
    for module, module_rows in rows.groupby("module", sort=False):
        for part in [part for part in dict.fromkeys(module_rows["part"]) if part] or [""]:
            row: dict[str, Any] = {"module": module, "part": part}
            reasons: dict[str, str] = {}
            for metric in metrics:
                of_part = module_rows[(module_rows["metric"] == metric) & module_rows["part"].isin(["", part])]
                row[metric] = float(of_part["value"].iloc[0]) if len(of_part) else float("nan")
                if row[metric] != row[metric]:
                    reasons[metric] = of_part["why"].iloc[0] if len(of_part) else "not of this module"
            table.append({**row, "undefined": note(reasons)})
    return pd.DataFrame(table)


def observe(options: MixingMonitor, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """The kept weights and the log; weights have no units, so nothing is estimated."""
    return InstrumentData(about={"title": title_of(model)}, extra=watch(model))


def tables(options: MixingMonitor, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """modules: every metric at the kept weights; runs: their means over the modules that can act; log: over steps."""
    run, title = data.extra, data.about["title"]
    modules, logged = by_module(run.final), run.log.rename(columns={"why": "reason"})
    pattern = r"^blocks\.(\d+)\.(.*?)(_hc)?$"  # blocks.3.attn_hc -> L3 attn, blocks.0.attn.v -> L0 attn.v
    names, log_names = (
        (frame["module"].str.replace(pattern, r"L\1 \2", regex=True) + " " + frame["part"]).str.strip()
        for frame in (modules, logged)
    )
    modules.insert(0, "name", names)
    moment = f"step {run.about['step']}" if run.about["step"] >= 0 else "the saved weights"
    of_modules = (*MODULE, *(_metric(c) for c in modules if c in METRICS))
    summary = overview(run)
    of_runs = tuple(_metric(c) if c in METRICS else RUNS[c] for c in summary if c != "undefined")
    return {
        "modules": Table.noted(modules, of_modules, f"{title}, {moment}"),
        "runs": Table.noted(summary, of_runs, f"{title}: streams {summary['streams'][0]}; means over modules"),
        "log": Table(logged.assign(name=log_names), LOG, {}, f"{title}: over the steps of training", "step", 10),
    }


def _metric(name: str) -> Column:
    unit = UNITS.get(name, "probability" if name.startswith("swap") else "Frobenius norm" if "distance" in name else
                     "share" if name in ("gate_low", "routing_share") else "number")  # fmt: skip
    return number(name, name.replace("_", " "), unit, METRICS[name], ".1e" if name == "gradient" else ".5f")


MODULE = (
    key("name", "module", "layer, module, and factor or head"),
    key("module", "full name", "name of the module in the model", shown=False),
    key("part", "part", "factor or head", shown=False),
)  # fmt: skip
LOG = (
    number("step", "step", "optimiser steps", "step of the evaluation", "d"),
    *MODULE,
    key("metric", "metric", "name of the metric (`models.mixing.METRICS`)"),
    number("value", "value", "unit of the metric", "value at that step", ".5g"),
    key("reason", "reason", "why the value is missing", "reason", shown=False),
)  # fmt: skip
RUNS = {
    "preset": key("preset", "preset", "preset of the model"),
    "seed": key("seed", "seed", "seed of the training", "seed"),
    "step": number("step", "step", "optimiser steps", "step of the kept weights; −1 if unknown", "d"),
    "bias": number("bias", "initial bias", "logits", "initial b_res", "g"),
    "loss": number("loss", "loss", "nats per token", "validation loss of the kept weights", ".4f"),
    "modules": number("modules", "modules", "modules", "modules whose mixing can act", "d"),
    "distance_decay": number("distance_decay", "distance, decay alone", "Frobenius norm",
                             "‖H_res − I‖_F without any gradient", ".5f"),
    "streams": key("streams", "streams", "whether the streams mix, by the rule of probes.mixing_monitor", "verdict"),
}  # fmt: skip
