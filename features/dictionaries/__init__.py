"""Train sparse dictionaries of streams: many directions, of which few add up to a state.

    python -m features.dictionaries stories/lfa --hooks blocks.3.hook_context_post --data stories:0:6000 --to found
    python -m features.dictionaries stories/lfa --data stories --max-tokens 1000000 --seeds 0 1 2 --to found
    python -m features.dictionaries stories/gpt2 --hooks blocks.3.hook_mlp_in --target blocks.3.hook_mlp_out --to skip
    python -m features.dictionary_quality stories/lfa --dictionary found/blocks.3.hook_context_post-s0

BatchTopK (Bussmann et al. 2024): of the latents ReLU((x − mean) W_enc + b_enc) of a batch of n positions the k n
largest are kept; x̂ = z W_dec + b_dec with unit rows of W_dec; the loss is |x − x̂|². Of a single position the latents
above a threshold are kept, which k of them exceed on average. --matryoshka adds the loss of the first eighth, quarter
and half of the latents (Bussmann et al. 2025). With --target the dictionary rebuilds the activation of another hook: a
transcoder, with a skip connection (Paulo et al. 2025). No loss revives dead latents; the column `dead` counts them.

Each dictionary has a control with the same data and steps, whose decoder stays random (`-frozen`): on usual scores it
comes near to a trained one (arXiv 2602.14111). States of all hooks are harvested once, BOS left out, into the folder
--to; a killed command goes on there. The table is of the last tenth of the text, which is not trained on;
`dictionary_quality` measures losses. A folder is one of SAELens.
"""

from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar

from annotated_types import Ge, MinLen

from streamscope.cli.bounds import Count, Names, Seed
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import Intervals

STATES = ".states"  # folder of harvested states, in that of the dictionaries; it goes when all are trained


@instrument("dictionaries", Tokens())
class Dictionaries(Instrument):
    to: Path | None = None
    """Folder for the dictionaries, one folder each, HOOK-sSEED or HOOK-to-TARGET-sSEED; default: none is written."""
    hooks: Names = ()
    """Hooks of streams, or patterns with *; with --target any hook [B, T, D]; default: the live stream after the middle
    layer."""
    target: str = ""
    """A hook [B, T, D] to rebuild instead, of one hook that is read."""
    width: Annotated[int, Ge(8)] = 768
    """Number of latents."""
    k: Count = 16
    """Mean number of latents at a position."""
    seeds: Annotated[tuple[Seed, ...], MinLen(1)] = (0,)
    """Seeds of starts and of the order of positions; one dictionary each."""
    matryoshka: bool = False
    """Whether the first eighth, quarter and half of the latents are to rebuild the state as well."""
    controls: bool = True
    """Whether each dictionary has a control with a frozen random decoder."""
    batch: Annotated[int, Ge(16)] = 2048
    """Positions of a step."""
    lr: Annotated[float, Ge(0.0)] = 1e-3
    """Learning rate of Adam, which falls to 0 over the last fifth."""

    figures: ClassVar = (Intervals("fvu", label="dictionary", title="Variance that is not explained, end of training"),)
    quick: ClassVar = {"width": 32, "k": 4, "batch": 64}
    planted: ClassVar = "tests/features/test_dictionaries.py::test_planted_features_are_found"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k >= self.width:
            raise InputError(f"--k {self.k}: give fewer than the {self.width} latents")

    def check_sources(self) -> None:
        """Raise `InputError` for a folder that holds other things than dictionaries."""
        inside = list(self.to.iterdir()) if self.to is not None and self.to.is_dir() else []
        if not all((path / "sae_weights.safetensors").is_file() or path.name == STATES for path in inside):
            raise InputError(f"{self.to} holds other things than dictionaries: choose another folder")

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.dictionaries import measure

        return measure


main = main_of(Dictionaries, __doc__)
