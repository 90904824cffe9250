"""The trained runs that a comparison takes: opened and held against each other.

Architectures are compared only where everything else is the same: scale, steps, data, tokenizer, vocabulary and the
recipe of training. Positions and norm may differ (`VARIED`): the presets themselves differ in them, std-t having
learned positions and LayerNorm, the others RoPE and ChannelLayerNorm. Runs in which they were changed are arms of their
own, and a contrast is taken between the arms that differ least (`Arms`). Seeds of one arm must be of one configuration.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from streamscope.papers.comparison.runs import Run, confounded, opened_in_arms, with_variants

PRESETS = ("std-t", "d-cas", "lfa", "cfm")
CONTROL = "std-t"
VARIED = ("positions", "norm")
"""Parts of a model in which arms may differ."""
ARCHITECTURE = ("residual", "attention", "mlp")
"""Parts that make the four presets what they are (LFA Table 2); in all others two arms should be alike."""


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs in order of arm and seed. Raises `InputError` for what cannot be compared, and names it."""
    return opened_in_arms(folders, PRESETS, in_arms, VARIED)


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms (std-t, std-t+rope, …), in order of preset, arm and seed."""
    return sorted(with_variants(runs, VARIED), key=lambda r: (PRESETS.index(r.preset), r.variant, r.seed))


@dataclass(frozen=True)
class Arms:
    """Which arm stands for a preset in a contrast, and in what two arms differ besides their architecture.

    Without runs every preset is its own arm and nothing else differs: quantities that were planted.
    """

    runs: Sequence[Run] = ()
    _first: dict[str, Run] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", {run.arm: run for run in reversed(self.runs)})

    def pair(self, one: str, two: str) -> tuple[str, str]:
        """The arms of two presets that differ in the fewest parts; of equals those with the fewest changes."""
        first, second = (self._arms(preset) or [preset] for preset in (one, two))
        return min(product(first, second), key=lambda p: (len(self._parts(*p)), sum(arm.count("+") for arm in p)))

    def confounded(self, one: str, two: str) -> str:
        """In what two arms differ besides their architecture, in either order: "std-t has learned positions and
        LayerNorm, lfa RoPE and CLN"; "" where in nothing."""
        if one == two or not {one, two} <= set(self._first):
            return ""
        first, second = (self._first[arm] for arm in in_order((one, two)))
        return confounded(first, second, ARCHITECTURE)

    def _arms(self, preset: str) -> list[str]:
        return [run.arm for run in self._first.values() if run.preset == preset][::-1]

    def _parts(self, one: str, two: str) -> list[str]:
        if one not in self._first or two not in self._first:
            return []
        a, b = (self._first[arm].config["model"] for arm in (one, two))
        return [part for part in VARIED if a[part] != b[part]]


def in_order(arms: Iterable[str]) -> list[str]:
    """Names of arms, each once: the four presets in the paper's order, every variant after its preset."""
    return sorted(dict.fromkeys(arms), key=lambda arm: (PRESETS.index(arm.split("+")[0]), arm))
