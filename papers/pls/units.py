"""Units of the columns of every table that `papers.pls` writes."""

from streamscope.interventions.head_curves import UNITS as CURVES
from streamscope.interventions.hydra_tables import UNITS as HYDRA
from streamscope.interventions.model_ratios import UNITS as RATIOS
from streamscope.interventions.task_effects import UNITS as EFFECTS
from streamscope.interventions.task_matrix import UNITS as MATRIX
from streamscope.papers.comparison.losses import UNITS as LOSSES
from streamscope.papers.pls.competence import UNITS as BASELINES
from streamscope.papers.pls.depth import UNITS as DEPTH
from streamscope.probes.head_groups.measure import COLUMNS as ROLES
from streamscope.probes.result import short_units

OF_THE_ROW = "the unit of the row"
_INTERVAL = {"ci_low": OF_THE_ROW, "ci_high": OF_THE_ROW}

UNITS: dict[str, dict[str, str]] = {
    "runs": {"value": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "n": "cases, or tokens of depth"},
    "presets": {"mean": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "paper": OF_THE_ROW, "n": "training seeds"},
    "comparisons": {"value": OF_THE_ROW, **_INTERVAL, "paper": OF_THE_ROW, "n": "pairs of training seeds"},
    "claims": {"difference": "by kind: a factor, or the unit of the quantity", "paper": "as difference"},
    "baselines": BASELINES,
    "competence": BASELINES,
    "roles": short_units(ROLES, "held_out"),
    "effects": EFFECTS,
    "cases": EFFECTS,
    "curves": CURVES,
    "leverage": CURVES,
    "hydra": HYDRA,
    "ratios": RATIOS,
    "diagonality": MATRIX,
    "depth": DEPTH,
    "losses": LOSSES,
    "loss": LOSSES,
}
