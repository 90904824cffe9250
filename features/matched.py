"""Features and effects of the same tokens, joined by document and position."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from features.store import read_about_of, read_features
from models.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

KEY = ["document", "position"]
IDS = ["token_id", "target_id"]
MEASURES = ("delta_loss", "delta_log_p")


@dataclass(frozen=True)
class Matched:
    """The n tokens that both tables hold."""

    x: "np.ndarray"
    """Features [n, d], without the columns that are zero by construction."""
    table: "pd.DataFrame"
    """document, position, loss, log_p and the effects `delta_loss_NAME`, `delta_log_p_NAME`, in the rows of x."""
    edits: tuple[str, ...]
    features_only: int
    """Rows of the features without an effect."""
    effects_only: int
    """Rows of the effects without features."""
    about: dict[str, Any]
    """`about` of both files."""


def match_effects(features: Path, effects: Path) -> Matched:
    """Read both files and join their rows.

    Raises `InputError` for files of another kind, different models, tokens that differ (other data, other cuts), rows
    that occur twice, missing values, and no row in common.
    """
    import numpy as np
    import pandas as pd

    if not effects.exists():
        raise InputError(f"{effects} does not exist; python -m interventions.token_effects --out {effects} writes one")
    about = read_about_of(effects, "token effects")
    found = read_features(features)
    one, other = (a["model"]["checkpoint"] for a in (found.about, about))
    if one != other:
        raise InputError(f"{features} and {effects} are of different models ({one[:8]}, {other[:8]}); use one run")
    table = pd.read_parquet(effects)
    values = [c for c in table.columns if c.startswith(MEASURES)] + ["loss", "log_p"]
    if bad := int((~np.isfinite(table[values].to_numpy())).any(1).sum()):
        raise InputError(f"{effects}: {bad} rows with missing values; compute it again")
    for path, rows in ((features, found.table), (effects, table)):
        if twice := int(rows.duplicated(KEY).sum()):
            raise InputError(f"{path}: {twice} positions occur twice; compute it again")
    index = found.table[[*KEY, *IDS]].assign(row=np.arange(len(found.table)))
    both = index.merge(table, on=KEY, suffixes=("", "_effects"))
    if not len(both):
        raise InputError(f"{features} and {effects} have no token in common; compute both from the same data")
    same = np.all([both[name] == both[f"{name}_effects"] for name in IDS], axis=0)
    if not same.all():
        raise InputError(
            f"{int((~same).sum())} of {len(both)} tokens or targets differ: {features} and {effects} are of different "
            "data, or the features of another logits_row than query"
        )
    keep = [i for i, column in enumerate(found.columns) if not column.constant]
    return Matched(
        x=found.X[both["row"].to_numpy()][:, keep],
        table=both[[*KEY, *values]],
        edits=tuple(about["edits"]),
        features_only=len(found.table) - len(both),
        effects_only=len(table) - len(both),
        about={"features": found.about, "effects": about},
    )
