"""Measure whether the model continues with what the text means or with what grammar also allows.

    python -m probes.coherence runs/lfa
    python -m probes.coherence runs/lfa --suite stories --n 500 --out coherence.parquet

log-odds = log p(coherent | text) − log p(incoherent | text) in nats, of the first token in which the continuations
differ ("He used it to open the door. He opened the door with the" key / box). The behavioural measure beside
attention: gating the heads of the last layer cannot change any attention weight, but it can change this.

`elsewhere` is the same question after another prompt's nouns (`probes.coherence.elsewhere`): a verb alone can tell a
tool from a container, and what it tells is not due to the nouns of the text. `due` is what they add to the choice,
`lift` what they add to both of its words alike.

Intervals over the generated stories hold for new words: a thousand pairs are made of a hundred nouns, and prompts that
share either noun are not counted as independent (`instruments.stats.estimators`). The title says which holds for a
suite.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import Intervals

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.instruments.prompts.alignment import Aligned
    from streamscope.instruments.prompts.suite import Suite
    from streamscope.models.hooks import Captures, Query


@instrument("coherence", Prompts())
class Coherence(Instrument):
    """Log-odds of the coherent continuation over the prompts that have one, and what of it is due to their nouns.

    Only the first differing token is compared: prompts whose continuations begin with the same token are filtered and
    counted, so it is the first. The rest of a longer continuation does not count.
    """

    elsewhere: bool = True
    """Ask the same after other prompts' nouns as well."""

    figures: ClassVar = (
        Intervals("log_odds", label="relation", beside="due", title="Log-odds of the coherent continuation"),
        Intervals("share", label="relation", title="Share of prompts with the coherent continuation preferred"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_coherence.py::test_planted_logits"

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Logits at the last token of every prompt with continuations; `InputError` if none has any."""
        return self._body().plan(prompts, tokenizer)

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per prompt: ln p of either continuation's first token, and their difference `log_odds`, in nats."""
        return self._body().read(captures, query)


main = main_of(Coherence, __doc__)
