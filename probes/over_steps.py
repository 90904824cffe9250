"""When does a model learn what? Measures of every snapshot of a training, as a table and as curves over steps.

    python -m probes.over_steps runs/lfa
    python -m probes.over_steps runs/lfa --measures induction loss --out over.parquet
    python -m probes.over_steps runs/lfa --control runs/std-t --out over.parquet
    python -m probes.over_steps runs/grid/*-s? --out over.parquet --launch torchrun --workers 2

    loss        nats per token over documents of the run's validation data
    induction   the largest induction score of a head on repeated random tokens (`probes.heads`), and which head
    pds         the largest PDS of a head over competing nouns (`probes.pds`), and which head
    due         log-odds of the coherent noun that are due to the text's nouns, nats (`probes.coherence`)
    depth       the layer at which a token's prediction settles: the first from which on every layer predicts what the
                last one does (the logit lens; PLS B.1), averaged over tokens; 0 is the first layer

Training writes the snapshots (`--snapshots`). Intervals are 95 %, over documents, sequences or prompts; the head of a
largest score is chosen on the same prompts, so its score is a little too high where many heads are alike. `half`
says between which two snapshots a measure passed for good the middle between its first and its last value. With
--control every measure of a step is compared with the same step of another run on the same prompts. Killed, the same
command with --out goes on where it was; --launch shares the snapshots among workers.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Bounds, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.models.launch import LaunchOptions, is_worker, launch
from streamscope.probes.command import RunOptions, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("loss", "induction", "pds", "due", "depth")
UNITS = {
    "step": "optimiser steps", "value": "of the measure", "ci_low": "of the measure", "ci_high": "of the measure",
    "n": "observations", "clusters": "independent cases", "control": "of the measure",
    "difference": "value − control", "difference_low": "of the measure", "difference_high": "of the measure",
    "first": "of the measure", "last": "of the measure", "after": "optimiser steps", "by": "optimiser steps",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured on a snapshot; equal options on equal weights give equal observations."""

    measures: tuple[str, ...] = MEASURES
    """Which: loss, induction, pds, due, depth."""
    data: str | None = None
    """SOURCE of the documents for loss and depth; default: the run's validation data."""
    max_documents: Annotated[int, Bounds(low=2)] = 100
    """Documents for loss and depth."""
    sequences: Annotated[int, Bounds(low=2)] = 32
    """Random sequences for induction."""
    suite: str = "stories"
    """Suite for due: one whose prompts have continuations."""
    n: Annotated[int, Bounds(low=2)] = 200
    """Pairs of that suite to generate."""


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    """Arguments of `python -m probes.over_steps`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders with snapshots."""
    control: str | None = None
    """Run to compare every run with, at the steps that both have."""
    steps: tuple[Whole, ...] = ()
    """Snapshots to measure; default: all."""
    out: Path | None = None
    """Write the table (.parquet) here, OUT-half and the figure (.html) beside it."""
    static: Literal["svg", "png", "none"] = "none"
    """Write the figure in this form as well; needs kaleido and Chromium (extra `figures`)."""
    device: str = "auto"
    """auto, cpu or cuda."""
    measuring: Annotated[Measuring, tyro.conf.OmitArgPrefixes] = Measuring()


@dataclass(frozen=True)
class Snapshot:
    """A run at a step."""

    run: str
    step: int
    sha256: str

    def task(self, options: Measuring) -> str:
        """Its name in the ledger: what was measured on which weights."""
        about = json.dumps([self.run, self.step, self.sha256, asdict(options)])
        return hashlib.sha256(about.encode()).hexdigest()[:24]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure every snapshot that is not measured yet, print, write."""
    options = parse(Options, argv, __doc__)
    writing = RunOptions(run=" ".join(options.runs), out=options.out, device=options.device)
    check_options(writing)
    for name in options.measuring.measures:
        if name not in MEASURES:
            raise unknown("measure", name, list(MEASURES))
    if not options.measuring.measures or not options.runs:
        raise InputError("give runs with snapshots, for example: python -m probes.over_steps runs/lfa")
    if options.launch != "serial" and options.out is None:
        raise InputError("--launch needs --out: workers meet in a folder beside it")
    every = {run: _snapshots(run, options.steps) for run in dict.fromkeys([*options.runs, options.control]) if run}

    from streamscope.models.ledger import Ledger

    with ExitStack() as stack:
        if options.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = options.out.with_name(f".{options.out.name}.parts")
        launch(options, "streamscope.probes.over_steps", sys.argv[1:] if argv is None else argv, logs=folder / "logs")
        ledger, jobs = Ledger(folder), [snapshot for one in every.values() for snapshot in one]
        by_task = {snapshot.task(options.measuring): snapshot for snapshot in jobs}

        def do(task: str) -> None:
            from streamscope.probes.tables import write_atomically

            table = observe(by_task[task], options.measuring, options.device)
            write_atomically(folder / f"{task}.parquet", table.to_parquet)

        if is_worker(options):
            ledger.work(list(by_task), do)
            return
        for task in by_task:  # what failed is tried again
            if ledger.state(task).kind == "failed":
                ledger.forget(task)
        for task in progress_bar("snapshots")(list(by_task)):
            ledger.work([task], do, wait=True)
        for task, snapshot in by_task.items():
            state = ledger.state(task)
            if state.kind != "done":
                raise InputError(f"{snapshot.run}@{snapshot.step}: {state.detail or 'not measured'}")

        import pandas as pd

        found = {s: pd.read_parquet(folder / f"{task}.parquet") for task, s in by_task.items()}
    summary = over_steps(found, options.control)
    halves = halfway(summary)
    columns: tuple[str, ...] = ("run", "step", "measure", "value", "95 % interval", "head", "n")
    columns += ("control", "difference", "of the difference") if options.control else ()
    both = zip(summary["difference_low"], summary["difference_high"], strict=True) if options.control else ()
    spans = ["" if a != a else f"{a:+.3f} … {b:+.3f}" for a, b in both]
    show(summary.assign(**{"of the difference": spans}) if options.control else summary, "over steps", columns)
    show(halves, "half-way from the first value to the last: after one snapshot, by the next, for good")
    about = {"control": options.control, **asdict(options.measuring)}
    from streamscope.probes.over_steps_figure import picture, plot

    figure = plot(summary)
    write_results(writing, {"": (summary, UNITS), "half": (halves, UNITS)}, figure, **about)
    if options.out is not None:
        picture(figure, options.out, options.static)
        shutil.rmtree(folder, ignore_errors=True)


def _snapshots(run: str, steps: Sequence[int]) -> list[Snapshot]:
    """The snapshots of a run, or those of `steps`. Raises `InputError` where there are none."""
    from streamscope.models.checkpoint import run_folder, snapshots

    found = {row["step"]: Snapshot(run, row["step"], row["sha256"]) for row in snapshots(run_folder(run))}
    for step in steps:
        if step not in found:
            run_folder(f"{run}@{step}")  # says which there are
    if not found:
        raise InputError(f"{run} has no snapshots: train with --snapshots log")
    return [one for step, one in found.items() if not steps or step in steps]


# ---- observations ----------------------------------------------------------------------------------


def observe(snapshot: Snapshot, options: Measuring, device: str = "cpu") -> "pd.DataFrame":
    """Rows of measure, head, unit, cluster, total, n: a measure's value is Σ total / Σ n; clusters are independent.

    A unit is a document (total over its n tokens), a random sequence, a pair of prompts or a prompt.
    """
    import pandas as pd

    from streamscope.models.checkpoint import load, run_folder
    from streamscope.models.provenance import pick_device
    from streamscope.probes.prompts import check_tokenizer

    folder = run_folder(f"{snapshot.run}@{snapshot.step}")
    model = load(folder, device=pick_device(device))
    tokenizer = check_tokenizer(model)
    tables = []
    if {"loss", "depth"} & set(options.measures):
        tables.append(_documents(model, folder, tokenizer, options))
    if "induction" in options.measures:
        tables.append(_induction(model, tokenizer, options))
    if "pds" in options.measures:
        tables.append(_pds(model, tokenizer))
    if "due" in options.measures:
        tables.append(_due(model, tokenizer, options))
    table = pd.concat(tables, ignore_index=True)
    table = table[table["measure"].isin(options.measures)]
    return table.assign(run=snapshot.run, step=snapshot.step, preset=model.config.name)


def _documents(model: Any, folder: Path, tokenizer: Any, options: Measuring) -> "pd.DataFrame":
    """Summed loss and summed settling layer of every document."""
    import pandas as pd

    rows = []
    for index, real, losses, depth in over_documents(model, folder, tokenizer, options.data, options.max_documents):
        for name, totals in (("loss", losses), ("depth", depth.double().sum(1))):
            one = {"measure": name, "unit": index.astype(str), "total": totals.cpu().numpy()}
            rows.append(pd.DataFrame({**one, "n": real.sum(1).cpu().numpy()}))
    table = pd.concat(rows, ignore_index=True)
    return table[table["n"] > 0].assign(head="", cluster=lambda t: t["unit"])


def over_documents(
    model: Any, folder: Path, tokenizer: Any, data: str | None, max_documents: int
) -> "Iterator[tuple[Any, Any, Any, Any]]":
    """Batches of documents: their numbers [B], which targets are real [B, T], summed losses [B] in nats, and the
    settling layer of every real target [B, T], 0 elsewhere."""
    import torch

    from streamscope.models.readout import IGNORE, chunk_rows
    from streamscope.models.text.shards import document_batches
    from streamscope.models.training.data import evaluation_shards

    shards = evaluation_shards(folder, tokenizer, data)
    for index, tokens, targets in document_batches(shards, model.config.n_ctx, 16, max_documents):
        tokens, targets = tokens.to(model.cfg.device), targets.to(model.cfg.device)
        real, predicted = targets != IGNORE, []
        with torch.no_grad():
            state = model.embed_tokens(tokens)
            for layer in range(model.config.n_layers):
                state = model.segment(state, layer, layer + 1)
                h = model.layer_norm(layer)(model.readout(state))[real]
                chunks = h.split(chunk_rows(model.config.d_vocab))
                predicted.append(torch.cat([(chunk @ model.head.T).argmax(-1) for chunk in chunks]))
            losses = model.losses_from(state, targets).double().sum(1)
        depth = torch.zeros(targets.shape, dtype=torch.int64, device=targets.device)
        depth[real] = settling(torch.stack(predicted))
        yield index, real, losses, depth


def settling(predicted: Any) -> Any:
    """The first layer from which on every layer predicts what the last one does; `predicted` is [layers, tokens]."""
    agreed = (predicted == predicted[-1]).flip(0).long().cumprod(0).sum(0)
    return predicted.shape[0] - agreed


def _induction(model: Any, tokenizer: Any, options: Measuring) -> "pd.DataFrame":
    from streamscope.probes.heads import Heads
    from streamscope.probes.probe import measure

    length = min(Heads.length, (model.config.n_ctx - 1) // 2)
    table = measure(model, Heads(sequences=options.sequences, length=length), [], tokenizer=tokenizer)
    table = table[table["score"] == "induction"]
    heads = "L" + table["layer"].astype(str) + "H" + table["index"].astype(str)
    return _largest(table.assign(measure="induction", head=heads, unit=table["prompt"].astype(str)), "value")


def _pds(model: Any, tokenizer: Any) -> "pd.DataFrame":
    """The pairs of the head with the largest PDS, in the direction in which it moves: their mean is its PDS."""
    import numpy as np

    from streamscope.probes.pds import Pds
    from streamscope.probes.probe import measure
    from streamscope.probes.prompts import align, load_suite

    prompts = align(load_suite("competing"), tokenizer, model.config.n_ctx)
    table = measure(model, Pds(), prompts, tokenizer=tokenizer)
    signs = np.sign(table.groupby("head")["difference"].transform("mean"))
    found = _largest(table.assign(measure="pds", unit=table["pair"], value=signs * table["difference"]), "value")
    clusters = dict(zip(table["pair"], table["cluster"].map(_text), strict=True))
    return found.assign(cluster=found["unit"].map(clusters))


def _largest(table: "pd.DataFrame", column: str) -> "pd.DataFrame":
    """The rows of the head with the largest mean; every unit is a cluster."""
    best = table.groupby("head", sort=False)[column].mean().idxmax()
    one = table[table["head"] == best]
    return one.assign(total=one[column], n=1, cluster=one["unit"])[["measure", "head", "unit", "cluster", "total", "n"]]


def _due(model: Any, tokenizer: Any, options: Measuring) -> "pd.DataFrame":
    from streamscope.probes.coherence.elsewhere import exchanged
    from streamscope.probes.coherence.measure import rows
    from streamscope.probes.prompts import align, load_suite

    aligned = align(load_suite(options.suite, n=options.n), tokenizer, model.config.n_ctx)
    others = exchanged(aligned, tokenizer, model.config.n_ctx)
    if others is None:
        raise InputError(f"no prompt of {options.suite} has nouns that can be exchanged; take --suite stories")
    both = rows(model, aligned, others, tokenizer).dropna(subset="due")
    both = both.assign(measure="due", head="", unit=both["id"], total=both["due"], n=1)
    both["cluster"] = both["cluster"].map(_text)
    return both[["measure", "head", "unit", "cluster", "total", "n"]]


def _text(label: Any) -> Any:
    """A label as it lies on disk: several of one case, as the words that prompts share crosswise, as a JSON list."""
    return json.dumps(label) if isinstance(label, tuple) else label


def _labels(texts: "Iterable[str]") -> list[Any]:
    """`_text` read back: one label per case, or a tuple of them, which `estimators.read_clusters` takes."""
    return [tuple(json.loads(text)) if str(text).startswith("[") else text for text in texts]


# ---- estimates -------------------------------------------------------------------------------------


def over_steps(found: "dict[Snapshot, pd.DataFrame]", control: str | None = None) -> "pd.DataFrame":
    """One row per run, step and measure: value, 95 % interval, n, clusters; with `control` the difference from it."""
    import pandas as pd

    tables = {(s.run, s.step): table for s, table in found.items()}
    rows = []
    for (run, step), table in sorted(tables.items()):
        if run == control and any(r != control for r, _ in tables):
            continue
        other = tables.get((control, step)) if control is not None else None
        for name in (name for name in MEASURES if name in set(table["measure"])):
            one = table[table["measure"] == name]
            row = {
                "run": run,
                "preset": one["preset"].iloc[0],
                "step": step,
                "measure": name,
                "head": one["head"].iloc[0],
            }
            row |= ratio_row(one["total"], one["n"], one["cluster"])
            if control is not None:
                row |= _difference(one, other, name)
            rows.append(row)
    return pd.DataFrame(rows)


def ratio_row(totals: Any, counts: Any, clusters: Any) -> dict[str, Any]:
    """Σ totals / Σ counts as `value`, with 95 % interval over clusters, n and clusters, or why there is none."""
    import numpy as np

    from streamscope.probes.stats.estimators import cluster_totals, ratio_of_sums, read_clusters
    from streamscope.probes.stats.t_tests import constant
    from streamscope.probes.undefined import note

    y, n = np.asarray(totals, float), np.asarray(counts, float)
    within = read_clusters(_labels(clusters), len(y))
    sums, sizes = (cluster_totals(x, within.codes)[0] for x in (y, n))
    row = {"value": float(y.sum() / n.sum()), "n": int(n.sum()), "clusters": within.count}
    if within.count < 2:
        why = "one independent case"
    elif constant(sums / sizes, np.abs(y / n).max()):
        why = "the same in every independent case"
    else:
        found = ratio_of_sums(sums, sizes, within=within)
        return {**row, "ci_low": found.ci_low, "ci_high": found.ci_high, "undefined": ""}
    nothing = dict.fromkeys(("ci_low", "ci_high"), float("nan"))
    return {**row, **nothing, "undefined": note(dict.fromkeys(nothing, why))}


def _difference(one: "pd.DataFrame", other: "pd.DataFrame | None", name: str) -> dict[str, Any]:
    """Value of the control at the same step, and the difference over the units that both have."""
    empty = dict.fromkeys(("control", "difference", "difference_low", "difference_high"), float("nan"))
    if other is None:
        return empty
    other = other[other["measure"] == name]
    both = one.merge(other, on="unit", suffixes=("", "_control"))
    if both.empty or (both["n"] != both["n_control"]).any():
        raise InputError(f"{name} of the control is of other documents or tokens: compare runs with one tokenizer")
    found = ratio_row(both["total"] - both["total_control"], both["n"], both["cluster"])
    value = float(other["total"].sum() / other["n"].sum())
    return {
        "control": value,
        "difference": found["value"],
        "difference_low": found["ci_low"],
        "difference_high": found["ci_high"],
    }


def halfway(summary: "pd.DataFrame") -> "pd.DataFrame":
    """Per run and measure: `first` and `last` value, and the snapshots `after` and `by` which the middle was passed.

    From `by` on every value lies beyond the middle. Undefined where the intervals of first and last value overlap.
    """
    import pandas as pd

    from streamscope.probes.undefined import note

    rows = []
    for (run, preset, name), one in summary.groupby(["run", "preset", "measure"], sort=False):
        one = one.sort_values("step")
        a, b = one.iloc[0], one.iloc[-1]
        row = {"run": run, "preset": preset, "measure": name, "first": a["value"], "last": b["value"]}
        if len(one) < 2 or (a["ci_low"] <= b["ci_high"] and b["ci_low"] <= a["ci_high"]):
            why = "one snapshot" if len(one) < 2 else "first and last value do not differ clearly"
            rows.append(
                {**row, "after": float("nan"), "by": float("nan"), "undefined": note({"after": why, "by": why})}
            )
            continue
        middle, sign = (a["value"] + b["value"]) / 2, 1 if b["value"] > a["value"] else -1
        behind = (sign * (one["value"] - middle) > 0).to_numpy()
        place = len(behind) - int(behind[::-1].cumprod().sum())
        steps = one["step"].to_numpy()
        rows.append({**row, "after": float(steps[place - 1]), "by": float(steps[place]), "undefined": ""})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    command(main)
