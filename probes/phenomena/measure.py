"""The competence gate: observations of each phenomenon, with a table row and a verdict for each."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Documents, Opened, check_tokenizer
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, estimate
from streamscope.instruments.progress import keep_after, say
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import Aligned, align
from streamscope.instruments.prompts.tasks import load_task
from streamscope.instruments.result import Result
from streamscope.instruments.stats.held_out import CHOSEN, SIGNED, best_head_held_out, halves
from streamscope.instruments.table import Table, counts, described, key, note, number
from streamscope.models.hooks import Captures, Query, run
from streamscope.models.layers.head import unembed
from streamscope.models.mixing import connections
from streamscope.models.readout import IGNORE, chunk_rows, settling_depth
from streamscope.probes.coherence.measure import AFTER, WORDS, aligned_control
from streamscope.probes.coherence.measure import rows as coherence_rows
from streamscope.probes.coreference import Coreference
from streamscope.probes.heads import Heads
from streamscope.probes.heads.measure import plan as repeated_words
from streamscope.probes.heads.measure import trained_words
from streamscope.probes.mixing_monitor.measure import MIX, kinds, watch
from streamscope.probes.pds import NOUNS, Pds
from streamscope.probes.phenomena import COREFERENCE, PERIODS, PHENOMENA, POSITION, Name, Phenomena
from streamscope.probes.probe import measure
from streamscope.probes.roles import RESOLUTION

PRESENT, ABSENT, UNDECIDED = "present", "absent", "undecided"
LEVEL = {PRESENT: 1.0, UNDECIDED: 0.5, ABSENT: 0.0, "": float("nan")}
NATS = 1e-6
"""Rounding of a log-probability."""
LONGEST = max(PERIODS.values())


def observe(options: Phenomena, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """One block per phenomenon, with one cell over its own units."""
    measurements = InstrumentData(about={"title": title_of(model)}, extra={})
    source, failed = Shared(options, model, data), []
    if Documents not in options.unread({}):
        data[Documents]  # data that cannot be read are an error of the command, not of one phenomenon
    for name in progress([name for name in PHENOMENA if name in options.only]):
        try:
            answer = LOOKS.get(name, _task)(source, name)
        except KeyboardInterrupt as interrupt:
            keep_after(interrupt, progress, len(measurements.blocks), len(options.only), "phenomena")
            break
        except (InputError, MemoryError, torch.OutOfMemoryError) as error:  # the others are measured all the same
            failed.append(error)
            answer = f"failed: {str(error) or 'out of memory'}".replace(";", ",")
        reason = answer if isinstance(answer, str) else ""
        block, head = (observed(name, [0.0], size=0.0), "") if isinstance(answer, str) else answer
        contrast = Contrast(
            quantity="value", weights={0: 1.0}, labels={"phenomenon": name}, tested=False, missing=reason,
            fixed="a property of the weights" if name == "mixing" and not reason else "",
        )  # fmt: skip
        measurements.blocks[name], measurements.contrasts[name] = block, [contrast]
        measurements.extra[name] = head
        (row,) = estimate(block, [contrast]).frame.to_dict("records")
        interval = "" if row["low"] != row["low"] else f" ({row['low']:.3f} … {row['high']:.3f})"
        value = reason or f"{row['value']:.3f}{interval} {PHENOMENA[name][1]}"
        say(progress, f"{measurements.about['title']}: {name} {value}")  # for those who stop before the table
    if len(failed) == len(options.only):
        raise failed[0]
    return measurements


def observed(
    name: Name, total: Any, unit: Any = None, cluster: Any = None, *, size: Any = 1.0, resolution: float = NATS,
    inflation: float = 1.0,
) -> Observations:  # fmt: skip
    """The observations of a phenomenon, `total` [units]. `unit` defaults to numbers, `cluster` to the units. Raises
    `InputError` for values that are not finite."""
    names, of_value = list(map(str, range(len(total)))) if unit is None else list(unit), PHENOMENA[name][1]
    measure = Measure(
        name=name, unit=of_value, resolution=resolution, inflation=inflation,
        limits=(0.0, 1.0) if of_value.startswith("share") else None,
    )  # fmt: skip
    units = pd.DataFrame({"unit": names, "cluster": names if cluster is None else list(cluster)})
    cells, values = pd.DataFrame({"what": ["value"]}), np.asarray(total, float)[None]
    return Observations(measure=measure, cells=cells, units=units, total=values, size=size)


def verdict(value: float, low: float, high: float, limit: float | None, *, one_case: bool = False) -> str:
    """`present` if the whole interval lies above the limit, `absent` if none of it does, else `undecided`.

    A value without an interval (a property of the weights, or the same in all cases) is compared directly; that of one
    independent case is `undecided`. Without a value or a limit there is no verdict.
    """
    if value != value or limit is None:
        return ""
    if one_case:
        return UNDECIDED
    if low != low:
        low = high = value
    return PRESENT if low > limit else ABSENT if high <= limit else UNDECIDED


def tables(options: Phenomena, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """phenomena: one row each, with its limit and verdict."""
    rows, undecided = list[dict[str, Any]](), list[str]()
    for name, (limit, unit) in ((name, PHENOMENA[name]) for name in PHENOMENA if name in estimates):
        frame, missing = estimates[name].wide(["phenomenon"])
        (row,), reasons = frame.to_dict("records"), {column: reason for (_, column), reason in missing.items()}
        value = row["value"]
        one_case = row["clusters"] < 2 and not data.contrasts[name][0].fixed
        judged = verdict(value, row["value_low"], row["value_high"], limit, one_case=one_case)
        undecided += [name] if one_case and judged else []
        if limit is None:
            reasons |= dict.fromkeys(("limit", "level"), "the phenomenon has no limit")
        elif not judged:
            reasons["level"] = reasons["value"]
        rows.append({
            "model": data.about["title"], **row, "head": data.extra[name],
            "limit": float("nan") if limit is None else limit,
            "unit": unit, "verdict": judged or "–", "level": LEVEL[judged],
            "value_text": "–" if value != value else f"{value:.2f}",
            "heading": name if limit is None else f"{name} > {limit:g}", "undefined": note(reasons),
        })  # fmt: skip
    title = f"{data.about['title']}: phenomena, intervals not corrected for their number"
    title += f"; one independent case decides nothing: {', '.join(undecided)}" if undecided else ""
    frame = pd.DataFrame(rows)[[*(column.name for column in COLUMNS), "undefined"]]
    return {"phenomena": Table.noted(frame, COLUMNS, title)}


N, CLUSTERS = counts("sequences, pairs, prompts, documents or modules", "independent cases")
COLUMNS = (
    key("model", "model", "the measured model"),
    key("phenomenon", "phenomenon", "name of the phenomenon"),
    *described("value", "value", "unit of the phenomenon", "value of the phenomenon's measure", format=".3f",
               sd="cases"),
    number("limit", "limit", "unit of the phenomenon", "limit above which it counts as present", "g"),
    key("unit", "unit", "unit of value, interval and limit", "unit"),
    key("verdict", "verdict", "present: the whole interval is above the limit; absent: none of it; else undecided, "
        "as with one independent case", "word"),
    number("level", "verdict as number", "verdict, 1 present, ½ undecided, 0 absent",
           "verdict as a number, for the map", "g", False),
    key("head", "head", "the heads chosen on each half; for depth the commonest layer"),
    key("value_text", "value", "value as shown in the map", "unit of the phenomenon", shown=False),
    key("heading", "phenomenon", "heading in the map", shown=False),
    replace(N, shown=True), CLUSTERS,
)  # fmt: skip


class Shared:
    """A model with data that several phenomena read; each is computed on first use."""

    def __init__(self, options: Phenomena, model: Any, data: Opened) -> None:
        self.how, self.model, self.data, self.tokenizer = options, model, data, check_tokenizer(model)
        self.pairs, self.in_both_orders = cache(self._pairs), cache(self._in_both_orders)
        self.repetition = cache(self._repetition)

    @cached_property
    def trained_words(self) -> np.ndarray:
        return trained_words(self.tokenizer, self.data[Documents].rows())

    def prompts(self, suite: str) -> Aligned:
        return align(load_suite(suite, n=self.how.n), self.tokenizer, self.model.config.n_ctx)

    def _pairs(self, suite: str) -> pd.DataFrame | None:
        """`probes.coherence` for the prompts with an `aligned_control`; None if there are none."""
        aligned = self.prompts(suite)
        controls = aligned_control(aligned, self.tokenizer, self.model.config.n_ctx)
        if controls is None:
            return None
        return coherence_rows(self.model, aligned, controls, self.tokenizer).dropna(subset="due")

    @cached_property
    def documents(self) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
        """The sums of `losses_and_depths` over the documents, and the units."""
        return self.data[Documents].sums(self.model.cfg.device, losses_and_depths(self.model, self.every))

    @cached_property
    def position(self) -> pd.DataFrame:
        """`probes.pds` over the pairs, a row per pair and head."""
        return measure(self.model, Pds(), self.prompts("stories"), tokenizer=self.tokenizer)

    def _in_both_orders(self, suite: str) -> pd.DataFrame:
        """A row per pair and head: `both`, whether it attends most, of all keys, to the antecedent in both orders."""
        rows = measure(self.model, Coreference(domain="keys"), self.prompts(suite), tokenizer=self.tokenizer)
        labels = ["head", "pair", "cluster", "category", "relation"]
        hits = rows[rows["pair"] != ""].groupby(["head", "pair"], sort=False)["hit"].agg(both="min", orders="size")
        pairs = rows.drop_duplicates(["head", "pair"])[labels].merge(hits.reset_index(), on=["head", "pair"])
        return pairs[pairs["orders"] == 2].assign(both=lambda table: table["both"].astype(float))

    def _repetition(self, period: int) -> tuple[pd.DataFrame, np.ndarray]:
        """`probes.heads` on BOS + r + r, r of `period` trained words, and how much better the repetition is predicted,
        nats [N], for `repeats`: what is asked for of this period, in one pass. Raises `InputError` if the context or
        the words do not do."""
        if 2 * period + 1 > self.model.config.n_ctx:
            raise InputError(f"the context of {self.model.config.n_ctx} tokens does not hold {period} words twice")
        probe = Heads(sequences=self.how.sequences, length=period, pool="trained")
        query = repeated_words(probe, [], self.tokenizer, self.trained_words)
        hooks = query.hooks if any(PERIODS.get(name) == period for name in self.how.only) else ()
        gains = period == LONGEST and "repeats" in self.how.only
        n = max(1, REPEAT_LOGITS // (self.model.config.d_vocab * len(query.tokens[0])))
        patterns, gained = defaultdict[str, list[torch.Tensor]](list), [np.zeros(0)]
        for first in range(0, len(query.tokens), n):
            chunk = query.tokens[first : first + n]
            logits = [list(range(len(ids))) for ids in chunk] if gains else None
            captures = run(self.model, Query(tokens=chunk, hooks=hooks, logits=logits))
            for hook, rows in captures.hooks.items():
                patterns[hook] += rows
            if gains:
                gained.append(repetition_gain(captures.logits, chunk, probe.length))
        return probe.read(Captures(patterns, None), query) if hooks else pd.DataFrame(), np.concatenate(gained)

    @cached_property
    def every(self) -> int:
        """k if the settling depth is read at one token in k, spread over all documents; 0 if it is not asked for."""
        if "depth" not in self.how.only:
            return 0
        logits = self.model.config.n_layers * self.model.config.d_vocab
        tokens = sum(int((targets != IGNORE).sum()) for *_, targets in self.data[Documents].batches())
        return max(1, -(-tokens * logits // DEPTH_LOGITS))


DEPTH_LOGITS = 2**30
"""Largest number of logits for the settling depth, tokens · layers · vocabulary: half a minute on one core."""


def losses_and_depths(model: Any, every: int = 1) -> Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]:
    """For `OpenDocuments.sums`: `losses` [B] in nats, and how many targets settle in each layer, `layers` [layers, B],
    read at every `every`-th target (0: at none)."""
    count_before = 0

    def of(tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        nonlocal count_before
        real, predicted = targets != IGNORE, []
        index = count_before + real.flatten().cumsum(0).view_as(real) - 1
        sample_mask = real & (index % every == 0) if every else torch.zeros_like(real)
        count_before += int(real.sum())
        with torch.no_grad():
            state = model.embed_tokens(tokens)
            for layer in range(model.config.n_layers):
                state = model.segment(state, layer, layer + 1)
                if every:
                    h = model.layer_norm(layer)(model.readout(state))[sample_mask]
                    chunks = h.split(chunk_rows(model.config.d_vocab))
                    predicted.append(torch.cat([unembed(chunk, model.head).argmax(-1) for chunk in chunks]))
            losses = model.losses_from(state, targets).double().sum(1)
        layers = torch.zeros(model.config.n_layers, len(targets), dtype=torch.int64, device=targets.device)
        if every:
            depth, row = settling_depth(torch.stack(predicted)), sample_mask.nonzero()[:, 0]
            layers.index_put_((depth, row), torch.ones_like(row), accumulate=True)
        return {"losses": losses, "layers": layers}

    return of


Look = tuple[Observations, str] | str
"""What one phenomenon shows, and its heads; or the reason why this model cannot have it."""


def _loss(source: Shared, name: Name) -> Look:
    total, units = source.documents
    return observed(name, total["losses"], units["unit"], units["cluster"], size=total["targets"]), ""


def _depth(source: Shared, name: Name) -> Look:
    total, units = source.documents
    size, commonest = total["layers"].sum(0), int(total["layers"].sum(1).argmax())
    head = f"commonest: L{commonest}" + (f", at {size.sum():,} tokens, 1 of {source.every}" if source.every > 1 else "")
    return _shares(name, size - total["layers"][commonest], size, units), head


def _shares(name: Name, total: np.ndarray, size: np.ndarray, units: pd.DataFrame) -> Observations:
    """Of the documents that have any."""
    total, units, size = total[size > 0], units[size > 0], size[size > 0]
    return observed(name, total, units["unit"], units["cluster"], size=size, resolution=0.0)


def _attention(source: Shared, name: Name) -> Look:
    """Per document: heads and positions from the ninth on that attend neither uniformly nor to one key."""
    n_layers, n_heads = source.model.config.n_layers, source.model.config.n_heads

    @torch.no_grad()
    def sums(tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        judged, layer = (targets != IGNORE)[:, FIRST:], n_heads * tokens.shape[1] ** 2
        rows, step = max(1, PATTERNS // (n_layers * layer)), max(1, PATTERNS // layer)
        chunk_counts = []
        for token_rows, real in zip(tokens.split(rows), judged.split(rows), strict=True):
            selective_heads = sum(
                chooses(source.model.patterns(token_rows, range(first, min(first + step, n_layers)))).sum((1, 2))
                for first in range(0, n_layers, step)
            )
            chunk_counts.append((selective_heads * real).sum(1))
        return {"chosen": torch.cat(chunk_counts), "of": judged.sum(1) * n_layers * n_heads}

    total, units = source.data[Documents].sums(source.model.cfg.device, sums)
    if not total["of"].any():
        return f"no document has {FIRST + 1} tokens"
    return _shares(name, total["chosen"], total["of"], units), ""


FIRST = 8
"""The first judged position, whose query has nine keys."""
PATTERNS = 1 << 24
"""Largest number of pattern entries at a time."""
NARROW, UNIFORM = 0.05, 0.95
"""Shares of uniform attention's entropy below which a head counts as attending to one key, and above which to all."""


def chooses(patterns: torch.Tensor) -> torch.Tensor:
    """[…, T, T] patterns -> […, T − FIRST]: whether the query attends neither uniformly nor to one key."""
    a = patterns[..., FIRST:, :].double()
    keys = torch.arange(FIRST + 1, patterns.shape[-1] + 1, device=a.device)
    share = torch.special.entr(a).sum(-1) / keys.log()
    return (share > NARROW) & (share < UNIFORM)


def _copying(source: Shared, name: Name) -> Look:
    """Log-odds of the coherent word (`lift`: mean ln p of both words) minus those after another prompt's nouns."""
    pairs = source.pairs("stories-words" if name == "reserved" else "stories")
    if pairs is None:
        return "no prompt has nouns that can be exchanged"
    value = (pairs[[*WORDS]].mean(axis=1) - pairs[[*AFTER]].mean(axis=1)) if name == "lift" else pairs["due"]
    return observed(name, value, pairs["id"], pairs["cluster"]), ""


def _induction(source: Shared, name: Name) -> Look:
    table = source.repetition(PERIODS[name])[0].query("score == 'induction'")
    table = table.assign(head=[f"L{a}.H{b}" for a, b in zip(table["layer"], table["index"], strict=True)])
    rows, head = best_head_held_out(table, ["value"], (table["prompt"] % 2).to_numpy())
    return observed(name, rows["value"], rows["prompt"].astype(str), resolution=RESOLUTION, inflation=CHOSEN), head


REPEAT_LOGITS = 2**24
"""Logits of repeated words that are held at once: 64 MiB in fp32."""


def repetition_gain(logits: Any, tokens: Any, n: int) -> np.ndarray:
    """Per sequence (BOS +) r + r, r of n tokens: mean loss of r's tokens 2 … n the first time − the second time, nats.
    Nothing announces the repetition at the first token of r."""
    gains = []
    for row, ids in zip(logits, tokens, strict=True):
        log_p = row[:-1].double().log_softmax(-1)
        loss = -log_p.gather(1, torch.as_tensor(list(ids[1:]), device=log_p.device)[:, None])[:, 0]  # of token i + 1
        bos = len(ids) - 2 * n
        gains.append(float(loss[bos : bos + n - 1].mean() - loss[bos + n :].mean()))
    return np.array(gains)


def _best_head(source: Shared, name: Name) -> Look:
    """The pairs of a category ("": all), scored by the head that was chosen without them: PDS over generated pairs, for
    with the thirty of `competing` most models stay undecided; or whether it finds the antecedent in both orders."""
    if name in POSITION:
        table, column, category, resolution = source.position, "difference", POSITION[name], RESOLUTION
    else:
        suite = "stories-words" if name == "coreference-reserved" else "stories"
        table, column, category, resolution = source.in_both_orders(suite), "both", COREFERENCE[name], 0.0
    table = table[table["category"] == category] if category else table
    if table.empty:
        return f"the pairs have no category {category}"
    signs, inflation = (NOUNS, SIGNED) if name in POSITION else (None, CHOSEN)
    rows, head = best_head_held_out(table, [column], halves(table, 0)[0], signs=signs)
    block = observed(name, rows[column], rows["pair"], rows["cluster"], resolution=resolution, inflation=inflation)
    return block, head


def _task(source: Shared, name: Name) -> Look:
    task = load_task(name, source.tokenizer, source.model.config.n_ctx)
    reads = task.reads
    logits = run(source.model, Query(tokens=reads.tokens, logits=[[p] for p in reads.positions])).logits
    assert logits is not None
    rows_and_ids = zip(logits, torch.as_tensor(reads.ids), strict=True)
    log_p = torch.cat([row.double().log_softmax(-1).cpu().gather(1, ids[None]) for row, ids in rows_and_ids]).numpy()
    return observed(name, task.scores(log_p)["log_odds"], cluster=task.cases["cluster"]), ""


def _mixing(source: Shared, name: Name) -> Look:
    if not any("res" in module.b for module in connections(source.model).values()):
        return "the model has no hyper-connections"
    module_kinds = kinds(watch(source.model))
    if isinstance(module_kinds, str):
        return module_kinds
    return observed(name, [kind == MIX for kind in module_kinds], resolution=0.0), ""


LOOKS: dict[Name, Callable[[Shared, Name], Look]] = {
    "loss": _loss, "lift": _copying, "copying": _copying, "reserved": _copying, "attention": _attention,
    "repeats": lambda source, name: (observed(name, source.repetition(LONGEST)[1]), ""), "depth": _depth,
    "mixing": _mixing, **dict.fromkeys(PERIODS, _induction), **dict.fromkeys((*POSITION, *COREFERENCE), _best_head),
}  # fmt: skip
"""The function of each phenomenon; the others are tasks."""


def relate(result: Result) -> dict[str, Table]:
    """when: per run and phenomenon, when its value passed the middle for good, and from when on it is present."""
    frame, rows = result.table().frame, list[dict[str, Any]]()
    for (name, phenomenon), snapshots in frame.groupby(["run", "phenomenon"], sort=False) if "step" in frame else ():
        if len(snapshots) > 1:
            times, reasons = _when(snapshots.sort_values("step"))
            rows.append({"run": name, "phenomenon": phenomenon, **times, "undefined": note(reasons)})
    title = "When each phenomenon appeared, between two snapshots"
    return {"when": Table.noted(pd.DataFrame(rows), WHEN, title)} if rows else {}


def _when(snapshots: pd.DataFrame) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of `relate`: first and last value; the snapshots `after` and `by` which the middle was passed."""
    steps, values = snapshots["step"].to_numpy(), snapshots["value"].to_numpy(float)
    is_point = snapshots["value_low"].isna() & (snapshots["clusters"] > 1)  # the same in all cases
    low, high = (np.where(is_point, values, snapshots[f"value_{end}"]) for end in ("low", "high"))
    row: dict[str, Any] = {"first": values[0], "last": values[-1]}
    row |= dict.fromkeys(("after", "by", "present_from", "tokens"), float("nan"))
    reasons: dict[str, str] = {}
    if np.isnan(values).any():
        empty_names = [name for name in ("first", "last") if np.isnan(row[name])]
        reasons = dict.fromkeys((*empty_names, "after", "by"), "a snapshot has no value")
    elif not (low[0] > high[-1] or low[-1] > high[0]):
        reasons = dict.fromkeys(("after", "by"), "first and last value do not differ clearly")
    else:
        middle, sign = (values[0] + values[-1]) / 2, np.sign(values[-1] - values[0])
        place = _for_good(sign * (values - middle) > 0)
        row |= {"after": float(steps[place - 1]), "by": float(steps[place])}
    is_present = (snapshots["verdict"] == PRESENT).to_numpy()
    if is_present[-1]:
        place = _for_good(is_present)
        row["present_from"] = float(steps[place])
        row["tokens"] = float(snapshots["tokens"].iloc[place]) if "tokens" in snapshots else float("nan")
    else:
        reasons["present_from"] = "not present at the last snapshot"
    if np.isnan(row["tokens"]):
        reasons["tokens"] = reasons.get("present_from", "not trained on text")
    return row, reasons


def _for_good(behind: np.ndarray) -> int:  # the first index from which on all are true
    return len(behind) - int(behind[::-1].cumprod().sum())


WHEN = (
    key("run", "run", "the training run"),
    key("phenomenon", "phenomenon", "name of the phenomenon"),
    *(number(name, f"{name} value", "unit of the phenomenon", f"value at the {name} snapshot", ".3f")
      for name in ("first", "last")),
    number("after", "middle passed after", "optimiser steps",
           "last snapshot before the middle between first and last value is passed", ",.0f"),
    number("by", "middle passed by", "optimiser steps", "first snapshot from which on every value is beyond the middle",
           ",.0f"),
    number("present_from", "present from", "optimiser steps", "first snapshot from which on every verdict is present",
           ",.0f"),
    number("tokens", "tokens by then", "training tokens", "training tokens up to that snapshot, with repetitions",
           ",.0f"),
)  # fmt: skip
