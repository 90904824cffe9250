"""The interface of a probe: what it runs on a model, and what it reads from the captures.

    plan(prompts, tokenizer) -> Query      tokens, positions, hooks and logits it needs
    read(captures, query) -> DataFrame     one row per observation (prompt × head, …), tidy

`read` sees only captures, so a sweep can run any probe's query under any edits, in its own batches. No probe depends on
an architecture's name; all run on our models and on a TransformerLens bridge.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.instruments.contract import Instrument
from streamscope.instruments.data import check_tokenizer

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.hooks import Captures, Edits, Query


@dataclass(frozen=True, kw_only=True)
class Probe(Instrument):
    """Base of an instrument that only reads captures, so that a sweep can run it under any edits, in its own batches.

    Its module measure also has `plan` and `read`.
    """

    def plan(self, prompts: Any, tokenizer: Any) -> "Query":
        """The tokens, hooks and logits that it needs of a suite, or of other data that it accepts."""
        return self._in_body("plan", self, prompts, tokenizer)

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per observation (prompt × head, …)."""
        return self._in_body("read", self, captures, query)


def measure(
    model: Any, probe: Probe, prompts: Any, *, edits: "Edits | None" = None, tokenizer: Any = None
) -> "pd.DataFrame":
    """Run a probe on a model, under `edits` if given, and return its table of observations. Raises `InputError` without
    a tokenizer."""
    from streamscope.models.hooks import run

    query = probe.plan(prompts, tokenizer or check_tokenizer(model))
    return probe.read(run(model, query, edits), query)
