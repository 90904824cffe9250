"""Measure direct and total effects of heads, and how later layers compensate: the Hydra effect.

    python -m interventions.hydra
    python -m interventions.hydra runs/pls --tasks capitalization gender --out hydra.parquet
    python -m interventions.hydra runs/pls --groups entity L5.H2+L5.H3
    python -m interventions.hydra runs/pls --heads L3.* top2:entity
    python -m interventions.hydra runs/pls --control runs/c2

The direct effect of ablating a head is the loss of its contribution to logit(answer) − logit(foil), with the scale of
the final norm held fixed. The total effect is the change of the log-odds. Both are negative for a head that helps. They
differ by the reaction of later layers (compensation, by layer, attention, FFN and head), by the new scale of the norm,
and, with hyper-connections, by changed mixing:

    total = direct + compensation + mixing + norm          nats per case, exactly (`interventions.hydra.measure`)

`made_up` is −compensation / direct: 1 if later layers restore everything, 0 if nothing. --control decomposes the same
cases in a second model and gives the differences of all parts and shares, paired by case. Heads of --heads are ranked
in the run and ablated in both models; those of --groups are ranked in each. Source: McGrath et al. 2023.
"""

from typing import Any, ClassVar

from streamscope.cli.bounds import Names
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tasks
from streamscope.instruments.figures import HeadMap, Intervals, Scatter


@instrument("hydra", Tasks(tasks=("capitalization", "winograd")))
class Hydra(Instrument):
    heads: Names = ()
    """Heads to ablate one at a time: L5.H4, L4.*, top3:entity; default: all, unless --groups are given."""
    groups: Names = ()
    """Groups to ablate as a whole: entity, anchor, semantic, found, L5.H4+L5.H5, name=L4.*."""

    figures: ClassVar = (
        Scatter("total", x="direct", label="group", each=("task",),
                title="Total effect of each head or group against its direct effect"),
        HeadMap("compensation", "layers", rows="group", columns="place", each=("task",),
                title="What later layers make up when heads are ablated"),
        Intervals("made_up", label="group", each=("task",),
                  title="Share of the direct effect that later layers make up"),
    )  # fmt: skip
    quick: ClassVar = {"heads": ("L4.H0-1", "L5.H3")}
    planted: ClassVar = "tests/interventions/test_hydra.py::test_planted_backup_makes_up_what_it_is_set_to"

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.hydra import measure

        return measure


main = main_of(Hydra, __doc__)
