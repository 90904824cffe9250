"""Units of the columns of every table that `papers.dst` writes."""

from streamscope.instruments.table import short_units
from streamscope.interventions.amplify.measure import AREAS, CURVE, HEADS
from streamscope.interventions.streams.measure import COLUMNS as STREAMS
from streamscope.papers.comparison.losses import UNITS as LOSSES

OF_THE_ROW = "the unit of the row"
_INTERVAL = {"ci_low": OF_THE_ROW, "ci_high": OF_THE_ROW}

UNITS: dict[str, dict[str, str]] = {
    "runs": {"value": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "n": "documents"},
    "presets": {"mean": OF_THE_ROW, "sd": OF_THE_ROW, **_INTERVAL, "n": "training seeds"},
    "claims": {"difference": "the unit of the quantity, on the side that the paper says", **_INTERVAL},
    "factors": {
        "difference": "the unit of the quantity, on the side that the paper says",
        **_INTERVAL,
        "tokens": "training tokens seen",
        "seeds": "training seeds",
    },
    "streams": short_units(STREAMS, "delta"),
    "amplification": short_units(CURVE, "delta"),
    "heads": short_units(HEADS),
    "areas": short_units(AREAS, "area"),
    "initialization": {"std": "of layer 0's attention output", "ratio": "std of the dense model over this one's"},
    "losses": LOSSES,
    "loss": LOSSES,
    "loss_frozen": LOSSES,
}
