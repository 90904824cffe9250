"""Measure whether the model continues with what the text means or with what grammar also allows.

    python -m probes.coherence runs/lfa
    python -m probes.coherence runs/lfa --suite stories --n 500 --out coherence.parquet

log-odds = log p(coherent | text) − log p(incoherent | text) in nats, for the first token in which the continuations
differ ("He used it to open the door. He opened the door with the" key / box). This behavioural measure complements
attention: gating heads of the last layer cannot change attention weights, but it can change the log-odds. Prompts whose
continuations begin with the same token are left out and counted. The rest of a longer continuation does not count.

`elsewhere` asks the same question after another prompt's nouns (`probes.coherence.measure`), because a verb alone can
separate a tool from a container. `due` is the nouns' contribution to the choice, `lift` their contribution to both
words.

Intervals over the generated stories hold for new words: a thousand pairs use a hundred nouns, and prompts that share a
noun do not count as independent (`instruments.stats.estimators`). The title says which holds for a suite.
"""

from typing import Any, ClassVar

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import instrument
from streamscope.instruments.data import Prompts
from streamscope.instruments.figures import Intervals
from streamscope.probes.probe import Probe


@instrument("coherence", Prompts())
class Coherence(Probe):
    elsewhere: bool = True
    """Also ask after other prompts' nouns, as a control."""

    figures: ClassVar = (
        Intervals("log_odds", label="category", reference="due", title="Log-odds of the coherent continuation"),
        Intervals("share", label="category", title="Share of prompts with the coherent continuation preferred"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_coherence.py::test_planted_logits"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.coherence import measure

        return measure


main = main_of(Coherence, __doc__)
