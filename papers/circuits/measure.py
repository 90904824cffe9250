"""Abilities, circuits and their overlap: run by run, each task an instrument's result that is kept in a file."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from streamscope.cli.disk import check_folder
from streamscope.cli.errors import InputError, unknown
from streamscope.cli.locks import locked
from streamscope.cli.provenance import commit, provenance
from streamscope.instruments.contract import checkpoint_of
from streamscope.instruments.observations import Contrast, Measure, Observations, estimate
from streamscope.instruments.progress import duration, peak_gigabytes, progress_bar, signs_of_life
from streamscope.instruments.prompts.counterfactual import SUITES
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import holm, read_clusters
from streamscope.instruments.table import check_own, note, read_parquet, write_table
from streamscope.interventions.circuits import Circuits, worth
from streamscope.interventions.circuits.graph import graph_of
from streamscope.interventions.circuits.measure import RESOLUTION, batches_for, seconds_of, task_pairs
from streamscope.interventions.patch.pairs import units_of
from streamscope.models.checkpoint import bundled, load_for_instruments
from streamscope.papers.circuits import Options

TASKS = ("stories", "competing", *SUITES)
"""Tasks that every run is asked to do."""
SHARES = (0.01, 0.02, 0.05, 0.1)
"""Shares of the edges whose overlap is measured."""
SHARE = 0.05
"""That of them at which architectures are compared."""
DRAWS = 200
"""Pairs of bootstraps."""
UNITS = {"m": "nats", "effect": "nats", "needed": "edges", "edges": "edges", "share": "share of the edges",
         "jaccard": "Jaccard index", "chance": "Jaccard index", "separate": "Jaccard index",
         "cpr": "share of the effect", "cmd": "share of the effect", "seconds": "s of CPU", "memory": "GB"}  # fmt: skip
Row = dict[str, Any]
ENDS = ("", "_low", "_high")


def measure(options: Options) -> None:
    """Measure what is missing, run by run, then compare runs of one architecture, and architectures over all seeds.

    Raises `InputError` for a task that is not among `TASKS`, and for a task or a run that is named twice.
    """
    runs = options.runs or bundled()
    for task in options.tasks:
        if task not in TASKS:
            raise unknown("task", task, list(TASKS))
    for option, names in (("--tasks: ", options.tasks), ("", runs)):
        if repeats := [name for name, n in Counter(names).items() if n > 1]:
            raise InputError(f"{option}{repeats[0]} is named twice")
    check_folder(options.out)
    run_results: list[tuple[str, Any, list[Result]]] = []
    for run in runs:
        model = load_for_instruments(run)
        able = _abilities(options, run, model)
        if unable := [task for task in options.tasks if task not in able]:
            print(f"{run} does not do {', '.join(unable)}", file=sys.stderr)
        results = _results(options, run, model, [task for task in options.tasks if task in able])
        labels = {"run": run, "method": options.method}
        _write(options.out, "circuits", labels, [circuit_row(result) for result in results])
        _write(options.out, "streams", labels, [row for result in results for row in stream_rows(result)])
        training = _training(run)
        rows = [{**training, **row} for two in combinations(results, 2) for row in overlap_rows(*two)]
        _write(options.out, "overlap", labels, rows)
        run_results.append((run, model.config, results))
    for (run, config, results), (other_run, second, other_results) in combinations(run_results, 2):
        if config == second:
            labels = {"run": run, "other_run": other_run, "method": options.method}
            rows = [row for a in results for b in other_results for row in seed_rows(a, b)]
            _write(options.out, "seeds", labels, rows)
    if (path := options.out / "overlap.parquet").is_file():
        table = read_parquet(path).to_pandas().query("preset != '' and share == @SHARE")
        for method, method_rows in table.groupby("method"):
            _write(options.out, "contrasts", {"method": method}, contrast_rows(method_rows))


def _write(out: Path, name: str, labels: Row, rows: Sequence[Row]) -> None:
    """Put rows in the place of old ones with the same labels."""
    path, new = out / f"{name}.parquet", pd.DataFrame([{**labels, **row} for row in rows])
    check_own(path, "papers.circuits")
    if new.empty:
        return
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock"):  # rows that another command writes meanwhile stay, too
        if path.is_file():
            old = read_parquet(path).to_pandas()
            is_old = np.logical_and.reduce([old[key] == value for key, value in labels.items()])
            new = pd.concat([old[~is_old], new], ignore_index=True)
        about = {
            **provenance("cpu"),
            "instrument": "papers.circuits",
            **({"run": new["run"].unique().tolist()} if "run" in new else {}),
        }
        write_table(new, path, units={name: UNITS[name] for name in new if name in UNITS}, about=about)


def _abilities(options: Options, run: str, model: Any) -> list[str]:
    """The tasks that the model does, measured where the table lacks these weights with as many pairs."""
    path = options.out / "ability.parquet"
    rows = read_parquet(path).to_pandas() if path.is_file() else pd.DataFrame()
    new_cells = {"asked": options.pairs, "checkpoint": checkpoint_of(model)["checkpoint"]}
    key_rows = rows.reindex(columns=["run", "task", *new_cells])  # older tables do not have all
    is_current = key_rows["run"].eq(run) & (key_rows[list(new_cells)] == pd.Series(new_cells)).all(axis=1)
    if set(key_rows.loc[is_current, "task"]) != set(TASKS):
        began = time.perf_counter()
        ability(model, TASKS[-1], 2)
        seconds = (time.perf_counter() - began) * len(TASKS) * options.pairs / 2
        print(f"{run}: about {duration(seconds)} for what it can do", file=sys.stderr, flush=True)
        with signs_of_life(run):
            ability_rows = [{**ability(model, task, options.pairs), **new_cells} for task in TASKS]
            _write(options.out, "ability", {"run": run}, ability_rows)
        rows = read_parquet(path).to_pandas()
    return list(rows.loc[rows["run"].eq(run) & rows["does"], "task"])


def ability(model: Any, task: str, pairs: int) -> Row:
    """m of the clean run and the effect (clean − corrupted), with intervals; `does` says whether both lie above 0.

    Where no prompt fits the model there is the reason.
    """
    circuits, columns = Circuits(task=task, pairs=pairs), [f"{name}{end}" for name in ("m", "effect") for end in ENDS]
    try:
        prompt_pairs, _ = task_pairs(circuits, model)
    except InputError as error:
        undefined = note(dict.fromkeys(columns, str(error).replace(";", ",")))
        nothing = dict.fromkeys(columns, np.nan)
        return {"task": task, **nothing, "n": 0, "clusters": 0, "does": False, "undefined": undefined}
    graph = graph_of(model)
    batches = batches_for(model, graph, prompt_pairs.pairs, circuits.metric)
    observations = Observations(
        measure=Measure(name=circuits.metric, unit="nats", resolution=RESOLUTION),
        cells=pd.DataFrame({"run": ["M", "∅"]}), units=units_of(prompt_pairs.pairs),
        total=worth.circuit_values(model, graph, batches, circuits.metric, []), size=1.0,
    )  # fmt: skip
    weights: dict[str, dict[int, float]] = {"m": {0: 1.0}, "effect": {0: 1.0, 1: -1.0}}
    contrasts = [Contrast(quantity=name, weights=w, labels={"task": task}, null=None) for name, w in weights.items()]
    frame, reasons = estimate(observations, contrasts).wide(["task"], describe=("low", "high"))
    row = {str(name): value for name, value in frame.iloc[0].items()}
    reason = note({name: text for (_, name), text in reasons.items()})
    return {**row, "does": bool(row["m_low"] > 0 and row["effect_low"] > 0), "undefined": reason}


def _results(options: Options, run: str, model: Any, tasks: Sequence[str]) -> list[Result]:
    """The result of every task, read where it was kept, else measured and kept."""
    checkpoint, results, pending = checkpoint_of(model) if tasks else {}, dict[str, Result](), dict[str, Circuits]()
    files = {task: options.out / ".parts" / f"{Path(run).name}-{task}-{options.method}.parquet" for task in tasks}
    for task, file in files.items():
        circuits = Circuits(task=task, pairs=options.pairs, method=options.method)
        old_result = Result.load(file) if file.is_file() else None
        wanted_about = {"options": json.loads(json.dumps(asdict(circuits))), "checkpoint": checkpoint["checkpoint"]}
        if old_result and wanted_about.items() <= old_result.about.items():
            results[task] = old_result
        else:
            pending[task] = circuits
    if pending:
        seconds = duration(sum(seconds_of(c, model, task_pairs(c, model)[0]) for c in pending.values()))
        line = f"about {seconds} for the circuits of {', '.join(pending)}; {peak_gigabytes():.1f} GB of memory so far"
        print(f"{run}: {line}", file=sys.stderr, flush=True)
    for task, circuits in pending.items():
        began = time.process_time()
        result = circuits.measure(model, progress=partial(progress_bar(f"{run}, {task}")))  # partial: no cost again
        cost = {"seconds": time.process_time() - began, "memory": peak_gigabytes(), "commit": commit()}
        results[task] = replace(result, about={**result.about, **checkpoint, **cost})
        files[task].parent.mkdir(parents=True, exist_ok=True)
        results[task].save(files[task])
    return [results[task] for task in tasks]


# ---- rows of the tables ------------------------------------------------------------------------


def circuit_row(result: Result) -> Row:
    """Effect, edges that carry .9 of it, CPR and CMD, random circuits in `_random`."""
    about, table = result.about, result.table("summary")
    row: Row = {"task": _task(result), "edges": about["edges"]}
    reasons: dict[str, str] = {}
    for i, name in enumerate(("m", "effect", "cpr", "cmd", "needed")):
        for suffix, column in [("", "value"), ("_random", "random")][: 1 if name in ("m", "effect") else 2]:
            for end in ENDS:
                value = table.frame[f"{column}{end}"].iloc[i]
                row[f"{name}{suffix}{end}"] = value * about["edges"] if name == "needed" else value
                if text := table.missing.get((i, f"{column}{end}")):
                    reasons[f"{name}{suffix}{end}"] = text
    cost = {name: about[name] for name in ("judging", "checkpoint", "commit", "seconds", "memory")}
    return {**row, **cost, "undefined": note(reasons)}


def stream_rows(result: Result) -> list[Row]:
    """Shares of the summed sizes of scores, by the stream of the sender and by what reads."""
    cells, scores, task = result.blocks["scores"].cells, np.abs(_drawn(result, 0)), _task(result)
    rows = []
    for by in ("stream", "part"):
        for group in cells[by].unique():
            in_group = (cells[by] == group).to_numpy()
            share = _described("share", scores[:, in_group].sum(1) / scores.sum(1))
            rows.append({"task": task, "by": by, "group": group, **share, "edges": float(in_group.mean())})
    return rows


def overlap_rows(a: Result, b: Result) -> list[Row]:
    """Jaccard index of the best edges of two tasks, and of two draws of one task, over bootstraps of the pairs."""
    return [{"task": _task(a), "other": _task(b), **row} for row in _overlaps(a, b, "same_task")]


def seed_rows(a: Result, b: Result) -> list[Row]:
    """The same of one task in two runs, and of two draws of it in one run; no row where the tasks differ."""
    return [{"task": _task(a), **row} for row in _overlaps(a, b, "same_run")] if _task(a) == _task(b) else []


def _training(run: str) -> Row:
    """The arm and the seed of a training called ARM-sSEED; an empty name for other models, which are not compared."""
    arm, _, seed = Path(run).name.rpartition("-s")
    return {"preset": arm, "seed": int(seed)} if arm and seed.isdigit() else {"preset": "", "seed": -1}


def contrast_rows(table: pd.DataFrame) -> list[Row]:
    """Of each two architectures and each two tasks, how much further apart the circuits of the tasks are in one than in
    the other: the difference of `separate`, paired by training seed, with p and p corrected over all rows (Holm)."""
    rows = []
    for (task, other_task), task_rows in table.groupby(["task", "other"], sort=False):
        by_seed = task_rows.pivot_table(index="seed", columns="preset", values="separate")
        for a, b in combinations(task_rows["preset"].unique(), 2):
            differences = (by_seed[a] - by_seed[b]).dropna().to_numpy(float)
            if len(differences) > 1:
                test = stats.ttest_1samp(differences, 0.0)
                low, high = test.confidence_interval(0.95)
                reason = "ci_low, ci_high, p, p_holm: seeds without spread" if np.isnan(test.pvalue) else ""
                cells = {"mean": differences.mean(), "ci_low": low, "ci_high": high, "p": test.pvalue}
                rows.append({"preset": a, "other_preset": b, "task": task, "other": other_task, **cells,
                             "n": len(differences), "undefined": reason})  # fmt: skip
    if not rows:
        return []
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("p") + 1, "p_holm", holm(table["p"]))
    return table.to_dict("records")


def _task(result: Result) -> str:
    return str(result.about["options"]["task"])


def _overlaps(a: Result, b: Result, column: str) -> list[Row]:
    """For each share of edges, the index between two results, and in column `column` the mean over both of that between
    two bootstraps of one."""
    rows, score_draws = [], [_drawn(a, 0), _drawn(b, 1)]
    for share in SHARES:
        n = worth.size_of(share, score_draws[0].shape[1])
        x, y = ([worth.top(scores, n, "size") for scores in half_scores] for half_scores in score_draws)
        cross_jaccard = _jaccard(x, y).reshape(-1, 2).mean(1)
        self_jaccard = (_jaccard(x[::2], x[1::2]) + _jaccard(y[::2], y[1::2])) / 2
        rows.append({
            "share": share, "edges": n, **_described("jaccard", cross_jaccard), **_described(column, self_jaccard),
            **_described("separate", self_jaccard - cross_jaccard), "chance": worth.chance(n, score_draws[0].shape[1]),
        })  # fmt: skip
    return rows


def _drawn(result: Result, seed: int) -> np.ndarray:
    """Summed scores of 2 · DRAWS bootstraps of the pairs [bootstraps, edges]."""
    block = result.blocks["scores"]
    cluster_index = read_clusters(block.units["cluster"].to_list(), len(block.units))
    return worth.resampled(block.total, cluster_index, 2 * DRAWS, seed)


def _jaccard(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> np.ndarray:
    """The Jaccard index of each two sets."""
    return np.array([worth.jaccard(a, b) for a, b in zip(x, y, strict=True)])


def _described(name: str, values: np.ndarray) -> Row:
    """The mean, the 2.5 % and the 97.5 % point."""
    low, high = np.quantile(values, (0.025, 0.975))
    return {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}
