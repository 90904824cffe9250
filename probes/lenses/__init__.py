"""Ask what each stream says about the next token, by lenses: linear maps to the last layer's state.

    python -m probes.lenses stories/lfa                     every stream after every layer, five lenses
    python -m probes.lenses stories/lfa --kinds ridge jacobian --out lenses.parquet
    python -m probes.logit_lens stories/lfa --lens lenses.safetensors:ridge
    python -m probes.lenses runs/smollm2 --hooks blocks.20.hook_resid_post --kinds jacobian --out lens.pt

x̂ = x A + b, p = softmax(head(norm(x̂))). kl is KL(model ‖ lens) per token: what the lens does not know of the model's
own prediction. agreement is the share of positions where both have the same most probable token. Lenses are fitted on
three of four documents and measured on the others.

    logit      x̂ = x, with the norm of the layer if it has one (nostalgebraist 2020)
    ridge      least squares of the last layer's state
    tuned      least KL, from ridge on (Belrose et al. 2023)
    jacobian   A = mean over texts and positions t of Σ_t' ∂x_last,t' / ∂x_t, t' ≥ t (Gurnee et al. 2026). It says what
               a direction makes the model say later, and need not predict well. Of a layer with several streams, resid
               is the sum of what the lenses of its streams read
    untrained  tuned, from an untrained model's states of the same text: what the wiring holds without training
    constant   the mean of the model's predictions, which no state is needed for: the same everywhere

A stream that no layer changes has one row for each lens but jacobian. With --out the maps are in a .safetensors file,
KIND.HOOK.A [D, D] and .b, or in a .pt file in the format in which Jacobian lenses are published, of a model with one
stream.
"""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Only, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Curve

Kind = Literal["logit", "ridge", "tuned", "jacobian", "untrained"]


@instrument("lenses", Documents(max_documents=400))
class Lenses(Instrument):
    hooks: Names = ()
    """Hooks of streams to read, or patterns with *; default: every stream after every layer, and their sum."""
    kinds: Annotated[tuple[Kind, ...], MinLen(1)] = ("logit", "ridge", "tuned", "jacobian", "untrained")
    """Lenses to fit."""
    steps: Annotated[Count, Only("kinds", ("tuned", "untrained"))] = 60
    """Steps of training tuned and untrained, on 1,024 positions each."""
    texts: Annotated[Count, Only("kinds", ("jacobian",))] = 8
    """Number of texts whose derivatives are averaged for jacobian."""
    seed: Seed = 0
    """Seed of the documents to measure on, of training and of the untrained model."""

    figures: ClassVar = (
        Curve("kl", x="layer", by="lens", each=("stream",),
              title="What a lens does not know of the model's prediction"),
        Curve("agreement", x="layer", by="lens", each=("stream",),
              title="Positions where lens and model have the same most probable token"),
    )  # fmt: skip
    quick: ClassVar = {"kinds": ("logit", "ridge")}
    planted: ClassVar = "tests/probes/test_lenses.py::test_a_known_map_is_found"
    exports: ClassVar = (".pt",)

    @staticmethod
    def body() -> Any:
        from streamscope.probes.lenses import measure

        return measure


main = main_of(Lenses, __doc__)
