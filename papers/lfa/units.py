"""Units of the columns of every table that `papers.lfa` writes."""

from streamscope.papers.lfa.competence import UNITS as COMPETENCE

OF_THE_ROW = "the unit of the row"
_INTERVAL = {"ci_low": OF_THE_ROW, "ci_high": OF_THE_ROW, "sd": OF_THE_ROW}

UNITS: dict[str, dict[str, str]] = {
    "runs": {"value": OF_THE_ROW, **_INTERVAL, "n": "cases: documents, pairs, prompts"},
    "architectures": {"mean": OF_THE_ROW, **_INTERVAL, "paper": OF_THE_ROW, "n": "training seeds"},
    "competence": COMPETENCE,
    "comparisons": {
        "mean": OF_THE_ROW,
        "control_mean": OF_THE_ROW,
        "difference": OF_THE_ROW,
        **_INTERVAL,
        "d": "pooled standard deviations over seeds",
        "seeds": "training seeds, or pairs of them",
    },
    "claims": {
        "paper": OF_THE_ROW,
        "difference": OF_THE_ROW,
        **_INTERVAL,
        "smallest": OF_THE_ROW,
        "seeds": "training seeds, or pairs of them",
    },
    "heads": {
        "pds": "attention",
        "first": "attention to the target where it stands first",
        "last": "attention to the target where it stands last",
        "difference": "attention, last − first",
        "ci_low": "attention, of the difference",
        "ci_high": "attention, of the difference",
        "top1_candidates": "share of cases",
        "top1_keys": "share of cases",
        "attention": "attention to the antecedent",
        "sps": "attention, target − competitor",
    },
    "rules": {"top1": "share of cases", "rule_share": "share of cases", "difference": "share of cases, head − rule"},
    "suppression": {
        "gate": "factor on z",
        "delta": "units of the measure, edited − unedited",
        "d": "pooled standard deviations",
        "d_z": "standard deviations of the differences",
        "n": "prompts or documents",
        "clusters": "minimal pairs or documents",
    },
    "controls": {
        "selected": "units of the measure, edited − unedited",
        "bottom": "units of the measure, edited − unedited",
        "random": "units of the measure, edited − unedited",
        "draws": "random sets of heads",
    },
}
