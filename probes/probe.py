"""The interface of a probe: what it runs on a model, and what it reads from the captures.

    plan(prompts, tokenizer) -> Query      tokens, positions, hooks and logits it needs
    read(captures, query) -> DataFrame     one row per observation (prompt × head, …), tidy

`read` sees only captures, so a sweep can run any probe's query under any edits, in its own batches. No probe depends on
an architecture's name; all run on our models and on a TransformerLens bridge.
"""

from typing import Any, Protocol, runtime_checkable

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Captures, Edits, Query, run
from streamscope.text.tokenizer import Tokenizer


@runtime_checkable
class Reader(Protocol):
    """The methods that `measure` needs."""

    def plan(self, prompts: Any, tokenizer: Tokenizer) -> Query:
        """The query to run. `prompts` is a suite, or other data that the probe accepts."""

    def read(self, captures: Captures, query: Query) -> pd.DataFrame:
        """One row per observation."""


def measure(
    model: Any, probe: Reader, prompts: Any, *, edits: Edits | None = None, tokenizer: Any = None
) -> pd.DataFrame:
    """Run a probe on a model, under `edits` if given, and return its table of observations.

    Raises `InputError` without a tokenizer, and when an observation is not a number.
    """
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError("this model has no tokenizer: load a run that has one, or pass tokenizer=")
    query = probe.plan(prompts, tokenizer)
    table = probe.read(run(model, query, edits), query)
    bad = [name for name in table.select_dtypes("number") if table[name].isna().any()]
    if bad:
        raise InputError(f"{int(table[bad].isna().any(axis=1).sum())} observations are NaN, in {', '.join(bad)}")
    return table
