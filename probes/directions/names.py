"""How a direction is named: best, norm or a layer, found in the model, FILE[:LAYER|best|norm], or FOLDER:LATENT of a
dictionary; nothing heavy."""

from pathlib import Path

from streamscope.cli.errors import InputError
from streamscope.cli.user_code import latents_in

CHOICES = ("best", "norm")
MAKE_ONE = "make one with python -m probes.directions RUN --out FILE.parquet"
NO_FILE = f"is not a file of directions; {MAKE_ONE}"


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
