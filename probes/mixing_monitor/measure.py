"""The mixing monitor: a run's log and weights as tables by module and step, and whether its streams mix."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened
from streamscope.instruments.observations import Estimates
from streamscope.instruments.table import Column, Table, key, number
from streamscope.instruments.undefined_cells import note
from streamscope.models.checkpoint import read_manifest
from streamscope.models.mixing import METRICS, NO_MIXING, UNITS, inert_modules
from streamscope.models.runs import evaluations
from streamscope.probes import mixing
from streamscope.probes.mixing_monitor import MixingMonitor


@dataclass(frozen=True)
class RunMixing:
    """One run: its log over steps, and every metric at the kept weights.

    inert_modules: modules whose mixing cannot change an output. rest: ‖H_res − I‖_F of each module without any
    gradient, or the reason why it is unknown.
    """

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
    step, logged = mixing.kept_step(folder), mixing.log(folder)
    rows = mixing.final(model, logged, step)
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
            decay = mixing.distances_without_gradient(model, training, int(manifest["steps"]), step)
    return RunMixing(logged, rows, about, inert_modules(model), decay)


def overview(run: RunMixing) -> pd.DataFrame:
    """One row: bias, kept step, its validation loss, and means over the modules and factors that can act.

    `distance_decay` is ‖H_res − I‖ without any gradient. `streams` counts the modules by the rule of `probes.mixing`,
    on ‖H_res − I‖ in use (mean over tokens) if measured, else from the biases alone. Missing values have reasons.
    """
    row: dict[str, Any] = dict(run.about)
    reasons = {} if row["bias"] == row["bias"] else {"bias": "the model has no initial bias of mixing"}
    if row["loss"] != row["loss"]:
        reasons["loss"] = "these weights were not evaluated"
    can = run.final[~run.final["module"].isin(run.inert_modules)]
    for metric in ("swap_static", "swap_best", "distance_static", "distance_dynamic", "sigma2_static", "alpha_res"):
        metric_rows = can[can["metric"] == metric]
        row[metric] = float(metric_rows["value"].mean()) if metric_rows["value"].notna().any() else float("nan")
        if row[metric] != row[metric]:
            reasons[metric] = (
                metric_rows["why"].iloc[0] if len(metric_rows) else "no hyper-connections whose mixing can act"
            )
    distances = _in_use(run)
    row["modules"] = len(distances)
    row["distance_decay"] = float("nan")
    if distances.empty:
        row["streams"], reasons["distance_decay"] = "none to mix", "no hyper-connections whose mixing can act"
    elif isinstance(run.rest, str):
        # without a replay of the decay nothing else can be shown
        at_rest = bool((distances.max(axis=1) < NO_MIXING).all())
        row["streams"], reasons["distance_decay"] = mixing.AT_REST if at_rest else "not still; decay unknown", run.rest
    else:
        row["distance_decay"] = sum(run.rest[name] for name in distances.index) / len(distances)
        row["streams"] = mixing.streams(_kinds_of(distances, run.rest))
    return pd.DataFrame([{**row, "undefined": note(reasons)}])


def _kinds_of(distances: pd.DataFrame, decay: dict[str, float]) -> list[str]:
    """`MIX`, `DECAY` or `AT_REST` for each module with these distances."""
    in_use = distances["distance_static"]
    if "distance_dynamic" in distances:
        in_use = distances["distance_dynamic"].fillna(in_use)
    return [mixing.kind(x, decay[name], NO_MIXING) for name, x in in_use.items()]


def kinds(run: RunMixing) -> list[str] | str:
    """`MIX`, `DECAY` or `AT_REST` for each hyper-connection whose mixing can act, or the reason why it is unknown."""
    distances = _in_use(run)
    if distances.empty:
        return "no hyper-connections whose mixing can act"
    return run.rest if isinstance(run.rest, str) else _kinds_of(distances, run.rest)


def _in_use(run: RunMixing) -> pd.DataFrame:
    """‖H_res − I‖_F of the modules that can act: distance_static and, if measured, distance_dynamic."""
    can = run.final[~run.final["module"].isin(run.inert_modules)]
    rows = can[can["metric"].isin(["distance_static", "distance_dynamic"]) & can["value"].notna()]
    return rows.drop_duplicates(["module", "metric"]).pivot(index="module", columns="metric", values="value")


def observe(options: MixingMonitor, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """The kept weights and the log; weights have no units, so nothing is estimated."""
    return InstrumentData({}, {}, {"title": title_of(model)}, extra=watch(model))


def tables(options: MixingMonitor, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """modules: every metric at the kept weights; runs: their means over the modules that can act; log: over steps."""
    run, title = data.extra, data.about["title"]
    modules, logged = mixing.by_module(run.final), run.log.rename(columns={"why": "reason"})
    of_modules, of_log = (
        [f"{mixing.short(m)} {part}".strip() for m, part in zip(frame["module"], frame["part"], strict=True)]
        for frame in (modules, logged)
    )
    modules.insert(0, "name", of_modules)
    step = run.about["step"]
    moment = f"step {step}" if step >= 0 else "the saved weights"
    summary = overview(run)
    runs = [_metric(c) if c in METRICS else RUNS[c] for c in summary if c != "undefined"]
    return {
        "modules": Table.noted(
            modules, (*MODULE, *(_metric(c) for c in modules if c in METRICS)), f"{title}, {moment}"
        ),
        "runs": Table.noted(summary, tuple(runs), f"{title}: streams {summary['streams'][0]}; means over modules"),
        "log": Table(logged.assign(name=of_log), LOG, {}, f"{title}: over the steps of training", "step", 10),
    }


def _metric(name: str) -> Column:
    unit = UNITS.get(name, "probability" if name.startswith("swap") else "Frobenius norm" if "distance" in name else
                     "share" if name in ("gate_low", "routing_share") else "number")  # fmt: skip
    digits = ".1e" if name == "gradient" else ".5f"
    return number(name, name.replace("_", " "), unit, METRICS[name], digits)


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
    "streams": key("streams", "streams", "whether the streams mix, by the rule of probes.mixing", "verdict"),
}  # fmt: skip
