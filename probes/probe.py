"""The interface of a probe: what it runs on a model, and what it reads from the captures.

    plan(prompts, tokenizer) -> Query      tokens, positions, hooks and logits it needs
    read(captures, query) -> DataFrame     one row per observation (prompt × head, …), tidy

`read` sees only captures, so a sweep can run any probe's query under any edits, in its own batches. No probe depends on
an architecture's name; all run on our models and on a TransformerLens bridge.
"""

from typing import Any

import pandas as pd

from streamscope.instruments.contract import Probe
from streamscope.instruments.data import check_tokenizer
from streamscope.models.hooks import Edits, run


def measure(
    model: Any, probe: Probe, prompts: Any, *, edits: Edits | None = None, tokenizer: Any = None
) -> pd.DataFrame:
    """Run a probe on a model, under `edits` if given, and return its table of observations. Raises `InputError` without
    a tokenizer."""
    query = probe.plan(prompts, tokenizer or check_tokenizer(model))
    return probe.read(run(model, query, edits), query)
