"""Is there anything to find? One line per phenomenon that a claim needs, for any number of models: the competence gate.

    python -m probes.phenomena                                     the bundled model
    python -m probes.phenomena runs/lfa runs/std-t --out phenomena.parquet
    python -m probes.phenomena runs/lfa@512 --only copying induction

    copying      log-odds of the coherent word that are due to the text's nouns, over pairs of stories
                 (`probes.coherence`)
    reserved     the same where no training story uses the nouns and names at all (suite reserved-words)
    induction    largest induction score of a head on repeated random words (`probes.heads`)
    repeats      how much cheaper the words are the second time: loss of the first saying − loss of the second
    position     largest PDS of a head over competing nouns (`probes.pds`)
    coreference  Top-1 of the best head − that of the most recent candidate, on words of no training story
    capitalization, gender, winograd   log-odds of a task's answer against its foil (`probes.prompts.tasks`)
    depth        share of tokens whose prediction settles in another layer than the commonest (`probes.over_steps`)
    mixing       share of hyper-connections that mix more than decay alone would make them (`probes.mixing`)

A phenomenon is `present` where its whole 95 % interval lies above the limit, `absent` where none of it does,
else `undecided`. A head is chosen on one half of the cases and scored on the other, so none is best by luck;
intervals are over sequences, documents or prompts, clustered by the words that prompts share, and not corrected for the
number of lines: of forty lines about nothing one is called present. A claim about a model needs its phenomenon: where
that is absent, an ablation or a difference says nothing of the claim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Bounds
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.probes.command import INTERVAL, RunOptions, check_options, progress_bar, show, write_results

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

NAN = float("nan")
PRESENT, ABSENT, UNDECIDED = "present", "absent", "undecided"


@dataclass(frozen=True)
class Phenomenon:
    """What is measured, from where on it counts as there, and in which unit."""

    name: str
    limit: float
    unit: str


PHENOMENA = (
    Phenomenon("copying", 0.0, "nats"),
    Phenomenon("reserved", 0.0, "nats"),
    Phenomenon("induction", 0.3, "share of attention"),
    Phenomenon("repeats", 0.0, "nats per token"),
    Phenomenon("position", 0.075, "attention"),
    Phenomenon("coreference", 0.0, "share of cases"),
    Phenomenon("capitalization", 0.0, "nats"),
    Phenomenon("gender", 0.0, "nats"),
    Phenomenon("winograd", 0.0, "nats"),
    Phenomenon("depth", 0.1, "share of tokens"),
    Phenomenon("mixing", 0.0, "share of modules"),
)
"""In the order of the table. The limit of `position` is LFA's threshold, that of `depth` one token in ten."""
NAMES = tuple(one.name for one in PHENOMENA)
UNITS = {
    "value": "of the phenomenon", "ci_low": "of the phenomenon", "ci_high": "of the phenomenon",
    "limit": "of the phenomenon", "n": "sequences, pairs, prompts, tokens or modules", "clusters": "independent cases",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gate:
    """How much is measured of every model."""

    only: tuple[str, ...] = NAMES
    """Which phenomena; default: all."""
    n: Annotated[int, Bounds(low=4)] = 1000
    """Pairs of each suite of stories."""
    sequences: Annotated[int, Bounds(low=4)] = 64
    """Sequences of random words, said twice."""
    length: Annotated[int, Bounds(low=2)] = 24
    """Words of a sequence; fewer where the context holds no two of them."""
    data: str | None = None
    """SOURCE of the documents for depth; default: the run's validation data."""
    max_documents: Annotated[int, Bounds(low=2)] = 100
    """Documents for depth."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.phenomena`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("lfa",)
    """Run folders, RUN@STEP for a snapshot, or bundled models."""
    gate: Annotated[Gate, tyro.conf.OmitArgPrefixes] = Gate()
    out: Path | None = None
    """Write the table (.parquet) here, and the figure (.html) beside it."""
    static: Literal["svg", "png", "none"] = "none"
    """Write the figure in this form as well; needs kaleido and Chromium (extra `figures`)."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure every model, print, write."""
    options = parse(Options, argv, __doc__)
    writing = RunOptions(run=" ".join(options.runs), out=options.out, device=options.device)
    check_options(writing)
    for name in options.gate.only:
        if name not in NAMES:
            raise unknown("phenomenon", name, list(NAMES))
    if not options.runs or not options.gate.only:
        raise InputError("give at least one run and one phenomenon, as: python -m probes.phenomena runs/lfa")
    if len(set(options.runs)) < len(options.runs):
        raise InputError("a run is named twice")

    import pandas as pd

    from streamscope.models.checkpoint import run_folder

    for run in options.runs:
        run_folder(run)  # all exist before any is measured
    tasks = [(run, name) for run in options.runs for name in NAMES if name in options.gate.only]
    opened: dict[str, Opened] = {}
    rows = []
    for run, name in progress_bar("phenomena")(tasks):
        if run not in opened:
            opened = {run: open_model(run, options.device)}  # one model at a time
        rows.append(look(opened[run], name, options.gate))
    table = pd.DataFrame(rows)
    from streamscope.probes.undefined import legend

    show(matrix(table), "phenomena: what each model does; ? undecided, – no such thing")
    show(table, "phenomena", ("run", "phenomenon", "value", INTERVAL, "limit", "unit", "verdict", "head", "n"))
    print(legend(table))
    figure = plot(table)
    about = {"n": options.gate.n, "sequences": options.gate.sequences, "documents": options.gate.max_documents}
    write_results(writing, {"": (table, UNITS)}, figure, **about)
    if options.out is not None:
        from streamscope.probes.over_steps_figure import picture

        picture(figure, options.out, options.static)


# ---- one model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """A model with what belongs to it."""

    run: str
    folder: Path
    model: Any
    tokenizer: Any


def open_model(run: str, device: str = "cpu") -> Opened:
    """Load a run, a snapshot or a bundled model. Raises `InputError` without a tokenizer."""
    from streamscope.models.checkpoint import load, run_folder
    from streamscope.models.provenance import pick_device
    from streamscope.probes.prompts import check_tokenizer

    folder = run_folder(run)
    model = load(folder, device=pick_device(device))
    return Opened(run, folder, model, check_tokenizer(model))


def look(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    """The row of a phenomenon: value, 95 % interval, limit, verdict, head, n, clusters, and why a cell is undefined."""
    phenomenon = PHENOMENA[NAMES.index(name)]
    found = LOOKS.get(name, _task)(one, name, gate)
    low, high = found["ci_low"], found["ci_high"]
    return {
        "run": one.run, "preset": one.model.config.name, "phenomenon": name, "value": found["value"], "ci_low": low,
        "ci_high": high, "limit": phenomenon.limit, "unit": phenomenon.unit,
        "verdict": verdict(found["value"], low, high, phenomenon.limit), "head": found.get("head", ""),
        "n": found["n"], "clusters": found["clusters"], "undefined": found["undefined"],
    }  # fmt: skip


def verdict(value: float, low: float, high: float, limit: float) -> str:
    """`present` above the limit with the whole interval, `absent` with none of it, else `undecided`.

    A value without an interval because it is a property of the weights, or the same in all cases, is compared itself;
    without a value there is no verdict.
    """
    if value != value:
        return ""
    if low != low:
        low = high = value
    return PRESENT if low > limit else ABSENT if high <= limit else UNDECIDED


def _nothing(why: str) -> dict[str, Any]:
    from streamscope.probes.undefined import note

    columns = ("value", "ci_low", "ci_high")
    return {**dict.fromkeys(columns, NAN), "n": 0, "clusters": 0, "undefined": note(dict.fromkeys(columns, why))}


def _mean(values: Any, clusters: Any, head: str = "") -> dict[str, Any]:
    from streamscope.probes.stats.means import estimate
    from streamscope.probes.undefined import note, reasons

    found = estimate(values, clusters)
    why = {k: reason for k, reason in reasons(found["undefined"]).items() if k.startswith("ci_")}
    kept = {k: found[k] for k in ("ci_low", "ci_high", "n", "clusters")}
    return {"value": found["mean"], **kept, "head": head, "undefined": note(why)}


def _copying(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    """Log-odds of the coherent word, minus those after another prompt's nouns."""
    from streamscope.probes.coherence.elsewhere import exchanged
    from streamscope.probes.coherence.measure import rows
    from streamscope.probes.prompts import align, load_suite

    suite = load_suite("stories" if name == "copying" else "reserved-words", n=gate.n)
    aligned = align(suite, one.tokenizer, one.model.config.n_ctx)
    others = exchanged(aligned, one.tokenizer, one.model.config.n_ctx)
    if others is None:
        return _nothing("no prompt has nouns that can be exchanged")
    both = rows(one.model, aligned, others, one.tokenizer).dropna(subset="due")
    return _mean(both["due"], both["cluster"])


def _repeated(one: Opened, gate: Gate) -> "tuple[Any, Any, Any]":
    """(probe, query, captures) of random words said twice: patterns of every head, logits of every position."""
    from streamscope.models.hooks import run
    from streamscope.probes.heads import Heads

    length = min(gate.length, (one.model.config.n_ctx - 1) // 2)
    probe = Heads(sequences=gate.sequences, length=length, pool="words")
    query = probe.plan([], one.tokenizer)
    query = replace(query, logits=[list(range(len(ids))) for ids in query.tokens])
    return probe, query, run(one.model, query)


def _induction(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    probe, query, captures = _repeated(one, gate)
    table = probe.read(captures, query)
    table = table[table["score"] == "induction"]
    table = table.assign(head=[f"L{a}H{b}" for a, b in zip(table["layer"], table["index"], strict=True)])
    chosen, head = on_the_other_half(table, "value", (table["prompt"] % 2).to_numpy())
    return _mean(chosen["value"], chosen["prompt"], head)


def _repeats(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    import numpy as np

    probe, query, captures = _repeated(one, gate)
    return _mean(cheaper(captures.logits, query.tokens, probe.length), np.arange(len(query.tokens)))


def cheaper(logits: Any, tokens: Sequence[Sequence[int]], n: int) -> "np.ndarray":
    """Per sequence BOS + r + r, r of n tokens: mean loss of r's tokens 2 … n the first time − the second, nats.

    The first token of r is left out: nothing announces that r begins again.
    """
    import numpy as np
    import torch

    found = []
    for row, ids in zip(logits, tokens, strict=True):
        log_p = row[:-1].double().log_softmax(-1)
        loss = -log_p.gather(1, torch.as_tensor(list(ids[1:]), device=log_p.device)[:, None])[:, 0]  # of token i + 1
        found.append(float(loss[1:n].mean() - loss[n + 1 :].mean()))
    return np.array(found)


def _position(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    from streamscope.probes.pds import Pds
    from streamscope.probes.probe import measure
    from streamscope.probes.prompts import align, load_suite
    from streamscope.probes.stats.held_out import halves

    prompts = align(load_suite("competing"), one.tokenizer, one.model.config.n_ctx)
    table = measure(one.model, Pds(), prompts, tokenizer=one.tokenizer)
    side, _ = halves(table, 0)
    chosen, head = on_the_other_half(table, "difference", side, signed=True)
    return _mean(chosen["difference"], chosen["cluster"], head)


def on_the_other_half(
    table: "pd.DataFrame", column: str, side: "np.ndarray", *, signed: bool = False
) -> "tuple[pd.DataFrame, str]":
    """The rows of the head with the largest mean of `column` on the half 0 or 1 that `side` says they are not of.

    With `signed` the size of the mean chooses, and values of the other half are multiplied by its sign, so that a head
    whose mean is 0 comes out as 0 on average and not as the size of its noise.
    """
    import numpy as np
    import pandas as pd

    parts, heads = [], []
    for train in (0, 1):
        means = table[side == train].groupby("head", sort=False)[column].mean()
        best = (means.abs() if signed else means).idxmax()
        one = table[(side != train) & (table["head"] == best)]
        parts.append(one.assign(**{column: one[column] * (np.sign(means[best]) if signed else 1.0)}))
        heads.append(str(best))
    return pd.concat(parts), " / ".join(heads)


def _coreference(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    from streamscope.probes.coreference import Coreference
    from streamscope.probes.probe import measure
    from streamscope.probes.prompts import align, load_suite
    from streamscope.probes.stats.held_out import held_out
    from streamscope.probes.undefined import note, reasons

    aligned = align(load_suite("reserved-words", n=gate.n), one.tokenizer, one.model.config.n_ctx)
    table = measure(one.model, Coreference(), aligned, tokenizer=one.tokenizer)
    found = held_out(table)
    row = found[(found["halves"] == "both") & (found["rule"] == "recency")].iloc[0]
    why = {k: reason for k, reason in reasons(row["undefined"]).items() if k.startswith("ci_")}
    kept = {k: row[k] for k in ("ci_low", "ci_high", "head", "n", "clusters")}
    return {"value": row["difference"], **kept, "undefined": note(why)}


def _task(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    import numpy as np
    import torch

    from streamscope.models.hooks import Query, run
    from streamscope.probes.prompts.tasks import load_task

    task = load_task(name, one.tokenizer, one.model.config.n_ctx)
    reads = task.reads
    found = run(one.model, Query(tokens=reads.tokens, logits=[[p] for p in reads.positions])).logits
    assert found is not None
    log_p = torch.cat(found).double().log_softmax(-1).cpu().gather(1, torch.as_tensor(reads.ids)).numpy()
    odds = task.scores(log_p)["log_odds"]
    if not np.isfinite(odds).all():
        raise InputError(f"{one.run}: log-odds of {name} are not finite")
    return _mean(odds, task.cases["cluster"])


def _depth(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    import numpy as np

    from streamscope.probes.over_steps import over_documents, ratio_row

    counts = []
    for _, real, _, depth in over_documents(one.model, one.folder, one.tokenizer, gate.data, gate.max_documents):
        for row, here in zip(depth, real, strict=True):
            counts.append(np.bincount(row[here].cpu().numpy(), minlength=one.model.config.n_layers))
    by_layer = np.array([c for c in counts if c.sum()])
    commonest = int(by_layer.sum(0).argmax())
    size = by_layer.sum(1)
    found = ratio_row(size - by_layer[:, commonest], size, [str(i) for i in range(len(size))])
    return {**found, "head": f"commonest: L{commonest}"}


def _mixing(one: Opened, name: str, gate: Gate) -> dict[str, Any]:
    import numpy as np

    from streamscope.models.mixing import connections
    from streamscope.probes.mixing import MIX
    from streamscope.probes.mixing_monitor.measure import kinds, watch
    from streamscope.probes.undefined import note

    if not any("res" in module.b for module in connections(one.model).values()):
        return _nothing("no hyper-connections")
    found = kinds(watch(one.model))
    if isinstance(found, str):
        return _nothing(found)
    share = float(np.mean([kind == MIX for kind in found]))
    why = note(dict.fromkeys(("ci_low", "ci_high"), "a property of the weights"))
    return {"value": share, "ci_low": NAN, "ci_high": NAN, "n": len(found), "clusters": 1, "undefined": why}


LOOKS: dict[str, Callable[[Opened, str, Gate], dict[str, Any]]] = {
    "copying": _copying, "reserved": _copying, "induction": _induction, "repeats": _repeats, "position": _position,
    "coreference": _coreference, "depth": _depth, "mixing": _mixing,
}  # fmt: skip
"""How each is measured; the others are tasks."""


# ---- looking ---------------------------------------------------------------------------------------

SHORT = {PRESENT: "yes", ABSENT: "no", UNDECIDED: "?", "": "–"}


def matrix(table: "pd.DataFrame") -> "pd.DataFrame":
    """Runs × phenomena: yes, no, ? or – with the value."""
    wide = table.assign(
        text=[
            SHORT[v] if value != value else f"{SHORT[v]} {value:.2f}"
            for v, value in zip(table["verdict"], table["value"], strict=True)
        ]
    )
    order = [name for name in NAMES if name in set(table["phenomenon"])]
    found = wide.pivot(index="run", columns="phenomenon", values="text")
    return found.loc[list(dict.fromkeys(table["run"])), order].reset_index().rename_axis(columns=None)


def plot(table: "pd.DataFrame") -> Any:
    """Runs × phenomena: dark where present, grey where undecided, light where absent, white where there is no such
    thing; each cell with its value, and its interval on hovering."""
    import plotly.graph_objects as go

    order = [name for name in NAMES if name in set(table["phenomenon"])]
    runs = list(dict.fromkeys(table["run"]))
    cells = {(row.run, row.phenomenon): row for row in table.itertuples()}
    level = {ABSENT: 0.0, UNDECIDED: 0.5, PRESENT: 1.0, "": None}
    grid = [[cells[run, name] for name in order] for run in runs]
    labels = [Path(run).name if run.count("/") else run for run in runs]
    labels = labels if len(set(labels)) == len(labels) else runs
    heat = go.Heatmap(
        z=[[level[cell.verdict] for cell in row] for row in grid],
        text=[["–" if cell.value != cell.value else f"{cell.value:.2f}" for cell in row] for row in grid],
        customdata=[
            [[f"{c.ci_low:.3f} … {c.ci_high:.3f}" if c.ci_low == c.ci_low else "no interval", c.unit, c.verdict, c.head]
             for c in row] for row in grid
        ],
        x=[f"{name}<br>> {PHENOMENA[NAMES.index(name)].limit:g}" for name in order],
        y=labels,
        texttemplate="%{text}",
        hovertemplate="%{y}, %{x}: %{text} (%{customdata[0]}) %{customdata[1]}, %{customdata[2]} %{customdata[3]}"
        "<extra></extra>",
        colorscale=[(0.0, "#eef1f4"), (0.5, "#b9c6d3"), (1.0, "#2f5f8f")],
        zmin=0.0, zmax=1.0, showscale=False, xgap=2, ygap=2,
    )  # fmt: skip
    figure = go.Figure(heat)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(side="top", showgrid=False, tickangle=0)
    figure.update_layout(
        template="simple_white", width=130 + 92 * len(order), height=120 + 30 * len(runs), margin={"t": 70, "b": 40},
        annotations=[
            {"text": "dark: present, the interval is above the limit; grey: undecided; light: absent; –: none such",
             "xref": "paper", "yref": "paper", "x": 0, "y": 0, "yshift": -28, "showarrow": False, "font": {"size": 12}}
        ],
    )  # fmt: skip
    return figure


if __name__ == "__main__":
    command(main)
