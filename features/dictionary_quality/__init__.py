"""Measure what a model loses by the states that a dictionary rebuilds, against simpler ways.

    python -m features.dictionary_quality stories/lfa --dictionary found/blocks.3.hook_context_post-s0
    python -m features.dictionary_quality stories/lfa --dictionary found/blocks.3.hook_context_post-s0:17-20
    python -m features.dictionary_quality stories/lfa --dictionary found/* --max-documents 400 --out quality.parquet
    python -m features.dictionary_quality runs/gpt2-small --dictionary hf:ORG/NAME/blocks.8.hook_resid_pre
    python -m features.dictionary_quality stories/gpt2 --dictionary skip/*-s0 --out tracer/config.yaml

The rebuilt state x̂ takes the place of the state x at every position but BOS. increase is what the loss rises by, in
nats: the headline. kl is KL(model ‖ model with x̂), fvu = Σ|x − x̂|² / Σ|x − mean|², l0 the latents of a position,
dead the share of latents that no position has. recovered is (loss with the mean − loss with x̂) / (loss with the mean −
loss): it flatters, as its value for the frozen decoder shows. Intervals are over documents, ratios of sums; seeds are
dictionaries of their own.

They are compared, at the same hook, with the mean of the state per token id (what a table of tokens would give), with
the first k principal components (k that of the dictionary) and with the mean state. These are found on three of four
documents, and all are measured on the others. The title says where a stream holds only a table of tokens, and where the
token tells more of the state than the dictionary, and how many measured documents a dictionary was trained on. Of
several dictionaries the table `matches` says how many latents of one are in another, by the cosine of what they write,
compared with shuffled ones. With --out FOLDER/config.yaml transcoders, one for each layer, are written in
circuit-tracer's format.
"""

from types import ModuleType
from typing import ClassVar

from streamscope.cli.bounds import Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Intervals


@instrument("dictionary_quality", Documents())
class DictionaryQuality(Instrument):
    dictionary: tuple[str, ...] = ()
    """Folders of dictionaries of this model, or hf:ORG/NAME/FOLDER; default: none, only what needs none, of the streams
    after the middle layer. FOLDER:17 or FOLDER:3,17-19 also shows where these latents are largest."""
    seed: Seed = 0
    """Seed of the documents to measure on."""

    figures: ClassVar = (
        Intervals("increase", label="dictionary", each=("place",), title="Loss increase with the rebuilt state"),
        Intervals("fvu", label="dictionary", each=("place",), title="Variance that is not explained"),
    )  # fmt: skip
    planted: ClassVar = "tests/features/test_dictionary_quality.py::test_equals_plain_passes"
    exports: ClassVar = (".yaml",)

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.dictionary_quality import measure

        return measure


main = main_of(DictionaryQuality, __doc__)
