"""What `papers.krom` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from streamscope.instruments.command import INTERVAL
from streamscope.instruments.command import show as print_rows
from streamscope.instruments.undefined_cells import legend
from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict
from streamscope.papers.comparison.curves import GAP_UNITS
from streamscope.papers.comparison.curves import UNITS as CURVE_UNITS
from streamscope.papers.comparison.losses import BUNDLED_UNITS, UNITS, order_rows, page_rows
from streamscope.papers.comparison.markdown import table
from streamscope.papers.comparison.report import (
    LEAD,
    Report,
    commands,
    dose,
    files_line,
    made_by,
    pictures,
    shape,
    write_page,
)
from streamscope.papers.comparison.runs import Run
from streamscope.papers.comparison.seeds import over_seeds
from streamscope.papers.krom import alike, signs, sweep, variants
from streamscope.papers.krom.conclusion import CONTROL, Found, conclusion, cosines, of_losses
from streamscope.papers.krom.figure import figure
from streamscope.papers.krom.mixing import ARM, FACTOR_UNITS, RUN_UNITS
from streamscope.papers.krom.printed import CARD, DIFFERENCES, IN_ITS_OWN_CODE, RECIPE, STREAM_COSINE, SWAP, TOKENS

HOW = """A logit of H_res moves by the gradient of the loss and by weight decay, unless storage rounds both away.
The swap is the probability of the swap in a 2 × 2 factor, mean over the factors whose mixing can change an output:
*start* is that of the initial bias, *no gradient* what the run's decay, schedule and storage make of it without any
gradient (replayed), *end* what was trained. *By the loss* is how much further the trained gap b_swap − b_keep lies
towards mixing than that replay, in logits: the work of the gradient, and of what AdamW makes of the gradient's noise.
*Share* is what part of the whole way that is. *In use* is the mean swap with the dynamic term, on the tokens of the
monitor. Factors that cannot act (the streams before them are equal, or only their sum is read after them) check the
replay: *controls* is their gap beyond it, what rounding makes of a gradient that is zero. ∂L/∂b is the median over
modules of the gradient's norm at the end; AdamW divides by it, down to ε = 1e-8, below which steps shrink with it.
Of the factors that can act, by the biases alone: those that *mix* exceed the swap without any gradient by .01 or more;
of *decay* are those that do not and yet swap with .01 or more; the others are *still* (`probes.mixing`)."""


def arms(mixing: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: means over seeds of its mixing, `start` swap, `share` of the way that the loss went."""

    rows = mixing.assign(start=1 / (1 + np.exp(-mixing["b_res"])))
    way = rows["gap"] - rows["b_res"]
    rows["share"] = np.where(way.abs() > 1e-3, rows["by_loss"] / way, np.nan)
    values = [
        "loss", "swap", "swap_dynamic", "start", "swap_without_gradient", "by_loss", "share", "by_loss_controls",
        "towards", "factors", "gradient", "stream_cosine", "shuffled_cosine",
    ]  # fmt: skip
    groups = rows.groupby(ARM, sort=False, dropna=False)
    found = groups[values].mean().reset_index()
    found["n"] = groups.size().to_numpy()
    found["seeds"] = groups["seed"].agg(lambda s: ", ".join(map(str, sorted(s)))).to_numpy()
    for name in ("n_mix", "n_decay", "n_still"):
        found[name] = groups[name].agg(lambda s: ", ".join(map(str, s))).to_numpy()
    return found


def show(found: Found) -> None:
    """The comparison and the arms."""

    if len(found.comparison):
        columns = ("preset", "n", "loss", "difference", INTERVAL, "all_seeds", "printed", "printed_difference")
        print_rows(found.comparison, f"validation loss, difference to {CONTROL} by seed", columns, 4)
        if lines := legend(found.comparison):
            print(lines)
        judged = ("claim", "by_seed", "difference", INTERVAL, "p_holm", "direction")
        print_rows(found.order, "the blog's order: higher − lower loss as claimed", judged, 4)
        if lines := legend(found.order):
            print(lines)
    if len(found.mixing):
        shown = (*ARM[:-1], "n", "start", "swap_without_gradient", "swap", "by_loss", "n_mix", "n_decay", "n_still")
        print_rows(arms(found.mixing), "mixing at the end, means over seeds and factors that can act", shown, 4)
    if len(agree := signs.signs(found.factors)):
        shown = (*ARM[:-1], "n", "modules", "positive", "consistent", "share", "coins", "dealt", "p")
        print_rows(agree, "modules whose α_res has one sign in all seeds, beside what chance gives", shown, 3)


def write(found: Found, folder: Path, html: bool = True) -> None:
    """Tables and figure, then README.md; each whole or not at all."""

    tables = {
        "losses": (found.losses, UNITS), "comparison": (found.comparison, UNITS), "order": (found.order, UNITS),
        "bundled": (found.bundled, BUNDLED_UNITS), "factors": (found.factors, FACTOR_UNITS),
        "curves": (found.curves, CURVE_UNITS), "gaps": (found.gaps, GAP_UNITS),
        "online": (found.online, CURVE_UNITS), "online-gaps": (found.online_gaps, GAP_UNITS),
        "ways": (found.ways, RUN_UNITS), "mixing": (found.mixing, RUN_UNITS),
        "topologies": (found.topologies, variants.UNITS),
    }  # fmt: skip
    if len(found.mixing):
        tables["arms"] = (arms(found.mixing), RUN_UNITS)
        tables["signs"] = (signs.signs(found.factors), signs.UNITS)
        tables["signs-modules"] = (signs.by_module(found.factors), signs.MODULE_UNITS)
        tables["signs-claims"] = (signs.claims(found.factors), signs.CLAIM_UNITS)
    if len(numbers := sweep.quantities(found.mixing, found.factors, found.losses)):
        tables["sweep"] = (over_seeds(numbers), sweep.UNITS)
        tables["sweep-claims"] = (sweep.claims(found.mixing, numbers), sweep.CLAIM_UNITS)
    if len(every := variants.streams(found.mixing, found.topologies)):
        tables["alike"] = (alike.alike(every), alike.UNITS)
        tables["alike-claims"] = (alike.claims(every), alike.CLAIM_UNITS)
        tables["variants"] = (variants.claims(every), variants.CLAIM_UNITS)
        tables["differences"] = (variants.differences(every), variants.CLAIM_UNITS)
    write_page(
        lambda files: page(found, files), {k: v for k, (v, _) in tables.items()},
        {k: u for k, (_, u) in tables.items()}, found.about, folder, figure(found), "svg", html, found.runs,
    )  # fmt: skip


def page(found: Found, files: Sequence[str]) -> str:
    """README.md."""

    run = found.runs[0]
    model, data = (run.config[k] for k in ("model", "data"))
    steps = " and ".join(sorted({f"{r.manifest['steps']:,}" for r in found.runs}))
    seeds = ", ".join(map(str, sorted({r.seed for r in found.runs})))
    every = variants.streams(found.mixing, found.topologies)
    measured = [table["loss"] for table in (found.losses, every) if len(table)]
    ends = [f"{pick(pick(losses) for losses in measured):.2f}" for pick in (min, max)]
    head = [
        "# Canon, hyper-connections, and what freezes their mixing",
        *([cosines(found.mixing, dose(found.runs))] if len(found.mixing) else []),
        LEAD.format(CARD),
        f"{dose(found.runs)}, where the blog's models saw {TOKENS / 1e6:.1f} M. Models trained this little say little: "
        f"losses are {' to '.join(ends)} nats per token (guessing among {model['d_vocab']:,} tokens: "
        f"{math.log(model['d_vocab']):.2f}), and nothing here tests longer training.",
        f"- Models: scale {run.manifest['scale']} ({shape(model)}); {steps} steps of {run.windows} on "
        f"`{data['data']}`, seeds {seeds}. "
        "The blog's: 8 layers, width 512, 2,000 steps of 16 × 511.\n"
        f"{made_by(found.about)}\n{files_line(files)}",
        *pictures(files),
    ]  # fmt: skip
    report = Report(runs=found.runs, tables={}, about=found.about)
    other = "\n".join(DIFFERENCES[name] for name in differences(found.runs))
    recipe = f"## What differs from the blog's recipe\n\n{RECIPE}\n\n{other or '- Nothing.'}\n\n{IN_ITS_OWN_CODE}"
    parts = [
        *head, _conclusion(found), recipe, _losses(found), _mixing(found), signs.section(found.factors),
        alike.section(every), sweep.section(found.mixing, found.factors, found.losses),
        variants.section(found.topologies, every), commands(report),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def differences(runs: Sequence[Run]) -> list[str]:
    """What at least one of the runs has otherwise than the blog's code (keys of `DIFFERENCES`), read from its
    configuration; a run from before an option has what was done then."""

    def other(run: Run) -> dict[str, bool]:
        training = run.config["training"]
        return {
            "muon": training.get("muon_decay_mode") != "coupled",
            "kernels": training.get("muon_kernels") is False,
            "adamw": training.get("bias_correction") is not False,
            "init": from_dict(ModelConfig, run.config["model"]).init != preset(run.preset).init,
            "vectors": training.get("decay_vectors") is not True,
            "storage": training.get("param_dtype") != "bf16",
        }

    found = [other(run) for run in runs]
    return [name for name in DIFFERENCES if any(one[name] for one in found)]


def _conclusion(found: Found) -> str:

    lines = of_losses(found)
    if len(found.mixing):
        lines += [*conclusion(found.mixing), *signs.said(found.factors), *alike.said(found.mixing)]
    return "## What the runs say\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _losses(found: Found) -> str:

    if found.comparison.empty:
        return ""
    compared = f"## Losses\n\n{page_rows(found.comparison, found.losses, CONTROL, 'blog')}"
    if found.order.empty:
        return compared
    return f"{compared}\n\n## The blog's order of losses\n\n{order_rows(found.order, 'blog')}"


def _mixing(found: Found) -> str:
    if found.mixing.empty:
        return ""
    rows = []
    for r in arms(found.mixing).itertuples():
        share = "undefined" if r.share != r.share else f"{100 * r.share:.0f} %"
        controls = "none" if r.by_loss_controls != r.by_loss_controls else f"{r.by_loss_controls:+.3f}"
        rows.append([
            r.preset, f"{r.b_res:g}", r.storage, f"{r.optimizer} {r.lr:g}", f"{r.decay:g}", f"{r.steps:,}", r.seeds,
            f"{r.loss:.4f}", f"{r.start:.5f}", f"{r.swap_without_gradient:.5f}", f"{r.swap:.5f}",
            f"{r.swap_dynamic:.5f}", f"{r.by_loss:+.3f}", share,
            f"{r.towards:.0f} of {r.factors:.0f}", controls, r.n_mix, r.n_decay, r.n_still, f"{r.gradient:.1e}",
            f"{r.stream_cosine:.3f} ({r.shuffled_cosine:.3f})",
        ])  # fmt: skip
    columns = ("preset", "bias", "storage", "optimiser, peak rate", "decay", "steps", "seeds", "loss", "swap: start",
               "no gradient", "end", "in use", "by the loss", "share", "factors towards mixing", "controls",
               "mix", "of decay", "still", "∂L/∂b", "per-stream cosine (shuffled labels)")  # fmt: skip
    blog = "; ".join(f"{b:g}: swap {SWAP[b]:g}, cosine {STREAM_COSINE[b]:g}" for b in SWAP)
    return f"## Mixing\n\n{HOW}\n\nThe blog's, bf16 throughout and AdamW: {blog}.\n\n{table(columns, rows)}"
