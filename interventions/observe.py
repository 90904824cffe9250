"""What a model does on the same cases, unedited and under many edits: SPS, coherence, loss.

    observed = observe_prompts(model, ("sps", "coherence"), edits, aligned, tokenizer)
    observed["sps"].edited                       [edits, readouts, prompts]

The probes' own plans and reads, on the captures of `models.sweep.captures.run_sweep`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from streamscope.interventions.batch import answer_log_probs
from streamscope.models.errors import InputError, unknown
from streamscope.models.hooks import Edits, Query
from streamscope.models.sweep.captures import run_sweep
from streamscope.probes.attention import RESOLUTION, RoleQuery
from streamscope.probes.coherence import Coherence
from streamscope.probes.prompts.alignment import Aligned
from streamscope.probes.prompts.tasks import Task
from streamscope.probes.sps import Sps

if TYPE_CHECKING:
    from streamscope.models.text.shards import TokenShards

Measure = Literal["loss", "sps", "coherence"]
UNIT = {
    "loss": "nats/token", "sps": "attention, target − competitor", "coherence": "nats, log-odds",
    "probability": "probability of the answer", "log_odds": "nats, answer against foil",
}  # fmt: skip
SMALLEST = {"loss": 1e-6, "sps": RESOLUTION, "coherence": 1e-5, "probability": 1e-6, "log_odds": 1e-5}
"""Changes up to this are rounding of float32, in the units of the measure."""
NAMES = ("id", "pair", "cluster", "category", "relation", "order")


@dataclass(frozen=True)
class Observed:
    """Values of one measure on N cases, unedited and under every edit."""

    measure: str
    cases: pd.DataFrame
    """One row per case: id, pair, cluster (the unit of inference), category, relation, order."""
    readouts: tuple[str, ...]
    """What was read: "all", and for SPS the heads of each layer "L0", "L1", …"""
    baseline: np.ndarray
    """[readouts, N]"""
    edited: np.ndarray
    """[edits, readouts, N]"""

    def under(self, edit: int | None, readout: str = "all") -> np.ndarray:
        """Values [N] under an edit, by index; None is the baseline."""
        at = self.readouts.index(readout)
        return self.baseline[at] if edit is None else self.edited[edit, at]


def observe_prompts(
    model: Any,
    measures: Sequence[str],
    sweep: Sequence[Edits],
    aligned: Aligned,
    tokenizer: Any,
    *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[str, Observed]:
    """SPS (Eq. 8, raw attention, mean over heads, and per layer) and coherence (log-odds) of every prompt and edit.

    Cases are prompts, clusters the independent texts (the two orders of a pair are one). Raises `InputError` for
    another measure, and when no prompt has what a measure needs.
    """
    readers: list[tuple[str, Any, RoleQuery]] = []
    for measure in measures:
        if measure not in ("sps", "coherence"):
            raise unknown("measure of prompts", measure, ["sps", "coherence"])
        probe: Any = Sps() if measure == "sps" else Coherence()
        readers.append((measure, probe, probe.plan(aligned, tokenizer)))
    if len({str(query.tokens) for _, _, query in readers}) == 1:  # the same prompts: one forward pass serves both
        hooks, logits, positions = (_given(readers, name) for name in ("hooks", "logits", "positions"))
        queries = [Query(tokens=readers[0][2].tokens, hooks=hooks or (), logits=logits, positions=positions)]
    else:
        queries = [query for _, _, query in readers]
    found: dict[str, list[np.ndarray]] = {measure: [] for measure in measures}
    cases: dict[str, pd.DataFrame] = {}
    readouts: dict[str, tuple[str, ...]] = {}
    sweeps = [run_sweep(model, query, [{}, *sweep]) for query in queries]
    for _, *captures in zip(progress(range(1 + len(sweep))), *sweeps, strict=True) if readers else ():
        for (measure, probe, query), seen in zip(readers, captures * (len(readers) // len(captures)), strict=True):
            table = probe.read(seen, query)
            values, names = _by_readout(table) if measure == "sps" else (table["log_odds"].to_numpy()[None], ("all",))
            found[measure].append(values)
            if measure not in cases:
                step = len(table) // len(query.tokens)
                cases[measure] = table[list(NAMES)].iloc[::step].reset_index(drop=True)
                readouts[measure] = names
    return {
        m: Observed(m, cases[m], readouts[m], v[0], np.stack(v[1:]) if sweep else np.zeros((0, *v[0].shape)))
        for m, v in found.items()
    }


def _given(readers: Sequence[tuple[str, Any, RoleQuery]], name: str) -> Any:
    """The field `name` of the one query that has it, or None."""
    return next((value for _, _, query in readers if (value := getattr(query, name))), None)


def _by_readout(table: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
    """SPS [1 + layers, N], averaged over all heads and over those of each layer, of `Sps.read`'s prompt × head rows."""
    layers, heads = table["layer"].nunique(), table["index"].nunique()
    sps = table["sps"].to_numpy().reshape(-1, layers, heads).mean(-1)
    names = tuple(f"L{layer}" for layer in table["layer"].unique())
    return np.concatenate([sps.mean(1)[None], sps.T]), ("all", *names)


def observe_loss(
    model: Any,
    sweep: Sequence[Edits],
    shards: "TokenShards",
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Observed:
    """Loss per token of every document and edit, in nats; a document is a case and a cluster, long or short."""
    from streamscope.interventions.sweep import document_losses

    losses = document_losses(
        model, shards, sweep, max_documents=max_documents, batch_size=batch_size, progress=progress
    )
    if (losses.tokens < 1).any():
        raise InputError(f"{int((losses.tokens < 1).sum())} documents have no token to predict; leave them out")
    ids = [str(i) for i in range(len(losses.tokens))]
    cases = pd.DataFrame({"id": ids, "pair": "", "cluster": ids, "category": "", "relation": "", "order": ""})
    edited = losses.edited / losses.tokens
    return Observed("loss", cases, ("all",), (losses.baseline / losses.tokens)[None], edited[:, None])


def observe_task(
    model: Any, task: Task, sweep: Sequence[Edits], *, progress: Callable[[Iterable], Iterable] = iter
) -> dict[str, Observed]:
    """`probability` and `log_odds` of every case of a task, unedited and under every edit."""
    reads = task.reads
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    cases = task.cases[list(NAMES)]
    return {m: Observed(m, cases, ("all",), v[0][None], v[1:, None]) for m, v in task.scores(log_p).items()}
