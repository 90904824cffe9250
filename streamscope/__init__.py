"""Streamscope: small transformers built to be looked into, and the instruments that measure and change what they do.

    from streamscope.models import load
    from streamscope.interventions import Ablate
    Ablate(heads="L4.*").measure(load("stories/lfa"))

The rooms `models`, `probes`, `interventions`, `features`, `papers` and `benchmarks` lie at the top of the repository.
In a clone they are found there, installed or not, and `python -m interventions.ablate` runs the same modules as
`python -m streamscope.interventions.ablate` (`streamscope.aliases`).
"""

from pathlib import Path

_CLONE = Path(__file__).resolve().parents[1]
if (_CLONE / "pyproject.toml").is_file() and (_CLONE / "models" / "__init__.py").is_file():
    __path__.append(str(_CLONE))
