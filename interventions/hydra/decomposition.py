"""Direct and total effects of ablating heads, and the compensation by later layers, case by case.

c(v; s) is from `probes.direct_logit_attribution.contributions`; s is the norm's unedited scale, s' the scale and v' the
updates under the ablation. The change of answer − foil (log-odds, nats) is exactly

    total = direct + Σ compensation + mixing + norm

    direct        −Σ_h c(v_h; s) over the ablated heads: the loss of their own contributions
    compensation  c(v'; s) − c(v; s) of each attention and FFN after them (in their own layers: of the other heads)
    mixing        the same for everything before them: 0 except for hyper-connections, whose coefficients depend on the
                  streams (also 0 if H_res is doubly stochastic and keeps the streams' sum, as in KromHC and mHC)
    norm          Σ c(v'; s') − c(v'; s): the new scale of the norm

`total` comes from the model's own log-probabilities, so `unexplained` = total − the sum is a check, 0 up to rounding.
Backup heads (Hydra effect, McGrath et al. 2023) show as compensation of the opposite sign to the direct effect.
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
    """The terms above for N cases, in nats. heads [L, H, N]: compensation of each head; attn, mlp [L, N]: of attention
    (with its bias, whose weight hyper-connections may change) and FFN; the others [N]."""

    direct: np.ndarray
    heads: np.ndarray
    attn: np.ndarray
    mlp: np.ndarray
    mixing: np.ndarray
    norm: np.ndarray
    total: np.ndarray

    @property
    def compensation(self) -> np.ndarray:
        """Compensation of all layers [N]."""
        return self.attn.sum(0) + self.mlp.sum(0)

    @property
    def unexplained(self) -> np.ndarray:
        """total − the sum of the parts [N]: 0 up to rounding."""
        return self.total - self.direct - self.compensation - self.mixing - self.norm


def decompose(
    model: StreamTransformer, task: Task, groups: Sequence[Group], *, progress: Callable[[Iterable], Iterable] = iter
) -> list[Decomposition]:
    """The effect of ablating each group on each case of a task scored by a token.

    Raises `InputError` for tasks of sentences, whose log-odds are not one logit difference, and for output projections
    that are not linear.
    """
    if task.rule != "token":
        raise InputError(
            f"task {task.name!r} scores whole sentences, but a direct effect belongs to one position: use another task"
        )
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
    """part (`PARTS`) -> nats of every case [N]; attn and mlp are summed over layers."""
    sums = {"attn": one.attn.sum(0), "mlp": one.mlp.sum(0)}
    return {part: sums[part] if part in sums else getattr(one, part) for part in PARTS}


def layer_values(group: Group, one: Decomposition) -> dict[tuple[int, str], np.ndarray]:
    """(layer, "attn", "mlp" or a head as L5H4) -> compensation per case [N], nats, from the group's first layer on."""
    first, found = min(head.layer for head in group.heads), dict[tuple[int, str], np.ndarray]()
    for layer in range(first, len(one.attn)):
        found |= {(layer, "attn"): one.attn[layer], (layer, "mlp"): one.mlp[layer]}
        found |= {(layer, f"L{layer}H{h}"): x for h, x in enumerate(one.heads[layer]) if layer > first}
    return found


def kept_share(direct: np.ndarray, total: np.ndarray) -> float:
    """Σ_i direct_i total_i / Σ_i direct_i² over cases: the share of the direct effect that remains in the total.

    This is the slope of total on direct through the origin (McGrath et al. 2023, Fig. 4: below 1): 1 without
    compensation, 0 with full compensation. Unlike `made_up` it needs no mean direct effect. NaN without any effect.
    """
    size = float((direct**2).sum())
    return float((direct * total).sum() / size) if size > SMALLEST["log_odds"] ** 2 else float("nan")
