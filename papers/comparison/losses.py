"""Validation losses of trained runs, preset against preset, paired by training seed.

Runs of one seed see the same windows in the same order, so the difference of two presets is taken seed by seed; seeds
are the units, and with few of them the t interval is wide. It says so rather than borrowing certainty from documents.
Whether two presets come in the printed order is a claim like others (`order`, by the rule of `comparison.verdicts`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.undefined_cells import note
from streamscope.models.runs import evaluations
from streamscope.models.tensors import read_tensors
from streamscope.papers.comparison.printed import Order
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import NAN, estimate, put_interval, spread
from streamscope.papers.comparison.verdicts import order_row, with_verdicts
from streamscope.probes.mixing import kept_step

OF_CONTROL = ("difference", "sd", "ci_low", "ci_high", "printed_difference")
"""Columns of a difference to the control, which the control itself does not have."""


NOT_PRINTED = "the paper prints none"


class Below(NamedTuple):
    """The claim that `less` ends with a lower loss than `more`, as a paper prints both in one place.

    `printed` is None where a text says it without a number. `instead` says why the claim cannot be judged, or why what
    was printed is none.
    """

    less: str
    more: str
    printed: tuple[float, float] | None
    where: str
    instead: str = ""


def final_loss(run: Run) -> dict[str, float]:
    """Loss and tokens of the evaluation at the step whose weights the run kept.

    Raises `InputError` if there is no such evaluation.
    """

    step = kept_step(run.folder)
    rows = [row for row in evaluations(run.folder) if row["step"] == step]
    if not rows:
        raise InputError(f"{run.folder} has no evaluation at step {step}, whose weights it kept")
    return {"loss": float(rows[-1]["loss"]), "tokens": int(rows[-1]["tokens"])}


def losses(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: preset (its arm), seed, parameters, loss, tokens, steps, minutes, commit."""

    rows = []
    for run in runs:
        tensors, _ = read_tensors(run.folder / "model.safetensors")
        seconds = NAN if run.snapshot else run.manifest.get("wall_seconds", NAN)  # a snapshot has its run's
        rows.append(
            {
                "preset": run.arm, "seed": run.seed, "parameters": sum(t.numel() for t in tensors.values()),
                **final_loss(run), "steps": run.manifest["steps"],
                "minutes": seconds / 60, "commit": str(run.manifest.get("commit", "")),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def against(
    rows: pd.DataFrame, control: str, printed: Mapping[str, float], of_control: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """One row per preset: mean loss over seeds, and its difference to `control` over the seeds that both have.

    The interval is the paired t interval over seeds, uncorrected and no verdict: `order` gives those. `printed` is what
    a paper prints of a preset, `of_control` what it prints of the control next to that, where it is another number.
    `all_seeds` is how many seeds have the sign of the printed difference.
    """

    by = {str(preset): one.set_index("seed") for preset, one in rows.groupby("preset", sort=False)}
    if control not in by:
        raise InputError(f"no run of {control}, which the others are compared with")
    compared_rows = []
    for preset, one in by.items():
        losses, gaps = one["loss"], (one["loss"] - by[control]["loss"]).dropna().to_numpy(float)
        numbers = estimate(gaps, "no paired seed")
        row: dict[str, Any] = {
            "preset": preset, "n": len(one), "parameters": int(one["parameters"].iloc[0]), "loss": NAN,
            "difference": numbers["mean"], **{name: numbers[name] for name in ("sd", "ci_low", "ci_high")},
            "pairs": numbers["n"], "seeds": ", ".join(f"{s}: {x:.4f}" for s, x in losses.sort_index().items()),
            "printed": printed.get(preset, NAN),
            "printed_difference": printed.get(preset, NAN) - (of_control or {}).get(preset, printed.get(control, NAN)),
            "all_seeds": "",
        }  # fmt: skip
        why = {} if preset in printed else {"printed": NOT_PRINTED}
        put_interval(row, why, "loss", estimate(losses.to_numpy(float)))
        put_interval(row, why, "loss_sd", spread(losses.to_numpy(float)), "sd")
        if preset == control:
            row |= dict.fromkeys(OF_CONTROL, NAN)
            why |= dict.fromkeys(OF_CONTROL, "the control itself")
        else:
            why |= {{"mean": "difference"}.get(name, name): text for name, text in numbers["why"].items()}
            if row["printed_difference"] == row["printed_difference"]:
                row["all_seeds"] = f"{int((gaps * row['printed_difference'] > 0).sum())} of {len(gaps)}"
            else:
                why["printed_difference"] = NOT_PRINTED
        compared_rows.append({**row, "undefined": note(why)})
    return pd.DataFrame(compared_rows)


# ---- orders that a paper claims ----------------------------------------------------------------


def order(rows: pd.DataFrame, claims: Sequence[Below], online: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per claim whose two presets were both trained: loss of `more` less that of `less`, positive as printed.

    `by_seed` has that difference for every seed that both have, `against` the seeds that contradict. p is corrected
    over the claims that can be judged (Holm); the smallest difference of interest is .01 nats per token. `online` are
    the `gaps` on the training text before it was learned: an order that does not lie on the same side there, with its
    whole interval, is not resolved.
    """

    quantities = rows.assign(quantity="loss", unit="nats/token", value=rows["loss"], undefined="")
    by = {preset: one.set_index("seed")["loss"] for preset, one in rows.groupby("preset", sort=False)}
    claim_rows: list[dict[str, Any]] = []
    instead, withheld = dict[int, str](), dict[int, str]()
    for claim in claims:
        if not {claim.less, claim.more} <= set(by):
            continue
        gaps = (by[claim.more] - by[claim.less]).dropna().sort_index()
        if claim.instead:
            instead[len(claim_rows)] = claim.instead
        elif why := _unlike(float(gaps.mean()), f"{claim.less} < {claim.more}", online):
            withheld[len(claim_rows)] = why
        low, high = claim.printed or (NAN, NAN)
        row = order_row(
            Order("loss", claim.more, claim.less, claim.where), quantities, paper=high - low,
            printed=f"{low:.4g} < {high:.4g}" if claim.printed else "",
            by_seed=", ".join(f"{s}: {x:+.4f}" for s, x in gaps.items()),
            against=", ".join(str(s) for s, x in gaps.items() if x < 0),
        )  # fmt: skip
        claim_rows.append({**row, "claim": f"{claim.less} < {claim.more}"})
    return with_verdicts(claim_rows, instead, withheld=withheld)


def _unlike(gap: float, claim: str, online: pd.DataFrame | None) -> str:
    """What the training text says of a claim where it does not agree with the gap on validation text, or ""."""
    for r in () if online is None or online.empty else online[online["claim"] == claim].itertuples():
        if r.ci_low == r.ci_low and not (r.ci_low > 0 if gap > 0 else r.ci_high < 0):  # one seed has no interval
            there = f"{r.difference:+.3f} ({r.ci_low:+.3f} … {r.ci_high:+.3f})"
            return f"not resolved on both texts: {there} on that of training"
    return ""
