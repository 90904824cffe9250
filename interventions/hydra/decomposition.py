"""Direct and total effects of ablating heads, and what later layers make up for, case by case.

With c(v; s) of `probes.direct_logit_attribution.contributions`, s the norm's scale as it is and s' under the ablation,
v' the updates under the ablation, the change of answer − foil (log-odds, nats) is exactly

    total = direct + Σ compensation + mixing + norm

    direct        −Σ_h c(v_h; s) over the ablated heads: their own words taken away
    compensation  c(v'; s) − c(v; s) of each attention and FFN after them (in their own layers: of the other heads)
    mixing        the same of all before them: 0 but for hyper-connections, whose coefficients depend on the streams
                  (0 there too where H_res is doubly stochastic: it keeps the streams' sum, KromHC and mHC)
    norm          Σ c(v'; s') − c(v'; s): what remains is divided by another scale

`total` comes from the model's own log-probabilities, so `unexplained` = total − the sum is a check and is 0 up to
rounding. Backup heads (Hydra effect, McGrath et al. 2023) show as compensation against the direct effect.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.tasks import Task
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import SMALLEST, answer_log_probs
from streamscope.interventions.selection import Group
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.direct_logit_attribution.contributions import check_heads, contributions, directions, observe

PARTS = ("direct", "compensation", "attn", "mlp", "mixing", "norm", "total")


@dataclass(frozen=True)
class Decomposition:
    """Every term of this module's docstring for N cases, in nats."""

    direct: np.ndarray
    heads: np.ndarray
    """[L, H, N]: compensation of every head"""
    attn: np.ndarray
    """[L, N]: compensation of attention, its bias included (whose weight may change with hyper-connections)"""
    mlp: np.ndarray
    mixing: np.ndarray
    norm: np.ndarray
    total: np.ndarray

    @property
    def compensation(self) -> np.ndarray:
        """[N]"""
        return self.attn.sum(0) + self.mlp.sum(0)

    @property
    def unexplained(self) -> np.ndarray:
        """[N]: 0 up to rounding."""
        return self.total - self.direct - self.compensation - self.mixing - self.norm


def decompose(
    model: StreamTransformer,
    task: Task,
    groups: Sequence[Group],
    *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> list[Decomposition]:
    """The effect of ablating each group on each case of a task scored by a token.

    Raises `InputError` for tasks of sentences, whose log-odds are no one logit difference, and for output projections
    that are not linear.
    """
    if task.rule != "token":
        raise InputError(f"direct effects are of one position; task {task.name!r} scores whole sentences: use another")
    check_heads(model)
    reads, sweep = task.reads, [scale_heads(g.heads, 0.0) for g in groups]
    log_p = answer_log_probs(model, reads.tokens, reads.positions, reads.ids, sweep, progress=progress)
    odds = log_p[..., 0] - log_p[..., 1]
    before = observe(model, reads.tokens, reads.positions)
    d = directions(model, reads.ids, before.scale)
    c = contributions(model, before, d)
    found = []
    for i, (group, edits) in enumerate(zip(progress(list(groups)), sweep, strict=True)):
        after = observe(model, reads.tokens, reads.positions, edits)
        new = contributions(model, after, d)
        rescaled = (after.final * directions(model, reads.ids, after.scale)).sum(-1).cpu().numpy()
        attn, mlp, heads = new.attn - c.attn, new.mlp - c.mlp, new.heads - c.heads
        direct = np.zeros(len(reads.tokens))
        for layer, head in group.heads:
            own = c.heads[layer, head]
            direct -= own
            attn[layer] += own
            heads[layer, head] = 0.0
        first = min(layer for layer, _ in group.heads)
        mixing = (new.embed - c.embed) + attn[: first + 1].sum(0) + mlp[:first].sum(0)
        attn[: first + 1], mlp[:first], heads[: first + 1] = 0.0, 0.0, 0.0
        found.append(Decomposition(direct, heads, attn, mlp, mixing, rescaled - new.read, total=odds[1 + i] - odds[0]))
    return found


def part_values(one: Decomposition) -> dict[str, np.ndarray]:
    """part (`PARTS`) -> nats of every case [N]; attn and mlp summed over layers."""
    sums = {"attn": one.attn.sum(0), "mlp": one.mlp.sum(0)}
    return {part: sums[part] if part in sums else getattr(one, part) for part in PARTS}


def layer_values(group: Group, one: Decomposition) -> dict[tuple[int, str], np.ndarray]:
    """(layer, attn, mlp or a head as L5H4) -> compensation of every case [N] in nats, from the group's first layer."""
    first, found = min(head.layer for head in group.heads), dict[tuple[int, str], np.ndarray]()
    for layer in range(first, len(one.attn)):
        found |= {(layer, "attn"): one.attn[layer], (layer, "mlp"): one.mlp[layer]}
        found |= {(layer, f"L{layer}H{h}"): x for h, x in enumerate(one.heads[layer]) if layer > first}
    return found


def kept(direct: np.ndarray, total: np.ndarray) -> float:
    """Σ_i direct_i total_i / Σ_i direct_i² over cases: the share of the direct effect that is left in the total.

    The slope of total on direct through the origin (McGrath et al. 2023, Fig. 4, whose slope is under 1): 1 where
    nothing is made up for, 0 where all is. Unlike `made_up` it needs no mean direct effect. NaN without any effect.
    """
    size = float((direct**2).sum())
    return float((direct * total).sum() / size) if size > SMALLEST["log_odds"] ** 2 else float("nan")
