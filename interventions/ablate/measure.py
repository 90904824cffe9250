"""Ablation: one table per measure, with a row per head or set of heads and scale.

The interaction of a set S of heads is its effect minus the sum of the effects of its heads alone:

    interaction(S) = Δ(S) − Σ_{h ∈ S} Δ({h})                                          (in the units of Δ)

It is 0 if effects add up. For a loss, a positive interaction means that the heads back each other up: each matters only
if the others are ablated too. A negative one means that they work in series: ablating one leaves the other no effect.
Log-odds fall where a loss rises, so their signs are reversed. A loss is not linear in the logits, so effects need not
add up even if no head reads another. A head that cannot change the measure (SPS, in the last layer) counts as Δ = 0.
"""

import random
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, say, title_of
from streamscope.instruments.data import Documents, Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Observations, effect_contrasts
from streamscope.instruments.progress import duration
from streamscope.instruments.result import Result
from streamscope.instruments.table import Table, counts, key, number, quantity
from streamscope.interventions import controls
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.edits import document_rows, mean_outputs, replace_heads, resample_heads, scale_heads
from streamscope.interventions.observe import MEASURES, NATS, PERCENT, document_losses, observe_prompts
from streamscope.models.head_spec import Head, every_head, parse_heads, score_names
from streamscope.models.hooks import Edits
from streamscope.models.sweep import pass_shares

MakeEdits = Callable[[Sequence[Head], float], Edits]
KEYS = ("head", "layer", "index", "scale")
MOST = 40
"""Printed rows of a long table of sets, those with the strongest interaction."""
NAMED = 12
"""Largest number of left out heads that are named."""
PILOT_HEADS, PILOT_TOKENS = 3, 1024
"""The sweep that is timed for --budget."""


def observe(options: Ablate, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model and every edit of the sweep. Units: documents for the loss, prompts for the others."""
    heads, measures = _heads(options, model, data), [*dict.fromkeys(options.measures)]
    groups: Sequence[Sequence[Head]] = (
        [heads] if options.together else controls.head_sets(heads, options.size, options.sets, options.seed)
    )
    alone = dict.fromkeys(zip(chain(*groups))) if len(groups[0]) > 1 else {}  # (head,) of every head in a set
    draws: dict[str, int] = {"draws": options.draws, "seed": options.seed}
    scales, name = tuple(dict.fromkeys(map(float, options.scale))), title_of(model)
    measurements, start, note = InstrumentData(about={"title": {}}), time.monotonic(), ""
    sweeps: dict[str, tuple[controls.Sweep, str]] = {}
    if "loss" in options.measures:
        measures.remove("loss")  # the others are of prompts
        documents, pool = data[Documents], every_head(model)
        make = _maker(options, model, lambda: document_rows(documents.batches()))
        if options.screen is not None:
            from streamscope.interventions.patch.activations import attribute_heads

            say(progress, f"{name}: ranking {len(heads)} heads by one gradient on {documents.title()}")
            by_gradient = attribute_heads(model, documents.batches())
            ranked = sorted(heads, key=lambda head: -abs(by_gradient[head.layer, head.head]))
            # if all heads are given, the random ones are also those that are drawn as controls
            sample = tuple(head for (head,) in controls.random_sets(heads, (), 1, options.draws, options.seed))
            screen = Screen(by_gradient, tuple(ranked[: options.screened()]), sample, len(heads))
            groups = [(head,) for head in heads if head in {*screen.best, *screen.sample}]
            measurements.extra = screen
        elif options.budget is not None and {*scales} != {1.0}:
            n = heads_within(options, model, heads, documents, scales, make, start + options.seconds())
            if n < min(len(pool), len(heads) + options.draws):  # controls are measured too
                generator, others = random.Random(options.seed), [head for head in pool if head not in heads]
                kept_heads = sorted(generator.sample(heads, min(n, len(heads))))
                pool = sorted([*kept_heads, *generator.sample(others, min(n - len(kept_heads), len(others)))])
                groups = [(head,) for head in kept_heads]
                selection, skipped = "all given heads", [head.label for head in heads if head not in kept_heads]
                if skipped:
                    selection = f"{len(kept_heads)} of {len(heads)} heads, drawn at random, {len(skipped)} left out"
                    selection += f": {', '.join(skipped)}" if len(skipped) <= NAMED else ""
                selection = f"--budget {options.budget}: {selection}"
                selection += f"; controls are drawn from the {len(pool)} measured heads" if options.draws else ""
                measurements.about["head_selection"], note = selection, f"; {selection}"
        sweep = controls.plan(groups, scales, pool, make, **draws, also=alone)
        losses = document_losses(model, documents.shards, sweep.edits, **documents.limits, progress=progress)
        cells = cells_of(sweep)
        measurements.blocks |= losses.blocks(cells, documents.units(), loss=NATS, percent=PERCENT)
        measurements.contrasts["percent"], labels = [], cells.to_dict("records")
        for group, g, _ in sweep.cells:
            edited, family = 1 + sweep.index[group, g], f"percent at {g!r}"
            percent = Contrast(quantity="percent", weights={edited: 1.0}, labels=labels[edited], family=family)
            measurements.contrasts["percent"].append(percent)
        baseline, tokens = losses.baseline.sum() / losses.tokens.sum(), int(losses.tokens.sum())
        of_documents = f"{documents.title()}, {counted(tokens, 'token', ',')}"
        sweeps["loss"] = sweep, f"{name}: loss {baseline:.4f} nats/token; {of_documents}; "
    if measures:
        opened = data[Prompts]
        make = _maker(options, model, lambda: opened.aligned.tokens)
        sweep = controls.plan(groups, scales, every_head(model), make, **draws, also=alone)
        by_measure = observe_prompts(model, measures, sweep.edits, opened.aligned, opened.tokenizer, progress=progress)
        for measure, observed in by_measure.items():
            units = observed.cases.rename(columns={"id": "unit"})
            measurements.blocks[measure] = Observations(
                measure=MEASURES[measure], cells=cells_of(sweep), size=1.0, total=observed.values[:, 0],
                units=units.assign(unit=units["unit"].map(opened.unit)),
            )  # fmt: skip
            scored = opened.aligned.scoring() if measure == "coherence" else observed.left_out
            sweeps[measure] = sweep, f"{name} on {opened.title()}{scored}; {measure}, "
    for measure, (sweep, title) in sweeps.items():
        no_effect = partial(controls.inert_reason, measure, "all", n_layers=model.config.n_layers)
        measurements.contrasts[measure] = contrasts_of(sweep, measure, no_effect if measure == "sps" else None)
        *_, sets = zip(*sweep.cells, strict=True)
        n = max(map(len, sets))
        drawn = f"control: {n} other sets of as many heads" if n else "no controls"
        measurements.about["title"][measure] = f"{title}{options.method} ablation; {drawn}{note}"
    return measurements


def with_resolved_heads(options: Ablate, data: Opened) -> Ablate:
    if options.screen is not None or options.budget is not None:
        raise InputError("--screen and --budget choose heads in one model: with --control, name --heads instead")
    return replace(options, heads=tuple(f"L{h.layer}.H{h.head}" for h in _heads(options, data.model, data)))


def _heads(options: Ablate, model: Any, data: Opened) -> list[Head]:
    """The heads that the options name; top3:pds ranks them on the prompts."""
    ranked_by, scores = score_names(options.heads), dict[str, dict[Head, float]]()
    if missing := ranked_by - {"pds"}:
        raise unknown("head score", min(missing), ["pds"])
    if ranked_by:
        from streamscope.probes.pds import Pds
        from streamscope.probes.roles import head_scores

        scores["pds"] = head_scores(Pds().measure(model, data[Prompts], progress=iter).table().frame, "pds")
    return parse_heads(options.heads, model.config.n_layers, model.config.n_heads, scores)


Screen = namedtuple("Screen", ("attribution", "best", "sample", "of"))
"""Heads ranked by attribution: d loss / d gate [layers, heads], the `best` by its size, a random `sample`, and how many
heads were ranked."""


def screen_title(screen: Screen, frame: pd.DataFrame) -> str:
    """How well attribution ranks the random heads, and the largest effect of those that it did not select, for each
    scale. The interval is that of this head alone."""
    lines = [f"{len(screen.best)} of {screen.of} heads by attribution, and {len(screen.sample)} at random"]
    sample, best = ({head.label for head in heads} for heads in (screen.sample, screen.best))
    for g, rows in frame[frame["head"].isin(sample) & (frame["scale"] != 1)].groupby("scale", sort=False):
        rho = float(rows["attribution"].abs().rank().corr(rows["delta"].abs().rank()))  # Spearman's
        suffix = "" if frame["scale"].nunique() == 1 else f" at scale {g:g}"
        size = "undefined" if np.isnan(rho) else f"{rho:.2f}"
        lines.append(f"rank correlation of sizes among the random ones{suffix} {size}")
        if len(missed := rows[~rows["head"].isin(best)]):
            row = missed.loc[missed["delta"].abs().idxmax()]
            value, low, high = (f"{row[f'delta{end}']:+.4f}" for end in ("", "_low", "_high"))
            phrase = f"largest effect among the {len(missed)} random heads that attribution did not select"
            lines.append(f"{phrase}: {row['head']} {value} ({low} … {high}, 95 % for this head alone)")
    return "; ".join(lines)


def heads_within(
    options: Ablate, model: Any, heads: Sequence[Head], documents: Any, scales: Sequence[float], make: MakeEdits,
    end: float,
) -> int:  # fmt: skip
    """How many single heads, controls included, can be measured until the time `end`: a few of them on the first
    documents are timed. Raises `InputError` if fewer than two fit."""
    sweep = [make([head], g) for head in heads for g in scales if g != 1]
    shares, lengths = pass_shares(model, [{}, *sweep]), [len(row) - 1 for row in documents.rows()]
    n_pilot = min(len(lengths), 1 + int(np.searchsorted(np.cumsum(lengths), PILOT_TOKENS)))
    pilot = random.Random(options.seed).sample(range(len(sweep)), min(len(sweep), PILOT_HEADS))
    start = time.monotonic()
    document_losses(model, documents.only(range(n_pilot)).shards, [sweep[i] for i in pilot])
    seconds = time.monotonic() - start
    rate = seconds / (sum(lengths[:n_pilot]) * (1 + shares[[i + 1 for i in pilot]].sum()))
    room = (end - time.monotonic()) / (rate * sum(lengths)) - 1
    n = int(room / (shares[1:].mean() * len(sweep) / len(heads)))
    if n < 2:
        least = duration((1 + 2 * shares[1:].mean()) * rate * sum(lengths) + seconds)
        more = "give more time or fewer --max-documents"
        raise InputError(f"--budget {options.budget}: two heads take about {least}; {more}")
    return n


def _maker(options: Ablate, model: Any, reference_rows: Callable[[], Iterable[Sequence[int]]]) -> MakeEdits:
    if options.method == "mean":
        means = mean_outputs(model, reference_rows())
        return lambda heads, g: replace_heads(heads, means, g)
    return partial(resample_heads, seed=options.seed) if options.method == "resample" else scale_heads


def cells_of(sweep: controls.Sweep) -> pd.DataFrame:
    """One row for the unedited model, then one per edit with its heads and scale; layer and index of a set are −1."""
    rows = [("unedited", -1, -1, 1.0)]
    for heads, g in sweep.index:
        layer, index = heads[0] if len(heads) == 1 else (-1, -1)
        rows.append(("+".join(starmap("L{}.H{}".format, heads)), layer, index, g))
    return pd.DataFrame(rows, columns=KEYS)


def contrasts_of(
    sweep: controls.Sweep, measure: str, no_effect: Callable[[Sequence[Head]], str] | None = None
) -> list[Contrast]:
    """The estimates of every cell, corrected within the measure; `no_effect` gives the reason if heads cannot change
    the measure, else ""."""
    several, labels, out = len(sweep.cells[0][0]) > 1, cells_of(sweep).to_dict("records"), []
    reasons = {heads: no_effect(heads) if no_effect else "" for heads, _ in sweep.index}
    for heads, g, sets in sweep.cells:
        edited, missing = 1 + sweep.index[heads, g], reasons[heads]
        row = labels[edited]
        drawn = [1 + sweep.index[drawn_heads, g] for drawn_heads in sets if not reasons[drawn_heads]]
        none = missing or (controls.IDENTITY if g == 1 else controls.NO_DRAWS if not drawn else "")
        out += effect_contrasts("edited", {edited: 1.0}, 0, row, missing=missing, family=f"delta of {measure} at {g!r}")
        out += controls.against_random(edited, 0, drawn, row, none, f"above of {measure} at {g!r}")
        if several:
            able = [1 + sweep.index[(head,), g] for head in heads if not reasons[head,]]
            lost = "" if len(able) > 1 else max([reasons[head,] for head in heads])
            sums = {**dict.fromkeys(able, 1.0), 0: -float(len(able))}
            beyond = {edited: 1.0, **dict.fromkeys(able, -1.0), 0: float(len(able) - 1)}
            family = f"interaction of {measure} at {g!r}"
            out += [
                Contrast(quantity="alone", weights=sums, labels=row, null=None, missing=lost),
                Contrast(quantity="interaction", weights=beyond, labels=row, family=family, missing=lost),
            ]
    return out


def tables(options: Ablate, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """One per measure: estimates, ranks among the random sets, and effect sizes for prompts."""
    out = {}
    for name, block in data.blocks.items():
        if name == "percent":
            continue
        loss, title, columns = name == "loss", data.about["title"][name], list(HEADS)
        frame, missing = controls.beside_draws(block, estimates[name], KEYS, effect_sizes=not loss)
        several = "interaction" in frame
        unit, scaled, source = block.measure.unit, f"{name} with the heads scaled", "LFA App. D"
        columns += [
            number("edited", name, unit, scaled, ".4f", shown=not several),
            number("baseline", f"unedited {name}", unit, f"{name} of the unedited model", ".4f", shown=False),
            *quantity("delta", f"Δ {name}", unit, f"{scaled} − {name} of the unedited model"),
            number("control", f"Δ {name}, random heads", unit, "control: mean Δ of random other sets of as many heads",
                   "+.4f", not several, source=source),
            *quantity("above", "Δ − random heads", unit, "Δ − control", source=source, shown=not several),
            *(map(partial(replace, shown=False), controls.RANK_COLUMNS) if several else controls.RANK_COLUMNS),
        ]  # fmt: skip
        if several:
            columns += [
                number("alone", "sum of single heads", unit, "sum of Δ over its heads alone", "+.4f"),
                *quantity("interaction", "interaction", unit, "Δ − sum of Δ over its heads alone"),
            ]
        if loss:
            frame.insert(frame.columns.get_loc("delta"), "percent", estimates["percent"].frame["value"].to_numpy())
            frame["tokens"] = int(block.sizes[0].sum())
        columns += TOKENS if loss else controls.EFFECT_SIZES
        if (screen := data.extra) is not None:
            # to first order Δ is (g − 1) times the attribution
            frame["attribution"] = (frame["scale"] - 1).to_numpy() * screen.attribution[frame["layer"], frame["index"]]
            best = frame["head"].isin([head.label for head in screen.best])
            frame["selection"] = np.where(best, "attribution", "at random")
            columns += SCREENED
            data.about["head_selection"] = quality = screen_title(screen, frame)
            title += f"; {quality}"
        columns += counts(*(("documents", "documents") if loss else ("prompts", controls.SHARING)))
        by = ("interaction" if frame["interaction"].notna().any() else "delta") if several else ""
        out[name] = Table(frame, tuple(columns), missing, title, by=by, most=MOST)
    return out


def relate(result: Result) -> dict[str, Table]:
    """head_selection: which heads --screen or --budget chose in each run; the joined table has no title per run."""
    if not any("head_selection" in run for run in result.about["runs"]):
        return {}
    rows = [(str(run["model"]), run.get("head_selection", "all given heads")) for run in result.about["runs"]]
    frame = pd.DataFrame(rows, columns=["run", "head_selection"])
    return {"head_selection": Table(frame, HEAD_SELECTION, {}, "Heads that each run measured")}


HEAD_SELECTION = (
    key("run", "run", "the run that was measured"),
    key("head_selection", "measured heads", "how --screen or --budget chose the heads", "text"),
)
SCREENED = (
    number("attribution", "Δ by attribution", NATS.unit, "Δ to first order, (g − 1) z · ∂loss/∂z", "+.4f"),
    key("selection", "selected by", "attribution: among the largest; at random: to test the screen", "word"),
)
HEADS = (
    key("head", "head", "the head, or the heads of a set", "layer and index"),
    number("layer", "layer", "layer", "counted from 0; −1 for a set", "d", False),
    number("index", "index", "head", "number of the head in its layer, from 0; −1 for a set", "d", False),
    number("scale", "scale", "factor on z", "factor g on the heads' outputs", "g"),
)


TOKENS = (
    number("percent", "Δ loss, percent", "percent of the unedited loss", "100 (loss with the heads scaled / loss − 1)",
           "+.3f", False),
    number("tokens", "tokens", "tokens", "predicted tokens", "d", False),
)  # fmt: skip
