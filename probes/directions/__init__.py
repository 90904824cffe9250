"""Find directions between two sets of prompts in every layer and stream, and test what they mean.

    python -m probes.directions                                            indoor against outdoor sentences
    python -m probes.directions runs/kromcanon --a happy --b sad --out directions.parquet
    python -m probes.directions runs/seed0 runs/seed1 runs/seed2 --a harmful.jsonl --b harmless.jsonl
    python -m probes.directions runs/chat --a harmful.jsonl --b harmless.jsonl --template "User: {text}\\nAssistant:"

A direction is the difference of the sets' mean residual streams after a block, divided by its norm (SPEC §1.6). Streams
are those of the model (token and context; s0, s1, … of hyper-connections), `joint` is their concatenation, `resid` the
head's input. auc, d and accuracy test a direction from half of the prompts on the other half; accuracy is the share of
prompts on their own set's side of the middle between the means of the first half. Controls are the same numbers with
shuffled labels. Several runs of one width are compared layer by layer with E|cos| = sqrt(2/(π d)), which holds for
isotropic vectors; activations are not isotropic.

With --out the directions are written as .safetensors for interventions.steer and interventions.abliterate:

    mean.<stream> [L, D]   unit difference of means          svd.<stream> [L, k, D]   singular vectors
    norm.<stream> [L]      norm of the difference            d.<stream> [L]           Cohen's d, held-out prompts
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from streamscope.cli.bounds import Seed, Whole
from streamscope.cli.errors import InputError
from streamscope.cli.user_code import latents_in
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Sets
from streamscope.instruments.figures import Curve, HeadMap

CHOICES = ("best", "norm")
MAKE_ONE = "make one with python -m probes.directions RUN --out FILE.parquet"
NO_FILE = f"is not a file of directions; {MAKE_ONE}"


@instrument("directions", Sets())
class Directions(Instrument):
    pool: Literal["mean", "last"] = "mean"
    """Mean over positions (without BOS and massive activations), or the last position."""
    draws: Whole = 20
    """Number of label shuffles for the controls; 0: none."""
    seed: Seed = 0
    """Seed of the halves and of the shuffles."""

    figures: ClassVar = (
        Curve("auc", x="layer", by="stream", title="How well the direction separates held-out prompts (AUC)"),
        Curve("norm", x="layer", by="stream", reference="shuffled_norm",
              title="Length of the direction, compared with shuffled labels"),
        Curve("accuracy", x="layer", by="stream", title="Accuracy of the direction on held-out prompts"),
        Curve("svd_cosine", x="layer", by="stream",
              title="Cosine between the difference of means and the first singular vector"),
        HeadMap("cosine", table="layers", rows="layer", columns="other",
                title="Cosine between the directions of two layers"),
        Curve("absolute", table="runs", x="layer", by="stream", each=("run_a", "run_b"),
              title="Cosine between the directions of two runs"),
    )  # fmt: skip
    quick: ClassVar = {"draws": 2}
    planted: ClassVar = "tests/probes/test_directions.py::test_a_planted_direction_is_found"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.directions import measure

        return measure


main = main_of(Directions, __doc__)


# ---- names of directions: best, norm or a layer, found in the model; FILE[:LAYER|best|norm]; FOLDER:LATENT ----------


def in_model(spec: str) -> bool:
    """Whether the direction is found in the model, by its layer, and not in a file."""
    return spec in CHOICES or spec.isdigit()


def file_of(spec: str) -> tuple[Path, str]:
    """The file or folder of a direction, and which of its directions; `InputError` where it is not there."""
    if (in_dictionary := latents_in(spec)) is not None:
        folder, latents = in_dictionary
        if len(latents) > 1:
            raise InputError(f"{spec}: a direction is one latent, as {folder}:{latents[0]}")
        return folder, str(latents[0])
    name, _, selector = spec.rpartition(":") if not Path(spec).is_file() else (spec, "", "best")
    path = Path(name or spec)
    if not path.is_file():
        raise InputError(f"{path} {NO_FILE}")
    return path, selector


def check_direction_name(spec: str) -> None:
    """Raise `InputError` for a direction of a file that is not there."""
    if not in_model(spec):
        file_of(spec)
