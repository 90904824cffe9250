"""SPS and coherence of every prompt, unedited and under many edits.

The probes' own plans and reads, on the captures of `models.sweep.captures.run_sweep`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import unknown
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.interventions.observe import NAMES, Observed
from streamscope.models.hooks import Edits, Query
from streamscope.models.sweep.captures import run_sweep
from streamscope.probes.attention import RoleQuery
from streamscope.probes.coherence import Coherence
from streamscope.probes.sps import Sps


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
