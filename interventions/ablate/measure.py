"""Ablation: from edits to cells × documents or prompts, contrasts of them, and a row per head or set and scale.

Do heads act together? What removing a set of heads S changes beyond what its heads change one at a time is

    interaction(S) = Δ(S) − Σ_{h ∈ S} Δ({h})

0 where effects add up. Of a loss, above 0: the heads stand in for one another, each is missed only when the others are
gone too (a backup); below 0: they work in a row, and without the one the other had nothing left to do. Of log-odds,
which fall where a loss rises, the signs are the other way round. Units are those of Δ. Of a loss that is not flat in
the logits, effects need not add up even where no head reads another. A head that cannot change the measure (SPS, in the
last layer) has Δ = 0 and leaves the interaction to the others of its set.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import unknown
from streamscope.instruments.about_model import readable, title_of
from streamscope.instruments.contract import InstrumentData, Progress
from streamscope.instruments.data import Documents, Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, estimate, estimate_all
from streamscope.instruments.table import Column, Table, counts, key, quantity
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.controls import IDENTITY, NO_DRAWS, RANK_COLUMNS, Sweep, beside_draws, head_sets, plan
from streamscope.interventions.edits import replace_heads, resample_heads, scale_heads
from streamscope.interventions.edits.means import document_rows, mean_outputs
from streamscope.interventions.effects import EFFECT_SIZES, REASON, by_construction, effect_sizes
from streamscope.interventions.observe import (
    NATS,
    PERCENT,
    SMALLEST,
    UNIT,
    Losses,
    Observed,
    document_losses,
    observe_prompts,
)
from streamscope.interventions.selection import pds_scores, pds_table
from streamscope.models.head_spec import Head, every_head, parse_heads, score_names
from streamscope.models.hooks import Edits
from streamscope.text.shards import TokenShards

MakeEdits = Callable[[Sequence[Head], float], Edits]
KEYS = ("head", "layer", "index", "scale")
ONE = "one head has no parts"
MOST = 40
"""Rows of a long table of sets that are printed, those with the strongest interaction."""


def observe(how: Ablate, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model and every edit of the sweep; units: documents for the loss, prompts for the others."""
    heads, prompts = _heads(how, model, data), [m for m in dict.fromkeys(how.measures) if m != "loss"]
    groups = [heads] if how.together else head_sets(heads, how.size, how.sets, how.seed)
    scales = tuple(dict.fromkeys(float(g) for g in how.scale))
    seen = InstrumentData({}, {}, {"title": {}})
    name = title_of(model)
    if "loss" in how.measures:
        documents = data[Documents]
        make = _maker(how, model, lambda: document_rows(documents.batches()))
        sweep = sweep_of(model, groups, scales, make, draws=how.draws, seed=how.seed)
        losses = document_losses(model, documents.shards, sweep.edits, **documents.limits, progress=progress)
        add_losses(seen, sweep, losses, documents.units())
        baseline, tokens = losses.baseline.sum() / losses.tokens.sum(), int(losses.tokens.sum())
        what = f"loss {baseline:.4f} nats/token; {documents.title()}, {tokens:,} tokens"
        seen.about["title"]["loss"] = f"{name}: {what}; {how.method} ablation; {_drawn(sweep)}"
    if prompts:
        opened = data[Prompts]
        make = _maker(how, model, lambda: opened.aligned.tokens)
        sweep = sweep_of(model, groups, scales, make, draws=how.draws, seed=how.seed)
        found = observe_prompts(model, prompts, sweep.edits, opened.aligned, opened.tokenizer, progress=progress)
        for measure, one in found.items():
            add_prompts(seen, sweep, one, model.config.n_layers, opened.unit)
            what = f"{name} on {opened.title()}; {measure}, {how.method} ablation; {_drawn(sweep)}"
            seen.about["title"][measure] = what
    return seen


def with_resolved_heads(how: Ablate, data: Opened) -> Ablate:
    """With the heads by name, so that a control is measured without the same ones."""
    return replace(how, heads=tuple(f"L{h.layer}.H{h.head}" for h in _heads(how, data.model, data)))


def _heads(how: Ablate, model: Any, data: Opened) -> list[Head]:
    """The heads that the options name; top3:pds ranks them on the prompts."""
    specs = how.heads or ("all",)
    if strange := score_names(specs) - {"pds"}:
        raise unknown("head score", min(strange), ["pds"])
    scores = {}
    if score_names(specs):
        opened = data[Prompts]
        scores["pds"] = pds_scores(pds_table(model, opened.aligned, opened.tokenizer))
    return parse_heads(specs, model.config.n_layers, model.config.n_heads, scores)


def _maker(how: Ablate, model: Any, rows: Callable[[], Iterable[Sequence[int]]]) -> MakeEdits:
    """What builds the edits of the method; `rows` gives the reference of the mean."""
    if how.method == "mean":
        means = mean_outputs(model, rows())
        return lambda heads, g: replace_heads(heads, means, g)
    if how.method == "resample":
        return lambda heads, g: resample_heads(heads, g, seed=how.seed)
    return scale_heads


def _drawn(sweep: Sweep) -> str:
    n = max(len(some) for some in sweep.controls)
    return f"control: {n} other sets of as many heads" if n else "no controls"


# ---- cells and contrasts -----------------------------------------------------------------------


def sweep_of(
    model: Any, groups: Sequence[Sequence[Head]], scales: Sequence[float], make: MakeEdits, *, draws: int, seed: int
) -> Sweep:
    """Every group at every scale, `draws` other random sets of as many heads beside it, and the heads of sets alone."""
    alone = [(head,) for head in dict.fromkeys(h for group in groups if len(group) > 1 for h in group)]
    return plan(groups, scales, every_head(model), make, draws=draws, seed=seed, also=alone)


def labels(heads: Sequence[Head], g: float) -> dict[str, Any]:
    """The columns that name a cell; layer and index of a set are −1."""
    single = heads[0] if len(heads) == 1 else None
    return {
        "head": "+".join(h.label for h in heads),
        "layer": single.layer if single else -1,
        "index": single.head if single else -1,
        "scale": float(g),
    }


def cells_of(sweep: Sweep) -> pd.DataFrame:
    """The unedited model, then every edit: which heads, at which scale."""
    edits = sorted(sweep.known, key=lambda one: sweep.known[one])
    return pd.DataFrame([{"head": "unedited", "layer": -1, "index": -1, "scale": 1.0}, *(labels(*e) for e in edits)])


def contrasts_of(
    sweep: Sweep, measure: str, idle: Callable[[Sequence[Head]], str] = lambda heads: ""
) -> list[Contrast]:
    """What is estimated of every cell, and corrected within the measure; `idle` says why heads cannot change it, ""
    where they can."""
    several = any(len(heads) > 1 for heads, _ in sweep.cells)
    out = []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        row, edited, why = labels(heads, g), at + 1, idle(heads)
        drawn = {i + 1: 1.0 for others, i in controls if not idle(others)}
        share = {i: w / len(drawn) for i, w in drawn.items()}
        none = why or (IDENTITY if g == 1 else NO_DRAWS if not drawn else "")
        out += [
            Contrast(quantity="edited", weights={edited: 1.0}, labels=row, null=None),
            Contrast(quantity="baseline", weights={0: 1.0}, labels=row, null=None),
            Contrast(
                quantity="delta", weights={edited: 1.0, 0: -1.0}, labels=row, missing=why,
                family=f"delta of {measure} at {g!r}",
            ),
            Contrast(quantity="control", weights={**share, 0: -1.0}, labels=row, null=None, missing=none),
            Contrast(
                quantity="above", labels=row, family=f"above of {measure} at {g!r}", missing=none,
                weights={edited: 1.0, **{i: -w for i, w in share.items()}},
            ),
        ]  # fmt: skip
        if several:
            able = [head for head in heads if not idle([head])]
            alone = {sweep.known[(head,), g] + 1: 1.0 for head in able} if len(heads) > 1 else {}
            lost = ONE if len(heads) == 1 else next((r for h in heads if (r := idle([h]))), "") if len(able) < 2 else ""
            out += [
                Contrast(
                    quantity="alone", weights={**alone, 0: -float(len(able))}, labels=row, null=None, missing=lost
                ),
                Contrast(
                    quantity="interaction", labels=row, family=f"interaction of {measure} at {g!r}", missing=lost,
                    weights={edited: 1.0, **{i: -1.0 for i in alone}, 0: float(len(able) - 1)},
                ),
            ]  # fmt: skip
    return out


def add_losses(seen: InstrumentData, sweep: Sweep, losses: Losses, units: pd.DataFrame) -> None:
    """The loss of every document, and as percent of the unedited loss."""
    total = np.concatenate([losses.baseline[None], losses.edited])
    cells, contrasts = cells_of(sweep), contrasts_of(sweep, "loss")
    seen.blocks["loss"] = Observations(
        measure=NATS, cells=cells, units=units, total=total, size=losses.tokens.astype(float)
    )
    seen.contrasts["loss"] = contrasts
    seen.blocks["percent"] = Observations(measure=PERCENT, cells=cells, units=units, total=total, size=losses.baseline)
    seen.contrasts["percent"] = [
        Contrast(quantity="percent", weights={at + 1: 1.0}, labels=labels(heads, g), family=f"percent at {g!r}")
        for (heads, g), at in zip(sweep.cells, sweep.index, strict=True)
    ]
    seen.extra = {**(seen.extra or {}), "loss": sweep}


def add_prompts(
    seen: InstrumentData, sweep: Sweep, observed: Observed, n_layers: int, name_of: Callable[[str], str] = str
) -> None:
    """A measure of every prompt; SPS cannot change where only heads of the last layer are scaled."""
    units = observed.cases.rename(columns={"id": "unit"})
    units["unit"] = units["unit"].map(name_of)
    total = np.stack([observed.under(None), *(observed.under(i) for i in range(len(sweep.edits)))])
    name = observed.measure
    seen.blocks[name] = Observations(
        measure=Measure(name=name, unit=UNIT[name], resolution=SMALLEST[name]),
        cells=cells_of(sweep), units=units, total=total, size=1.0,
    )  # fmt: skip
    seen.contrasts[name] = contrasts_of(
        sweep, name, lambda heads: REASON if by_construction(name, "all", heads, n_layers) else ""
    )
    seen.extra = {**(seen.extra or {}), name: sweep}


# ---- tables ------------------------------------------------------------------------------------


def tables(how: Ablate, seen: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One table per measure, a row per head or set of heads and scale."""
    out = {}
    for name in (name for name in seen.blocks if name != "percent"):
        table = table_of(seen, name, estimates[name], estimates.get("percent") if name == "loss" else None)
        out[name] = table
    return out


def table_of(seen: InstrumentData, name: str, found: Estimates, percent: Estimates | None = None) -> Table:
    """The table of one measure: the estimates, what their random draws say, and effect sizes of prompts."""
    sweep, block = seen.extra[name], seen.blocks[name]
    frame, missing = found.wide(KEYS)
    change = block.values - block.values[0]
    more: list[dict[str, float]] = []
    for i, control in enumerate(c for c in found.contrasts if c.quantity == "control"):
        drawn = [] if control.missing else [change[cell] for cell in control.weights if cell]
        row, why = beside_draws(float(frame["delta"][i]), drawn, control.missing)
        missing |= {(i, column): text for column, text in why.items()}
        more.append(row)
    frame = frame.assign(**{column: [row[column] for row in more] for column in more[0]})
    unit = block.measure.unit
    columns = [*HEADS, *_effects(name, unit, "interaction" in frame)]
    if percent is not None:
        frame.insert(frame.columns.get_loc("delta"), "percent", percent.frame["value"].to_numpy())
        frame["tokens"] = int(block.sizes[0].sum())
        columns += TOKENS
    else:
        sizes = [effect_sizes(block, [at + 1, 0], i, missing) for i, at in enumerate(sweep.index)]
        frame = frame.assign(**{column: [row[column] for row in sizes] for column in sizes[0]})
        columns += EFFECT_SIZES
    units = ("documents", "documents") if percent is not None else (
        "prompts", "independent cases, or the fewest words of a kind where cases share words"
    )  # fmt: skip
    several = "interaction" in frame
    by = ("interaction" if frame["interaction"].notna().any() else "delta") if several else ""
    return Table(frame, (*columns, *counts(*units)), missing, seen.about["title"][name], by=by, most=MOST)


HEADS = (
    key("head", "head", "the head, or the heads of a set", "layer and index"),
    Column(name="layer", title="layer", unit="layer", format="d", shown=False, doc="counted from 0; −1 of a set"),
    Column(name="index", title="index", unit="head", format="d", shown=False, doc="in its layer, from 0; −1 of a set"),
    Column(name="scale", title="g", unit="factor on z", format="g", doc="what the heads' outputs are multiplied by"),
)


def _effects(name: str, unit: str, sets: bool) -> tuple[Column, ...]:
    """The columns of a table in `unit`, with interactions where sets are scaled."""
    what, source = f"{name} with the heads scaled", "LFA App. D"
    columns = [
        *quantity("edited", name, unit, what, tested=False, format=".4f", shown=not sets),
        *quantity("baseline", "unedited", unit, f"{name}, no head scaled", tested=False, format=".4f", shown=False),
        *quantity("delta", f"Δ {name}", unit, f"{what} − unedited"),
        *quantity("control", "control", unit, "mean delta of other random sets of as many heads", tested=False,
                  source=source, shown=not sets),
        *quantity("above", "above control", unit, "delta − control", source=source, shown=not sets),
        *(replace(c, shown=c.shown and not sets) for c in RANK_COLUMNS),
    ]  # fmt: skip
    if sets:
        columns += [
            *quantity("alone", "Σ alone", unit, "Σ of its heads' delta, one at a time", tested=False),
            *quantity("interaction", "interaction", unit, "delta − Σ of its heads' delta, one at a time"),
        ]
    return tuple(columns)


TOKENS = (
    Column(name="percent", title="percent", unit="percent of the unedited loss", format="+.3f", shown=False,
           doc="the change of the loss, in percent of the unedited loss"),
    Column(name="tokens", title="tokens", unit="tokens", format="d", shown=False, doc="predicted tokens"),
)  # fmt: skip
LOSS = (*HEADS, *_effects("loss", UNIT["loss"], False), *TOKENS, *counts("documents, or windows of them", "documents"))
"""The columns of the table of losses of single heads."""


# ---- for those that bring their own heads and documents ------------------------------------------


def ablate_heads(
    model: Any, shards: TokenShards, groups: Sequence[Sequence[Head]], scales: Sequence[float], *, draws: int = 39,
    seed: int = 0, make: MakeEdits = scale_heads, **limits: Any,
) -> Table:  # fmt: skip
    """The table `loss` of any groups of heads on shards (`limits`: those of `sweep.document_losses`)."""
    model = readable(model)
    sweep = sweep_of(model, groups, scales, make, draws=draws, seed=seed)
    losses = document_losses(model, shards, sweep.edits, **limits)
    names = [str(i) for i in range(len(losses.tokens))]
    seen = InstrumentData({}, {}, {"title": {"loss": "loss"}})
    add_losses(seen, sweep, losses, pd.DataFrame({"unit": names, "cluster": names}))
    found = estimate_all(seen.blocks, seen.contrasts)
    return table_of(seen, "loss", found["loss"], found["percent"])


def ablate_on_prompts(
    model: Any, aligned: Any, tokenizer: Any, measures: Sequence[str], groups: Sequence[Sequence[Head]],
    scales: Sequence[float], *, draws: int = 39, seed: int = 0, make: MakeEdits = scale_heads,
) -> dict[str, Table]:  # fmt: skip
    """The table of each measure (sps, coherence) of any groups of heads on aligned prompts."""
    model = readable(model)
    sweep = sweep_of(model, groups, scales, make, draws=draws, seed=seed)
    found = observe_prompts(model, measures, sweep.edits, aligned, tokenizer)
    seen = InstrumentData({}, {}, {"title": dict.fromkeys(measures, "prompts")})
    for one in found.values():
        add_prompts(seen, sweep, one, model.config.n_layers)
    return {name: table_of(seen, name, estimate(seen.blocks[name], seen.contrasts[name])) for name in seen.blocks}
