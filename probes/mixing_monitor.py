"""Do the streams of a run mix? What its mixing matrices, gates and routing became, module by module (KROM, blog).

    python -m probes.mixing_monitor
    python -m probes.mixing_monitor runs/kromhc
    python -m probes.mixing_monitor runs/krom-8 runs/krom-2 runs/krom-0 --out mixing.parquet

Swap probabilities and ‖H_res − I‖ come from the weights that a run kept, everything that needs tokens from its
metrics.jsonl, where training logs it at each evaluation. Figures: swap probability, static against best achievable;
weights of the Kronecker factors; α_res against the best swap; all of it over the steps; with several runs whose
initial biases differ, the bias sweep. `models.mixing.METRICS` has the formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.cli import command, parse
from probes.command import RunOptions, check_options, show, write_results

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    "gradient": "nats per token",
    "alpha_res": "logits",
    "loss": "nats per token",
    "bias": "logits",
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


def read(run: str, name: str = "") -> Watched:
    """A run folder's tables. Raises `InputError` for a run without anything that mixes."""
    from models.checkpoint import load, read_json, run_folder, run_label
    from models.runs import evaluations
    from probes.mixing import final, kept_step, log

    folder = run_folder(run)
    model = load(folder, device="cpu")
    step, logged = kept_step(folder), log(folder)
    rows = final(model, logged, step)
    ends = evaluations(folder) if (folder / "metrics.jsonl").is_file() else []
    losses = [row["loss"] for row in ends if row["step"] == step]
    manifest = read_json(folder / "manifest.json") if (folder / "manifest.json").is_file() else {}
    about = {
        "preset": model.config.name,
        "seed": str(manifest.get("seed", "unknown")),
        "step": step,
        "bias": getattr(model.config.residual, "b_res", float("nan")),
        "loss": losses[-1] if losses else float("nan"),
    }
    return Watched(name or run_label(folder), logged, rows, about)


def overview(runs: Sequence[Watched]) -> "pd.DataFrame":
    """One row per run: bias, kept step, its validation loss, and the mean over modules and factors of each metric.

    `streams` is still, mix or none to mix, by the monitor's rule `models.mixing.still`; an absent value is undefined
    with the reason.
    """
    import pandas as pd

    from models.mixing import still
    from probes.undefined import note

    rows = []
    for run in runs:
        row: dict[str, Any] = {"run": run.name, **run.about}
        why = {} if row["bias"] == row["bias"] else {"bias": "no initial bias of mixing"}
        if row["loss"] != row["loss"]:
            why["loss"] = "no evaluation of these weights"
        for metric in ("swap_static", "swap_best", "distance_static", "distance_dynamic", "sigma2_static", "alpha_res"):
            of = run.final[run.final["metric"] == metric]
            row[metric] = float(of["value"].mean()) if of["value"].notna().any() else float("nan")
            if row[metric] != row[metric]:
                why[metric] = of["why"].iloc[0] if len(of) else "no hyper-connections"
        cells = run.final.astype({"value": object}).where(run.final["value"].notna(), None)
        could = run.final.loc[run.final["metric"] == "distance_static", "value"].notna().any()
        row["streams"] = ("still" if still(cells.to_dict("records")) else "mix") if could else "none to mix"
        rows.append({**row, "undefined": note(why)})
    return pd.DataFrame(rows)


def figures(runs: Sequence[Watched], found: "pd.DataFrame") -> Any:
    """The page: what the runs have something for."""
    from probes import mixing_figures as draw

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

    from probes.mixing import by_module, short
    from probes.undefined import legend

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
    show(found, "runs: means over modules", digits=4)
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
    from probes.undefined import note, reasons

    kept = [{c: r for c, r in reasons(text).items() if r != "not of this module"} for text in table["undefined"]]
    return table.assign(undefined=[note(r) for r in kept])


if __name__ == "__main__":
    command(main)
