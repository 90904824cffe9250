"""Monitor stream mixing: the mixing matrices, gates and routing of each module of a run (KROM).

    python -m probes.mixing_monitor
    python -m probes.mixing_monitor runs/kromhc
    python -m probes.mixing_monitor runs/krom-8 runs/krom-2 runs/krom-0 --out mixing.parquet

Swap probabilities and ‖H_res − I‖ come from the weights of the run; everything that needs tokens comes from
metrics.jsonl, where training logs it at each evaluation. Figures show the swap probability (static and best
achievable), the log over the steps, and for several runs with different initial biases the bias sweep.
`models.mixing.METRICS` has the formulas. Weight decay pulls every logit towards full mixing, so mixing counts only
beyond the effect of decay alone (`mixing_monitor.measure`; SPEC §1.5), in modules whose mixing can change an output.
"""

from typing import Any, ClassVar

from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Curve, Intervals


@instrument("mixing_monitor")
class MixingMonitor(Instrument):
    runs: ClassVar = ("stories/kromcanon", "stories/kromcanon-b2")
    figures: ClassVar = (
        Intervals("swap_best", label="name", reference="swap_static",
                  title="Swap probability of each module, compared with its static one"),
        Curve("value", table="log", x="step", by="name", each=("metric",), title="Mixing over training"),
        Curve("swap_best", table="runs", x="bias", over_runs=True, title="Mixing by initial bias"),
        Curve("distance_static", table="runs", x="bias", over_runs=True,
              title="Distance of the mixing matrices from the identity, by initial bias"),
        Curve("loss", table="runs", x="bias", over_runs=True, title="Loss by initial bias"),
    )  # fmt: skip
    reads_text: ClassVar = False
    planted: ClassVar = "tests/probes/test_mixing_monitor.py::test_streams_mix_beyond_what_decay_alone_gives"

    @staticmethod
    def body() -> Any:
        from streamscope.probes.mixing_monitor import measure

        return measure


main = main_of(MixingMonitor, __doc__)
