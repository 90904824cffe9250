"""Measure direct and total effects of heads, and how later layers compensate: the Hydra effect.

    python -m interventions.hydra
    python -m interventions.hydra runs/pls --tasks capitalization gender --out hydra.parquet
    python -m interventions.hydra runs/pls --groups entity L5.H2+L5.H3
    python -m interventions.hydra runs/pls --heads L3.* top2:entity
    python -m interventions.hydra runs/pls --control runs/c2

A head's direct effect is minus what it writes along answer minus foil, with the final norm's scale held fixed; its
total effect is the change of the log-odds when it is ablated. Both are below 0 for a head that helps. They differ by
what later layers do about it (compensation, per layer, attention and FFN, and per head), by the norm's new scale, and
with hyper-connections by other mixing:

    total = direct + compensation + mixing + norm          nats per case, exactly (`interventions.hydra.decomposition`)

`made_up` is −compensation / direct: 1 where later layers restore all that was taken, 0 where none. --control decomposes
the same cases in a second model, and gives the difference of every part and of the shares made up, paired by case;
heads of --heads are found in the run and ablated in both models, those of --groups are found in each.
"""

from typing import Any, ClassVar

from streamscope.cli.bounds import Names
from streamscope.instruments.about_model import need_parts
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Opened, Tasks
from streamscope.instruments.figures import HeadMap, Intervals, Scatter


@instrument("hydra", Tasks(tasks=("capitalization", "winograd")))
class Hydra(Instrument):
    """Remove heads, and split what the answer loses: what they wrote themselves, and what later layers make of it.

    total = direct + compensation + mixing + norm, in nats of answer − foil, exactly (McGrath et al. 2023).
    """

    heads: Names = ()
    """Heads to ablate one at a time: L5.H4, L4.*, top3:entity; default: all, unless there are --groups."""
    groups: Names = ()
    """Groups to ablate as one: entity, anchor, semantic, found, L5.H4+L5.H5, name=L4.*."""

    figures: ClassVar = (
        Scatter("total", x="direct", label="group", each=("task",),
                title="Total effect of each head against its direct effect"),
        HeadMap("compensation", "layers", rows="group", columns="place", each=("task",),
                title="What later layers make up when heads are ablated"),
        Intervals("made_up", label="group", each=("task",),
                  title="Share of the direct effect that later layers make up" ),
    )  # fmt: skip
    quick: ClassVar = {"heads": ("L4.H0-1", "L5.H3")}
    planted: ClassVar = "tests/interventions/test_hydra.py::test_planted_backup_makes_up_what_it_is_set_to"

    def check(self, model: Any) -> None:
        """Heads have contributions of their own."""
        need_parts(model, self.name)
        self._body().check_heads(model)

    def with_resolved_heads(self, data: Opened) -> "Hydra":
        """With the single heads that the model ranks by name."""
        return self._body().with_resolved_heads(self, data)


main = main_of(Hydra, __doc__)
"""`python -m interventions.hydra`."""
