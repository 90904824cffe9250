"""The interface of a probe: what it runs on a model, and what it reads from the captures.

    plan(prompts, tokenizer) -> Query      tokens, positions, hooks and logits it needs
    read(captures, query) -> DataFrame     one row per observation (prompt × head, …), tidy

`read` sees only captures, so a sweep can run any probe's query under any edits, in its own batches. No probe depends on
an architecture's name; all run on our models and on a TransformerLens bridge.
"""

from typing import Any

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Probe
from streamscope.models.hooks import Edits, run


def measure(
    model: Any, probe: Probe, prompts: Any, *, edits: Edits | None = None, tokenizer: Any = None
) -> pd.DataFrame:
    """Run a probe on a model, under `edits` if given, and return its table of observations. Raises `InputError` without
    a tokenizer, and when an observation is not a number."""
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError("this model has no tokenizer: load a run that has one, or pass tokenizer=")
    query = probe.plan(prompts, tokenizer)
    table = probe.read(run(model, query, edits), query)
    bad = [name for name in table.select_dtypes("number") if table[name].isna().any()]
    if bad:
        raise InputError(f"{int(table[bad].isna().any(axis=1).sum())} observations are NaN, in {', '.join(bad)}")
    return table
