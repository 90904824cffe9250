"""Do the streams of a run mix? What its mixing matrices, gates and routing became, module by module (KROM, blog).

    python -m probes.mixing_monitor
    python -m probes.mixing_monitor runs/kromhc
    python -m probes.mixing_monitor runs/krom-8 runs/krom-2 runs/krom-0 --out mixing.parquet

Swap probabilities and ‖H_res − I‖ come from the weights that a run kept, everything that needs tokens from its
metrics.jsonl, where training logs it at each evaluation. Figures: swap probability, static against best achievable;
weights of the Kronecker factors; α_res against the best swap; all of it over the steps; with several runs whose
initial biases differ, the bias sweep. `models.mixing.METRICS` has the formulas. Weight decay pulls every logit towards
full mixing: whether the streams of a run mix is judged beyond what decay alone gives (`probes.mixing`), over the
modules whose mixing can change an output.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.models.cli import command, parse
from streamscope.probes.command import RunOptions, check_options, show, write_results

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    "gradient": "nats per token",
    "alpha_res": "logits",
    "loss": "nats per token",
    "bias": "logits",
    "distance_static": "Frobenius norm",
    "distance_dynamic": "Frobenius norm",
    "distance_decay": "Frobenius norm",
    "modules": "whose mixing can act",
    "swap_static": "probability",
    "swap_dynamic": "probability",
    "swap_best": "probability",
    "gate_low": "share of tokens (and channels)",
    "routing_share": "share of ‖W‖²",
    "step": "optimiser steps",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.mixing_monitor`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("kromcanon", "kromcanon-b2")
    """Run folders or bundled models; by default the two of biases −8 and −2."""
    out: Path | None = None
    """Write the table of modules (.parquet) here, the log, the runs and the figures (.html) beside it."""


@dataclass(frozen=True)
class Watched:
    """One run: its log over steps, and every metric at the weights it kept."""

    name: str
    log: "pd.DataFrame"
    final: "pd.DataFrame"
    about: dict[str, Any]
    idle: Collection[str]
    """Modules whose mixing cannot change an output."""
    rest: "dict[str, float] | str"
    """‖H_res − I‖_F of each module without any gradient, or why it is not known."""


def read(run: str, name: str = "") -> Watched:
    """A run folder's tables. Raises `InputError` for a run without anything that mixes."""
    from streamscope.models.checkpoint import load, read_manifest, run_folder, run_label
    from streamscope.models.mixing import idle
    from streamscope.models.runs import evaluations
    from streamscope.probes.mixing import final, kept_step, log

    folder = run_folder(run)
    model = load(folder, device="cpu")
    step, logged = kept_step(folder), log(folder)
    rows = final(model, logged, step)
    ends = evaluations(folder) if (folder / "metrics.jsonl").is_file() else []
    losses = [row["loss"] for row in ends if row["step"] == step]
    manifest = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    about = {
        "preset": model.config.name,
        "seed": str(manifest.get("seed", "unknown")),
        "step": step,
        "bias": getattr(model.config.residual, "b_res", float("nan")),
        "loss": losses[-1] if losses else float("nan"),
    }
    return Watched(name or run_label(folder), logged, rows, about, idle(model), _rest(folder, model, manifest, step))


def _rest(folder: Path, model: Any, manifest: dict[str, Any], step: int) -> "dict[str, float] | str":
    from streamscope.models.disk import Config, read_json
    from streamscope.probes.mixing import distances_without_gradient

    training = read_json(folder / "config.json", Config).get("training")
    if "parent" in manifest:
        return "made from other weights: how they were decayed is not known"
    if not training or "steps" not in manifest or step < 0:
        return "no training is written down whose decay could be replayed"
    return distances_without_gradient(model, training, int(manifest["steps"]), step)


def overview(runs: Sequence[Watched]) -> "pd.DataFrame":
    """One row per run: bias, kept step, its validation loss, and means over the modules and factors that can act.

    `distance_decay` is ‖H_res − I‖ without any gradient. `streams` counts the modules by the rule of `probes.mixing`,
    on ‖H_res − I‖ in use (the mean over tokens) where it was measured, else with the biases alone; an absent value is
    undefined with the reason.
    """
    import pandas as pd

    from streamscope.probes.mixing import streams
    from streamscope.probes.undefined import note

    rows = []
    for run in runs:
        row: dict[str, Any] = {"run": run.name, **run.about}
        why = {} if row["bias"] == row["bias"] else {"bias": "no initial bias of mixing"}
        if row["loss"] != row["loss"]:
            why["loss"] = "no evaluation of these weights"
        can = run.final[~run.final["module"].isin(run.idle)]
        for metric in ("swap_static", "swap_best", "distance_static", "distance_dynamic", "sigma2_static", "alpha_res"):
            of = can[can["metric"] == metric]
            row[metric] = float(of["value"].mean()) if of["value"].notna().any() else float("nan")
            if row[metric] != row[metric]:
                why[metric] = of["why"].iloc[0] if len(of) else "no hyper-connections whose mixing can act"
        used = _in_use(run)
        row["modules"] = len(used)
        row["distance_decay"] = float("nan")
        if used.empty:
            row["streams"], why["distance_decay"] = "none to mix", "no hyper-connections whose mixing can act"
        elif isinstance(run.rest, str):
            row["streams"], why["distance_decay"] = _unknown(used), run.rest
        else:
            row["distance_decay"] = sum(run.rest[name] for name in used.index) / len(used)
            row["streams"] = streams(_kinds_of(used, run.rest))
        rows.append({**row, "undefined": note(why)})
    return pd.DataFrame(rows)


def _kinds_of(used: "pd.DataFrame", rest: "dict[str, float]") -> list[str]:
    """`MIX`, `DECAY` or `AT_REST` of each module that has these distances."""
    from streamscope.models.mixing import STILL
    from streamscope.probes.mixing import kind

    in_use = used["distance_static"]
    if "distance_dynamic" in used:
        in_use = used["distance_dynamic"].fillna(in_use)
    return [kind(x, rest[name], STILL) for name, x in in_use.items()]


def kinds(run: Watched) -> list[str] | str:
    """`MIX`, `DECAY` or `AT_REST` of each hyper-connection whose mixing can act, or why that is not known."""
    used = _in_use(run)
    if used.empty:
        return "no hyper-connections whose mixing can act"
    return run.rest if isinstance(run.rest, str) else _kinds_of(used, run.rest)


def _in_use(run: Watched) -> "pd.DataFrame":
    """‖H_res − I‖_F of the modules that can act: distance_static and, where it was measured, distance_dynamic."""
    can = run.final[~run.final["module"].isin(run.idle)]
    found = can[can["metric"].isin(["distance_static", "distance_dynamic"]) & can["value"].notna()]
    return found.drop_duplicates(["module", "metric"]).pivot(index="module", columns="metric", values="value")


def _unknown(used: "pd.DataFrame") -> str:
    """Without a replay only stillness can be told."""
    from streamscope.models.mixing import STILL
    from streamscope.probes.mixing import AT_REST

    return AT_REST if bool((used.max(axis=1) < STILL).all()) else "not still; decay unknown"


def figures(runs: Sequence[Watched], found: "pd.DataFrame") -> Any:
    """The page: what the runs have something for."""
    from streamscope.probes import mixing_figures as draw

    finals = {run.name: run.final for run in runs}
    krom = {name: rows for name, rows in finals.items() if rows.loc[rows["metric"] == "swap_static", "value"].any()}
    panels = [draw.swap_bars(krom), draw.factor_maps(krom), draw.scatter(krom)] if krom else []
    panels += [draw.trajectories({run.name: run.log for run in runs}), draw.sweep(found)]
    return draw.Figures([p for p in panels if p is not None])


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, print, write."""
    options = parse(Options, argv, __doc__)
    together = RunOptions(run=" ".join(options.runs), out=options.out, device="cpu")
    check_options(together)
    import pandas as pd

    from streamscope.probes.mixing import by_module, short
    from streamscope.probes.undefined import legend

    labels = _labels(options.runs)
    runs = [read(run, name) for run, name in zip(options.runs, labels, strict=True)]
    tables, logs = [], []
    for run in runs:
        table = by_module(run.final)
        shown = table.assign(module=[short(m) for m in table["module"]])
        if "gradient" in shown:  # far below what four decimals show
            shown["gradient"] = [f"{x:.1e}" if x == x else x for x in shown["gradient"]]
        step = run.about["step"]
        title = f"{run.name}, " + (f"step {step}" if step >= 0 else "the saved weights")
        for columns in _kinds(table):
            part = shown[shown[columns].notna().any(axis=1)]
            show(part[["module", "part", *columns, "undefined"]], title, digits=5)
        why = legend(_own(table))
        if why:
            print(why)
        tables.append(table.assign(run=run.name))
        logs.append(run.log.assign(run=run.name))
    found = overview(runs)
    show(found.drop(columns="streams"), "runs: means over the modules whose mixing can act", digits=4)
    for row in found.itertuples():
        print(f"{row.run}: streams {row.streams}")
    page = figures(runs, found)
    every = pd.concat(tables, ignore_index=True)
    log = pd.concat(logs, ignore_index=True).rename(columns={"why": "reason"})
    out = {"": (every, UNITS), "log": (log, {"step": UNITS["step"]}), "runs": (found, UNITS)}
    write_results(together, out, page)


def _labels(runs: Sequence[str]) -> list[str]:
    """Folder names, or whole paths where two are the same."""
    names = [Path(run).name for run in runs]
    return names if len(set(names)) == len(names) else list(runs)


def _kinds(table: "pd.DataFrame") -> list[list[str]]:
    """Columns to print together: those of connections, of gates, of routing."""
    hyper = [c for c in table if c.startswith(("distance", "sigma2", "swap", "alpha", "gradient"))]
    own = [hyper, *([c for c in table if c.startswith(kind)] for kind in ("gate", "routing"))]
    return [columns for columns in own if columns]


def _own(table: "pd.DataFrame") -> "pd.DataFrame":
    """Reasons without those of another kind of module."""
    from streamscope.probes.undefined import note, reasons

    kept = [{c: r for c, r in reasons(text).items() if r != "not of this module"} for text in table["undefined"]]
    return table.assign(undefined=[note(r) for r in kept])


if __name__ == "__main__":
    command(main)
