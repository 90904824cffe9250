"""The tables of `python -m interventions.ablate`: one row per head or set of heads, and scale."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from interventions.controls import Sweep
    from interventions.observe import Observed
    from interventions.sweep import Losses
    from models.capture import Edits
    from models.head_spec import Head
    from models.text.shards import TokenShards
    from models.transformer import StreamTransformer
    from probes.align import Aligned

    MakeEdits = Callable[[Sequence[Head], float], Edits]

UNITS = {
    "scale": "factor on z",
    "loss": "nats/token",
    "baseline": "nats/token",
    "delta": "nats/token",
    "sd": "nats/token, between documents",
    "ci_low": "nats/token",
    "ci_high": "nats/token",
    "n": "documents",
    "tokens": "tokens",
    "p_rank": "rank of delta among the random sets'",
    "control": "nats/token",
    "control_sd": "nats/token, between random sets",
    "draws": "other random sets of as many heads",
    "above": "nats/token, delta − control",
    "above_low": "nats/token",
    "above_high": "nats/token",
    "interaction": "nats/token, delta − Σ of the heads' own",
    "interaction_low": "nats/token",
    "interaction_high": "nats/token",
}


def prompt_units(measure: str) -> dict[str, str]:
    """Units of the columns of `prompt_table`."""
    from interventions.observe import UNIT

    unit = UNIT[measure]
    names = ("baseline", "condition", "difference", "sd", "ci_low", "ci_high", "control", "above_low", "above_high",
             "interaction_low", "interaction_high")  # fmt: skip
    return {
        **dict.fromkeys(names, unit),
        "scale": "factor on z",
        "d": "pooled standard deviations",
        "d_z": "standard deviations of the differences",
        "n": "prompts",
        "clusters": "independent cases, or the fewest words of a kind where cases share words",
        "control_sd": f"{unit}, between random sets",
        "draws": "other random sets of as many heads",
        "above": f"{unit}, difference − control",
        "interaction": f"{unit}, difference − Σ of the heads' own",
    }


def ablate_heads(
    model: "StreamTransformer",
    shards: "TokenShards",
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    **how: Any,
) -> "pd.DataFrame":
    """One row per group of heads and scale: loss under the edit, its change, and what other heads cost.

    `ablation_table` of `ablation_losses`, which take `how` and say more. Raises `InputError` for a scale that is not
    finite.
    """
    return ablation_table(*ablation_losses(model, shards, groups, scales, **how))


def ablation_losses(
    model: "StreamTransformer",
    shards: "TokenShards",
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    draws: int = 39,
    seed: int = 0,
    make: "MakeEdits | None" = None,
    **limits: Any,
) -> "tuple[Sweep, Losses]":
    """The edits of a sweep, and the loss of every document under them (`sweep.document_losses` has the `limits`).

    `make` builds the edits, by default `scale_heads`. `draws` other random sets of as many heads are edited beside
    each group, and the heads of a group of several also one at a time.
    """
    from interventions.controls import plan
    from interventions.edits import scale_heads
    from interventions.interactions import parts
    from interventions.sweep import document_losses

    every, make = every_head(model), make or scale_heads
    sweep = plan(groups, scales, every, make, draws=draws, seed=seed, also=parts(groups))
    return sweep, document_losses(model, shards, sweep.edits, **limits)


def ablation_table(sweep: "Sweep", losses: "Losses") -> "pd.DataFrame":
    """One row per cell of the sweep: loss under the edit, its change, and what other heads cost.

    delta = (Σ_d edited loss_d − baseline loss_d) / Σ_d tokens_d, in nats per token; the interval is the ratio
    estimator's, documents as clusters (`probes.statistics.ratio_of_sums`), p is its t test's, `p_holm` corrected over
    the groups of one scale. `control` is the mean delta of other random sets of as many heads, `above` =
    delta − control with its interval and corrected p (`controls.control_columns`). Of groups of several heads also
    `interaction`, delta beyond the sum of the heads' own (`interactions`).
    """
    import pandas as pd

    from interventions.controls import control_columns
    from interventions.effects import holm
    from interventions.interactions import interaction_columns
    from interventions.observe import SMALLEST
    from probes.statistics import ratio_of_sums
    from probes.t_tests import clustered_t
    from probes.undefined import note

    tokens, change = losses.tokens.astype(float), losses.edited - losses.baseline
    baseline = losses.baseline.sum() / tokens.sum()
    rows, reasons = [], []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        effect = ratio_of_sums(change[at], tokens)
        p = float(clustered_t(change[at], tokens).p)
        why = {} if p == p else {"p": "the loss changes by the same amount per token in every document"}
        others = change[[i for _, i in controls]]
        paired = clustered_t(change[at] - others.mean(0), tokens) if controls else None
        control = control_columns(effect.mean, others.sum(-1) / tokens.sum(), paired, g, resolution=SMALLEST["loss"])
        reasons.append({**why, **control.pop("why")})
        rows.append(
            {
                **labels(heads, g),
                "loss": losses.edited[at].sum() / tokens.sum(),
                "baseline": baseline,
                "delta": effect.mean,
                "sd": effect.sd,
                "ci_low": effect.ci_low,
                "ci_high": effect.ci_high,
                "p": p,
                "n": effect.n,
                "tokens": int(tokens.sum()),
                **control,
            }
        )
    table = pd.DataFrame(rows)
    if _several(sweep):
        columns, more = interaction_columns(sweep, lambda i: change[i], tokens, resolution=SMALLEST["loss"])
        table = table.assign(**columns)
        reasons = [a | b for a, b in zip(reasons, more, strict=True)]
    table = holm(holm(table.assign(undefined=[note(why) for why in reasons]), ("scale",)), ("scale",), "p_above")
    return holm(table, ("scale",), "p_interaction") if _several(sweep) else table


def _several(sweep: "Sweep") -> bool:
    """Whether heads are removed together anywhere."""
    return any(len(heads) > 1 for heads, _ in sweep.cells)


def ablate_on_prompts(
    model: "StreamTransformer",
    aligned: "Aligned",
    tokenizer: Any,
    measures: Sequence[str],
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    **how: Any,
) -> "dict[str, pd.DataFrame]":
    """Per measure (sps, coherence), one row per group and scale: `prompt_table` of `observe_ablations` (`how`).

    Raises `InputError` for a scale that is not finite.
    """
    sweep, observed = observe_ablations(model, aligned, tokenizer, measures, groups, scales, **how)
    return {name: prompt_table(sweep, one, model.config.n_layers) for name, one in observed.items()}


def observe_ablations(
    model: "StreamTransformer",
    aligned: "Aligned",
    tokenizer: Any,
    measures: Sequence[str],
    groups: Sequence[Sequence["Head"]],
    scales: Sequence[float],
    *,
    draws: int = 39,
    seed: int = 0,
    progress: Any = iter,
    make: "MakeEdits | None" = None,
) -> "tuple[Sweep, dict[str, Observed]]":
    """The edits of a sweep as in `ablation_losses`, and every measure of the prompts under them."""
    from interventions.controls import plan
    from interventions.edits import scale_heads
    from interventions.interactions import parts
    from interventions.observe import observe_prompts

    every, make = every_head(model), make or scale_heads
    sweep = plan(groups, scales, every, make, draws=draws, seed=seed, also=parts(groups))
    return sweep, observe_prompts(model, measures, sweep.edits, aligned, tokenizer, progress=progress)


def prompt_table(sweep: "Sweep", observed: "Observed", n_layers: int) -> "pd.DataFrame":
    """One row per cell of the sweep: `comparisons.compare` of edited with unedited.

    Units are minimal pairs, and words where the suite has them (`clusters`); p_holm corrects over the groups of one
    scale; controls and interactions as in `ablation_table`. SPS under gating of the last layer is undefined by
    construction, for a group and for a random set.
    """
    from interventions.effects import REASON, Cell, by_construction, effect_rows, holm
    from interventions.interactions import interaction_columns
    from interventions.observe import SMALLEST
    from probes.statistics import read_clusters
    from probes.undefined import mark, note, reasons

    cells = [Cell(heads, g, i, labels(heads, g)) for (heads, g), i in zip(sweep.cells, sweep.index, strict=True)]
    table = effect_rows(observed, cells, n_layers).drop(columns="part")
    added, impossible = prompt_controls(observed, sweep, n_layers)
    notes = [reasons(a) | reasons(b) for a, b in zip(table["undefined"], added["undefined"], strict=True)]
    if _several(sweep):
        within = read_clusters(observed.cases["cluster"].to_numpy(), len(observed.cases))
        before = observed.under(None)
        columns, more = interaction_columns(
            sweep, lambda i: within.totals(observed.under(i) - before)[0],
            within.totals(before)[1], shared=within.shared, resolution=SMALLEST[observed.measure],
            idle=lambda heads: REASON if by_construction(observed.measure, "all", heads, n_layers) else "",
        )  # fmt: skip
        added |= columns
        notes = [a | b for a, b in zip(notes, more, strict=True)]
    added["undefined"] = [note(why) for why in notes]
    numbers = [name for name in added if name not in ("undefined", "draws")]
    table = holm(holm(mark(table.assign(**added), numbers, impossible, REASON), ("scale",)), ("scale",), "p_above")
    return holm(table, ("scale",), "p_interaction") if _several(sweep) else table


def prompt_controls(observed: "Observed", sweep: "Sweep", n_layers: int) -> "tuple[dict[str, Any], list[bool]]":
    """Columns of the controls, the reasons of their empty cells among them, and the cells that cannot have any."""
    import numpy as np

    from interventions.controls import control_columns
    from interventions.effects import by_construction
    from interventions.observe import SMALLEST
    from probes.statistics import read_clusters
    from probes.t_tests import clustered_t
    from probes.undefined import note

    within = read_clusters(observed.cases["cluster"].to_numpy(), len(observed.cases))
    rows, impossible = [], []
    for (heads, g), at, controls in zip(sweep.cells, sweep.index, sweep.controls, strict=True):
        able = [i for drawn, i in controls if not by_construction(observed.measure, "all", drawn, n_layers)]
        change = observed.under(at) - observed.under(None)
        others = np.array([observed.under(i) - observed.under(None) for i in able])
        paired = clustered_t(*within.totals(change - others.mean(0)), within.shared) if able else None
        effects = others.mean(-1) if able else []
        row = control_columns(float(change.mean()), effects, paired, g, resolution=SMALLEST[observed.measure])
        rows.append({"undefined": note(row.pop("why")), **row})
        impossible.append(by_construction(observed.measure, "all", heads, n_layers))
    return {name: [row[name] for row in rows] for name in rows[0]}, impossible


def every_head(model: "StreamTransformer") -> "list[Head]":
    """All heads of a model, in order."""
    from models.head_spec import parse_heads

    return parse_heads("all", model.config.n_layers, model.config.n_heads)


def labels(heads: Sequence["Head"], g: float) -> dict[str, Any]:
    """The columns that name a cell; layer and index of a set are −1."""
    single = heads[0] if len(heads) == 1 else None
    return {
        "head": "+".join(h.label for h in heads),
        "layer": single.layer if single else -1,
        "index": single.head if single else -1,
        "scale": float(g),
    }
