"""Validation losses of trained runs, preset against preset, paired by training seed.

Runs of one seed see the same windows in the same order, so the difference of two presets is taken seed by seed; seeds
are the units, and with few of them the t interval is wide. It says so rather than borrowing certainty from documents.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from models.errors import InputError
from papers.runs import Run

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
UNITS = {
    "loss": "nats per token",
    "tokens": "validation tokens",
    "difference": "nats per token",
    "sd": "nats per token",
    "ci_low": "nats per token",
    "ci_high": "nats per token",
    "printed": "nats per token",
    "printed_difference": "nats per token",
    "minutes": "minutes",
    "n": "training seeds",
}


class Printed(NamedTuple):
    """A loss that a paper prints, and where."""

    value: float
    where: str


def final_loss(run: Run) -> dict[str, float]:
    """Loss and tokens of the evaluation at the step whose weights the run kept. Raises `InputError` without one."""
    from models.runs import evaluations
    from probes.mixing import kept_step

    step = kept_step(run.folder)
    rows = [row for row in evaluations(run.folder) if row["step"] == step]
    if not rows:
        raise InputError(f"{run.folder} has no evaluation at step {step}, whose weights it kept")
    return {"loss": float(rows[-1]["loss"]), "tokens": int(rows[-1]["tokens"])}


def losses(runs: Sequence[Run]) -> "pd.DataFrame":
    """One row per run: preset, seed, parameters, loss, tokens, steps, minutes, commit."""
    import pandas as pd

    from models.checkpoint import read_tensors

    rows = []
    for run in runs:
        tensors, _ = read_tensors(run.folder / "model.safetensors")
        rows.append(
            {
                "preset": run.preset, "seed": run.seed, "parameters": sum(t.numel() for t in tensors.values()),
                **final_loss(run), "steps": run.manifest["steps"],
                "minutes": run.manifest.get("wall_seconds", NAN) / 60, "commit": str(run.manifest.get("commit", "")),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def against(rows: "pd.DataFrame", control: str, printed: Mapping[str, Printed]) -> "pd.DataFrame":
    """One row per preset: mean loss over seeds, and its difference to `control` over the seeds that both have.

    The interval is the paired t interval over seeds. `order` compares with the paper: same, opposite, or unresolved
    when the interval holds 0 (`all seeds` then says whether every seed has the sign of the printed difference).
    """
    import pandas as pd

    from probes.statistics import mean
    from probes.t_tests import constant
    from probes.undefined import note

    by = {preset: one.set_index("seed")["loss"] for preset, one in rows.groupby("preset", sort=False)}
    if control not in by:
        raise InputError(f"no run of {control}, which the others are compared with")
    found = []
    for preset, one in by.items():
        seeds = [s for s in one.index if s in by[control].index]
        paper = printed.get(preset)
        size = int(rows.loc[rows["preset"] == preset, "parameters"].iloc[0])
        row: dict[str, Any] = {
            "preset": preset, "n": len(one), "parameters": size,
            "loss": float(one.mean()), "difference": NAN, "sd": NAN, "ci_low": NAN, "ci_high": NAN, "pairs": len(seeds),
            "seeds": ", ".join(f"{s}: {one[s]:.4f}" for s in sorted(one.index)),
            "printed": paper.value if paper else NAN, "printed_difference": NAN, "order": "", "all_seeds": "",
        }  # fmt: skip
        why = {} if paper else {"printed": "the paper prints none"}
        if preset == control:
            why |= dict.fromkeys(("difference", "sd", "ci_low", "ci_high", "printed_difference"), "the control itself")
            found.append({**row, "undefined": note(why)})
            continue
        gaps = (one[seeds] - by[control][seeds]).to_numpy(float)
        row["difference"] = float(gaps.mean()) if len(gaps) else NAN
        if len(gaps) > 1 and not constant(gaps):
            m = mean(gaps)
            row |= {"sd": m.sd, "ci_low": m.ci_low, "ci_high": m.ci_high}
        else:
            why |= dict.fromkeys(
                ("sd", "ci_low", "ci_high"), "fewer than two paired seeds" if len(gaps) < 2 else "no spread"
            )
        if paper and control in printed:
            gap = row["printed_difference"] = paper.value - printed[control].value
            agree = [g * gap > 0 for g in gaps]
            row["all_seeds"] = f"{sum(agree)} of {len(agree)}"
            excludes = row["ci_low"] * row["ci_high"] > 0
            row["order"] = "unresolved" if not excludes else "same" if row["difference"] * gap > 0 else "opposite"
        else:
            why["printed_difference"] = "the paper prints none"
        found.append({**row, "undefined": note(why)})
    return pd.DataFrame(found)


def page_rows(found: "pd.DataFrame", rows: "pd.DataFrame", control: str, source: str) -> str:
    """The Markdown of a comparison: how it is to be read, and its table. `source` is what the printed values are of."""
    from papers.markdown import table

    cells = []
    for r in found.itertuples():
        gap = "control" if r.preset == control else f"{r.difference:+.4f}"
        width = f"{r.ci_low:+.4f} … {r.ci_high:+.4f}" if r.ci_low == r.ci_low else "undefined"
        loss, difference = (
            "" if x != x else f"{x:{s}}" for x, s in ((r.printed, ".4g"), (r.printed_difference, "+.3f"))
        )
        cells.append([r.preset, f"{r.parameters:,}", f"{r.loss:.4f}", r.seeds, gap, width, loss, difference,
                      r.all_seeds, r.order])  # fmt: skip
    columns = ("preset", "parameters", "loss", "by seed", "difference", "95 % over seeds", source,
               f"{source}'s difference", f"seeds with the {source}'s sign", "order")  # fmt: skip
    text = (
        f"Nats per token on {int(rows['tokens'].iloc[0]):,} validation tokens. Differences to {control} are taken seed "
        "by seed (the same windows in the same order); units of the interval are seeds, so with two of them it is "
        "wide. *Order* is *unresolved* where it holds 0."
    )
    return f"{text}\n\n{table(columns, cells)}"
