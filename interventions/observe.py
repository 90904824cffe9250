"""Losses, answers, SPS and coherence of a model on the same cases, unedited and under many edits.

    found = document_losses(model, shards, [scale_heads([head], 0.0) for head in heads], kl="forward")
    (found.edited - found.baseline) / found.tokens                     [edits, documents], nats/token

    found = answer_log_probs(model, tokens, positions, answers, sweep)
    found[1:] - found[:1]                                              [edits, cases, answers], nats

    observe_prompts(model, ("sps", "coherence"), sweep, aligned, tokenizer)["sps"].edited  [edits, readouts, prompts]

Edits share their passes (`models.sweep`), and nothing holds [tokens, vocabulary] for more than a chunk of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.observations import Measure, Observations
from streamscope.instruments.open_data import OpenDocuments, task_block
from streamscope.instruments.progress import Forecast, keep_after, ticks
from streamscope.models.hooks import Edits, Query, batches, edited_at, pad, run
from streamscope.models.readout import divergences, log_probs_at, map_logits, token_losses
from streamscope.models.sweep import chunk_tokens, pass_shares, passes, run_sweep
from streamscope.models.transformer import StreamTransformer
from streamscope.text.shards import NO_TARGET, TokenShards, document_batches

if TYPE_CHECKING:
    from streamscope.instruments.prompts.alignment import Aligned
    from streamscope.instruments.prompts.tasks import Task

Progress = Callable[[Iterable], Iterable]
MEASURES = {
    m.name: m for m in (
        Measure(name="loss", unit="nats/token", resolution=1e-6),
        Measure(name="sps", unit="attention, target − competitor", resolution=1e-6, limits=(-1.0, 1.0)),
        Measure(name="coherence", unit="nats, log-odds", resolution=1e-5),
        Measure(name="probability", unit="probability of the answer", resolution=1e-6, limits=(0.0, 1.0)),
        Measure(name="log_odds", unit="nats, answer against foil", resolution=1e-5),
    )
}  # fmt: skip
"""With the changes of each that are rounding of float32."""
NAMES = ("id", "pair", "cluster", "category", "relation", "order")


@dataclass(frozen=True)
class Observed:
    """Values of one measure on N cases, unedited and under every edit."""

    measure: str
    cases: pd.DataFrame
    """One row per case: id, pair, cluster (the unit of inference), category, relation, order."""
    values: np.ndarray
    """[1 + edits, readouts, N], the unedited model first."""
    readouts: tuple[str, ...] = ("all",)
    """Names of the readouts: "all", and for SPS the heads of each layer, "L0", "L1", …"""
    left_out: str = ""
    """For a title: how many prompts were left out, and why."""
    size: np.ndarray | float = 1.0
    """[N] what a case counts in a mean: the tokens of a document, of which its loss is the mean; else 1."""

    def under(self, edit: int | None, readout: str = "all") -> np.ndarray:
        """Values [N] under an edit, by index; None is the baseline."""
        return self.values[0 if edit is None else edit + 1, self.readouts.index(readout)]


Variant = Edits | StreamTransformer | Callable[[], StreamTransformer]
"""Edits, another model, or a function that makes one. The model of a function exists only while a batch runs."""
NATS = MEASURES["loss"]
PERCENT = replace(NATS, name="percent of the loss", unit="percent", resolution=1e-4, factor=100.0, shift=-100.0)
"""The same with the unedited losses as sizes: 100 (loss / unedited loss − 1)."""
KL = Literal["none", "forward", "reverse"]
"""forward is KL(unedited ‖ edited), reverse is KL(edited ‖ unedited), of the distributions of the next token."""


@dataclass(frozen=True)
class Losses:
    """Sums over the positions of each document that have a target: nats, and units of the residual stream for `shift`.
    baseline [documents]; edited, kl, shift [variants, documents]; tokens [documents]. kl and shift are 0 if not
    requested. Documents after an interruption have no tokens."""

    baseline: np.ndarray
    edited: np.ndarray
    kl: np.ndarray
    shift: np.ndarray
    tokens: np.ndarray

    def blocks(
        self, cells: pd.DataFrame, units: pd.DataFrame, indices: Sequence[int] | None = None, **measures: Measure
    ) -> dict[str, Observations]:
        """Observations of the named sums (loss, percent, kl, shift); the first cell is unedited, then each variant, or
        those of the cells `indices`, and the others are not measured. Sizes are tokens; those of `percent` the unedited
        losses."""
        out, rows = {}, [0, *(range(1, len(cells)) if indices is None else indices)]
        for name, measure in measures.items():
            total, size = np.zeros((2, len(cells), len(units)))
            total[rows[0]] = 0.0 if name in ("kl", "shift") else self.baseline
            total[rows[1:]] = {"kl": self.kl, "shift": self.shift}.get(name, self.edited)
            size[rows] = self.baseline if name == "percent" else self.tokens
            out[name] = Observations(measure=measure, cells=cells, units=units, total=total, size=size)
        return out


@torch.no_grad()
def document_losses(
    model: Any, shards: TokenShards, variants: Sequence[Variant], *, kl: KL = "none",
    direction: Float[Tensor, " D"] | None = None, max_documents: int | None = None, batch_size: int = 32,
    progress: Progress = iter, budget: int | None = None, keep: bool = True,
) -> Losses:  # fmt: skip
    """Loss of every document, unedited and under each variant.

    Documents are cut at the context. `kl` costs one more product with the head per variant. With `direction` d [D] also
    the shift of d·x, x the last layer's readout before the final norm. `budget` is the number of tokens that run at
    once; larger batches are split. A command that is interrupted gets the documents that are measured, with `keep`.
    Raises `InputError` as `passes` does, for data of another vocabulary and for values that are not finite.
    """
    if shards.meta["d_vocab"] > model.config.d_vocab:
        raise InputError(f"the data have {shards.meta['d_vocab']} token ids, the model {model.config.d_vocab}")
    device = model.cfg.device
    others = [variant for variant in variants if not isinstance(variant, Mapping)]
    sweep: list[Edits] = [{}, *[variant if isinstance(variant, Mapping) else {} for variant in variants]]
    if edited_at(model) and others:
        raise InputError("an edit around the sweep does not act on another model: give it as one of the variants")
    n = min(shards.n_documents, max_documents or shards.n_documents)
    sums, tokens_of = np.zeros((3, 1 + len(variants), n)), np.zeros(n, dtype=np.int64)
    along = None if direction is None else direction.to(device).double()
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    options: dict[str, Any] = {} if along is None else {"names": [last], "keep": lambda _, x: x.double() @ along}
    size = budget or chunk_tokens(model, torch.device(device).type)
    batches = list[tuple[np.ndarray, Tensor, Tensor]]()
    for index, tokens, targets in document_batches(shards, model.config.n_ctx, batch_size, max_documents):
        k = max(1, min(len(tokens) // 2, tokens.numel() // size))  # of two rows, because an edit may exchange rows
        batches += zip(np.array_split(index, k), tokens.tensor_split(k), targets.tensor_split(k), strict=True)
    finish = ticks(progress, len(batches) * (1 + len(variants)))
    padded = sum([tokens.numel() for _, tokens, _ in batches])
    cases = "windows" if shards.window.any() else "documents"
    forecast = Forecast(progress, pass_shares(model, sweep), padded, f"{n:,} {cases}")
    n_measured = 0
    try:
        for index, tokens, targets in batches:
            tokens, targets = tokens.to(device), targets.to(device)
            head, unedited, outcomes = model.head, None, passes(model, tokens, sweep, **options)
            for member, (variant, (h, captures)) in enumerate(zip([{}, *variants], outcomes, strict=True)):
                outcome: Outcome = (h, captures.get(last), head)
                if not isinstance(variant, Mapping):
                    net = variant if isinstance(variant, StreamTransformer) else variant()
                    x = net.readout(net.segment(net.embed_tokens(tokens)))
                    outcome = (net.ln_final(x), None if along is None else x.double() @ along, net.head)
                    del net, x
                unedited = unedited or outcome
                sums[:, member, index] = _sums(outcome, unedited, targets, kl)
                finish(1)
                forecast(member, tokens.numel())
            tokens_of[index] = (targets != NO_TARGET).sum(1).cpu().numpy()
            n_measured += len(index)
    except KeyboardInterrupt as interrupt:
        finish(-1)
        if not keep:
            raise
        keep_after(interrupt, progress, n_measured, n, cases, least=2)
        sums[:, :, tokens_of == 0] = 0.0
    finish(0)
    baseline, edited = sums[0, 0], sums[0, 1:]
    for noun, values in (("loss", baseline), ("loss under an edit", edited), ("kl under an edit", sums[1])):
        if bad := int((~np.isfinite(values)).sum()):
            where = f"on {counted(bad, 'document')}"
            raise InputError(f"the {noun} is not finite {where}: the change is too large for these weights")
    return Losses(baseline, edited, sums[1, 1:], sums[2, 1:], tokens_of)


Outcome = tuple[Tensor, Tensor | None, Any]
"""Final streams [B, T, D], d·x [B, T] where it is wanted, and the head."""


def _sums(outcome: Outcome, unedited: Outcome, targets: Tensor, kl: KL) -> np.ndarray:
    """Loss, KL and shift of d·x [3, B] per document, the last two against `unedited`."""
    (stream, place, head), (first_stream, first_place, first_head) = outcome, unedited
    real = targets != NO_TARGET
    h, first_h = stream[real], first_stream[real]
    tables = torch.zeros(3, *real.shape, dtype=torch.float64, device=real.device)
    tables[0, real] = token_losses(h, head, targets[real]).double()
    if kl == "forward":
        tables[1, real] = divergences(first_h, h, first_head, head).double()
    elif kl == "reverse":
        tables[1, real] = divergences(h, first_h, head, first_head).double()
    if place is not None and first_place is not None:
        tables[2, real] = (place - first_place)[real].double()
    return tables.sum(-1).cpu().numpy()


def observe_loss(
    model: Any, sweep: Sequence[Edits], documents: OpenDocuments, *, progress: Progress = iter
) -> Observed:
    """Loss per token of every document and edit, in nats, with its tokens as `size`; a document is a case."""
    losses = document_losses(model, documents.shards, sweep, **documents.limits, progress=progress, keep=False)
    if n := int((losses.tokens < 1).sum()):
        raise InputError(f"{counted(n, 'document')} without a token to predict: leave them out")
    units = documents.units()
    cases = pd.DataFrame({"id": units["unit"], "pair": "", "cluster": units["cluster"]})
    cases[["category", "relation", "order"]] = ""
    values = np.concatenate([losses.baseline[None], losses.edited]) / losses.tokens
    return Observed("loss", cases, values[:, None], size=losses.tokens.astype(float))


BATCH_TOKENS = 8192
"""Padded size of a batch of prompts, as in `models.hooks.run`."""


@torch.no_grad()
def answer_log_probs(
    model: Any, tokens: Sequence[Sequence[int]], positions: Sequence[int], answers: Sequence[Sequence[int]],
    sweep: Sequence[Edits], *, progress: Progress = iter,
) -> Float[np.ndarray, "one_plus_edits cases answers"]:  # fmt: skip
    """ln p(answer | prompt up to its position), in nats, for every case, unedited and under each edit of `sweep`. An
    edit sees the batches of `models.hooks.run` and must treat their rows alike. A TransformerLens bridge works as well.
    Raises `InputError` for positions that do not exist, values that are not finite, and as `run` does."""
    query, targets = Query(tokens=list(tokens), logits=[[p] for p in positions]), torch.as_tensor([*map(list, answers)])
    members: list[Edits] = [{}, *sweep]
    log_p = np.zeros((len(members), *targets.shape))
    if not hasattr(model, "segment"):  # one run per edit
        for values, edits in zip(log_p, progress(members), strict=True):
            logits = run(model, query, edits, batch_tokens=BATCH_TOKENS).logits
            values[:] = chunk_log_probs(targets, torch.cat(logits or []), slice(None)).cpu().numpy()
    else:
        prompts = list(batches([len(t) for t in query.tokens], BATCH_TOKENS))
        tick = ticks(progress, len(members) * len(prompts))
        size = sum(len(rows) * max(len(query.tokens[i]) for i in rows) for rows in prompts)
        forecast = Forecast(progress, pass_shares(model, members), size, f"{counted(len(targets), 'case', ',')}")
        for rows in prompts:
            batch, streams = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device), []
            at = torch.as_tensor([[positions[i]] for i in rows])
            for member, (h, _) in enumerate(passes(model, batch, members, at=at)):
                streams.append(h[:, 0])
                tick(1)
                forecast(member, batch.numel())
            score = partial(chunk_log_probs, targets[rows].repeat(len(members), 1))
            values = map_logits(torch.cat(streams), model.head, score)
            log_p[:, rows] = values.unflatten(0, (len(members), -1)).cpu().numpy()
        tick(0)
    if not np.isfinite(log_p).all():
        raise InputError("an edit gave log-probabilities that are not finite")
    return log_p


def chunk_log_probs(answers: Tensor, logits: Tensor, rows: slice) -> Tensor:
    """ln softmax(logits) at the answers of these rows, for `models.readout.map_logits`."""
    return log_probs_at(logits, answers[rows].to(logits.device))


def observe_task(model: Any, task: "Task", sweep: Sequence[Edits], *, progress: Progress = iter) -> dict[str, Observed]:
    """`probability` and `log_odds` of every case of a task, unedited and under every edit."""
    reads = task.reads
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    cases = task.cases[list(NAMES)]
    return {measure: Observed(measure, cases, values[:, None]) for measure, values in task.scores(log_p).items()}


def task_blocks(
    by_task: Mapping[str, tuple[Mapping[str, Observed], pd.DataFrame]],
    cells: Sequence[tuple[Mapping[str, Any], int | None]],
) -> dict[str, Observations]:
    """Per measure the values of the cases of every task, from its observations and its units. `cells`: the labels of
    each besides the task, and the index of its edit, None for the unedited model."""
    blocks, units = {}, {task: task_units for task, (_, task_units) in by_task.items()}
    for name in next(iter(by_task.values()))[0] if by_task else ():
        results = {task: observed[name] for task, (observed, _) in by_task.items()}
        rows = [
            ({"task": task, **labels}, result.under(edit) * result.size)
            for task, result in results.items() for labels, edit in cells
        ]  # fmt: skip
        blocks[name] = task_block(MEASURES[name], units, rows, {task: x.size for task, x in results.items()})
    return blocks


def observe_prompts(
    model: Any, measures: Sequence[str], sweep: Sequence[Edits], aligned: "Aligned", tokenizer: Any, *,
    progress: Progress = iter,
) -> dict[str, Observed]:  # fmt: skip
    """SPS (Eq. 8, raw attention, mean over heads, and per layer) and coherence (log-odds) of every prompt and edit.
    Cases are prompts, clusters the independent texts (the two orders of a pair are one). Raises `InputError` if no
    prompt has what a measure needs."""
    if not measures:
        return {}
    from streamscope.probes.coherence import Coherence  # losses need no probe
    from streamscope.probes.roles import RoleQuery, left_out
    from streamscope.probes.sps import Sps

    probes = {"sps": (Sps(), "sps"), "coherence": (Coherence(), "log_odds")}
    readers = [(measure, *probes[measure], probes[measure][0].plan(aligned, tokenizer)) for measure in measures]
    queries: list[Query] = [query for *_, query in readers]
    if len({str(query.tokens) for query in queries}) == 1:  # the same prompts: one forward pass serves both
        fields = {
            name: value for name in ("hooks", "logits", "positions") for query in queries
            if (value := getattr(query, name))
        }  # fmt: skip
        queries = [Query(tokens=queries[0].tokens, **fields)]
    members: list[Edits] = [{}, *sweep]
    n_tokens = sum(len(ids) for query in queries for ids in query.tokens)
    forecast = Forecast(progress, pass_shares(model, members), n_tokens, counted(len(queries[0].tokens), "prompt", ","))
    sweeps = [run_sweep(model, query, members, report=forecast) for query in queries]
    values: dict[str, list[np.ndarray]] = {measure: [] for measure in measures}
    tables: dict[str, pd.DataFrame] = {}
    for _, *captures in zip(progress(range(len(members))), *sweeps, strict=True):
        shared = captures * (len(readers) // len(captures))
        for (measure, probe, column, query), capture in zip(readers, shared, strict=True):
            tables[measure] = probe.read(capture, query)
            values[measure].append(tables[measure][column].to_numpy())
    out = {}
    for measure, _, _, query in readers:
        table, n = tables[measure], len(query.tokens)
        cases, by_case = table[list(NAMES)].iloc[:: len(table) // n].reset_index(drop=True), np.stack(values[measure])
        if measure == "sps":  # of all heads, and of those of each layer
            assert isinstance(query, RoleQuery)
            layers = table["layer"].unique()
            by_layer = by_case.reshape(len(members), n, len(layers), -1).mean(-1).swapaxes(1, 2)
            readouts, note = ("all", *(f"L{layer}" for layer in layers)), left_out(query, "target and distractor")
            by_readout = np.concatenate([by_layer.mean(1, keepdims=True), by_layer], 1)
            out[measure] = Observed(measure, cases, by_readout, readouts, note)
        else:
            out[measure] = Observed(measure, cases, by_case[:, None])
    return out
