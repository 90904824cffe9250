"""Units of the columns of every table that `papers.pls` writes."""

from streamscope.instruments.table import short_units
from streamscope.interventions.ablation_effects.diagonality import COLUMNS as MATRIX
from streamscope.interventions.ablation_effects.measure import columns_of
from streamscope.interventions.ablation_effects.ratios import COLUMNS as RATIOS
from streamscope.interventions.observe import UNIT
from streamscope.interventions.steer_heads.measure import LEVERAGE, MIXED
from streamscope.interventions.steer_heads.measure import columns_of as levels_of
from streamscope.papers.comparison.losses import UNITS as LOSSES
from streamscope.papers.pls.competence import UNITS as BASELINES
from streamscope.papers.pls.depth import UNITS as DEPTH
from streamscope.probes.head_groups.measure import COLUMNS as ROLES

OF_THE_ROW = "the unit of the row"
_INTERVAL = {"ci_low": OF_THE_ROW, "ci_high": OF_THE_ROW}

EFFECTS = {
    name: unit.replace(UNIT["probability"], "unit of the measure")
    for name, unit in short_units(columns_of("probability"), "delta").items()
}

UNITS: dict[str, dict[str, str]] = {
    "runs": {"value": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "n": "cases, or tokens of depth"},
    "presets": {"mean": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "paper": OF_THE_ROW, "n": "training seeds"},
    "comparisons": {"value": OF_THE_ROW, **_INTERVAL, "paper": OF_THE_ROW, "n": "pairs of training seeds"},
    "claims": {"difference": "by kind: a factor, or the unit of the quantity", "paper": "as difference"},
    "baselines": BASELINES,
    "competence": BASELINES,
    "roles": short_units(ROLES, "held_out"),
    "effects": EFFECTS,
    "cases": {"delta": "unit of the measure"},
    "curves": {name: MIXED if unit == UNIT["loss"] else unit for name, unit in short_units(levels_of("loss")).items()},
    "leverage": short_units(LEVERAGE),
    "hydra": {
        **dict.fromkeys(("mean", "sd", "ci_low", "ci_high", "unexplained"), "nats of answer − foil"),
        "n": "cases",
        "clusters": "independent cases, or the fewest words of a kind where cases share words",
    },
    "ratios": short_units(RATIOS),
    "diagonality": short_units(MATRIX),
    "depth": DEPTH,
    "losses": LOSSES,
    "loss": LOSSES,
}
