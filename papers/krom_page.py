"""What `papers.krom` prints and writes: tables, figure, and a README.md whose every number is in the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers.comparison import LEAD, files_line, made_by, pictures, shape, write_page
from papers.krom import CONTROL, Found
from papers.krom_printed import CARD, STREAM_COSINE, SWAP
from papers.markdown import table

if TYPE_CHECKING:
    import pandas as pd

ARM = ["preset", "b_res", "storage", "optimizer", "lr", "decay", "steps"]
HOW = """A logit of H_res moves by the gradient of the loss and by weight decay, unless storage rounds both away.
The swap is the probability of the swap in a 2 × 2 factor, mean over the factors whose mixing can change an output:
*start* is that of the initial bias, *no gradient* what the run's decay, schedule and storage make of it without any
gradient (replayed), *end* what was trained. *By the loss* is how much further the trained gap b_swap − b_keep lies
towards mixing than that replay, in logits: the work of the gradient, and of what AdamW makes of the gradient's noise.
*Share* is what part of the whole way that is. *In use* is the mean swap with the dynamic term, on the tokens of the
monitor. Factors that cannot act (the streams before them are equal, or only their sum is read after them) check the
replay: *controls* is their gap beyond it, what rounding makes of a gradient that is zero. ∂L/∂b is the median over
modules of the gradient's norm at the end; AdamW divides by it, down to ε = 1e-8, below which steps shrink with it."""


def arms(mixing: "pd.DataFrame") -> "pd.DataFrame":
    """One row per arm: means over seeds of its mixing, `start` swap, `share` of the way that the loss went."""
    import numpy as np

    rows = mixing.assign(start=1 / (1 + np.exp(-mixing["b_res"])))
    way = rows["gap"] - rows["b_res"]
    rows["share"] = np.where(way.abs() > 1e-3, rows["by_loss"] / way, np.nan)
    values = [
        "loss", "swap", "swap_dynamic", "start", "swap_without_gradient", "by_loss", "share", "by_loss_controls",
        "towards", "factors", "distance_static", "distance_dynamic", "gradient", "stream_cosine", "shuffled_cosine",
    ]  # fmt: skip
    groups = rows.groupby(ARM, sort=False, dropna=False)
    found = groups[values].mean().reset_index()
    found["n"] = groups.size().to_numpy()
    found["seeds"] = groups["seed"].agg(lambda s: ", ".join(map(str, sorted(s)))).to_numpy()
    found["streams"] = groups["streams"].agg(lambda s: " and ".join(sorted(set(s)))).to_numpy()
    return found


def show(found: Found) -> None:
    """The comparison and the arms."""
    from probes.report import INTERVAL
    from probes.report import show as print_rows
    from probes.undefined import legend

    if len(found.comparison):
        columns = ("preset", "n", "loss", "difference", INTERVAL, "all_seeds", "printed", "printed_difference", "order")
        print_rows(found.comparison, f"validation loss, difference to {CONTROL} by seed", columns, 4)
        if lines := legend(found.comparison):
            print(lines)
    if len(found.mixing):
        shown = (*ARM[:-1], "n", "start", "swap_without_gradient", "swap", "by_loss", "by_loss_controls", "streams")
        print_rows(arms(found.mixing), "mixing at the end, means over seeds and factors that can act", shown, 4)


def write(found: Found, folder: Path, html: bool = True) -> None:
    """Tables and figure, then README.md; each whole or not at all."""
    from models.provenance import provenance
    from papers.krom_figure import figure
    from papers.krom_mixing import FACTOR_UNITS, RUN_UNITS
    from papers.losses import UNITS

    where = folder.name if folder.is_absolute() else folder
    argv = f"python -m papers.krom {' '.join(run.typed for run in found.runs)} --out {where}"
    argv += "" if html else " --no-html"
    about: dict[str, Any] = {**provenance("cpu"), "argv": argv}
    tables = {
        "losses": (found.losses, UNITS), "comparison": (found.comparison, UNITS),
        "factors": (found.factors, FACTOR_UNITS), "mixing": (found.mixing, RUN_UNITS),
    }  # fmt: skip
    if len(found.mixing):
        tables["arms"] = (arms(found.mixing), RUN_UNITS)
    write_page(
        lambda files: page(found, about, files), {k: v for k, (v, _) in tables.items()},
        {k: u for k, (_, u) in tables.items()}, about, folder, figure(found), "svg", html,
    )  # fmt: skip


def page(found: Found, about: dict[str, Any], files: Sequence[str]) -> str:
    """README.md."""
    run = found.runs[0]
    model, training, data = (run.config[k] for k in ("model", "training", "data"))
    steps = " and ".join(sorted({f"{r.manifest['steps']:,}" for r in found.runs}))
    seeds = ", ".join(map(str, sorted({r.seed for r in found.runs})))
    head = [
        "# Canon, hyper-connections, and what freezes their mixing",
        LEAD.format(CARD),
        f"- Models: scale {run.manifest['scale']} ({shape(model)}); {steps} steps of {training['batch_size']} × "
        f"{model['n_ctx']} tokens on `{data['data']}`, seeds {seeds}. "
        "The blog's: 8 layers, width 512, 2,000 steps of 16 × 511.\n"
        f"{made_by(about)}\n{files_line(files)}",
        *pictures(files),
    ]  # fmt: skip
    parts = [*head, _conclusion(found), _losses(found), _mixing(found), _commands(found, about)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _conclusion(found: Found) -> str:
    from papers.krom_conclusion import conclusion

    if found.mixing.empty:
        return ""
    return "## What the runs say\n\n" + "\n".join(f"- {line}" for line in conclusion(found.mixing))


def _losses(found: Found) -> str:
    from papers.losses import page_rows

    if found.comparison.empty:
        return ""
    return f"## Losses\n\n{page_rows(found.comparison, found.losses, CONTROL, 'blog')}"


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
            f"{r.towards:.0f} of {r.factors:.0f}", controls, f"{r.distance_static:.4f}",
            f"{r.distance_dynamic:.4f}", f"{r.gradient:.1e}", f"{r.stream_cosine:.3f} ({r.shuffled_cosine:.3f})",
            r.streams,
        ])  # fmt: skip
    columns = ("preset", "bias", "storage", "optimiser, peak rate", "decay", "steps", "seeds", "loss", "swap: start",
               "no gradient", "end", "in use", "by the loss", "share", "factors towards mixing", "controls",
               "‖H_res − I‖ static", "dynamic", "∂L/∂b", "per-stream cosine (shuffled labels)", "streams")  # fmt: skip
    blog = "; ".join(f"{b:g}: swap {SWAP[b]:g}, cosine {STREAM_COSINE[b]:g}" for b in SWAP)
    return f"## Mixing\n\n{HOW}\n\nThe blog's, bf16 throughout and AdamW: {blog}.\n\n{table(columns, rows)}"


def _commands(found: Found, about: dict[str, Any]) -> str:
    lines = "\n".join(
        f"{run.command}   # commit {str(run.manifest.get('commit', 'unknown'))[:12]}" for run in found.runs
    )
    return f"## Commands\n\n```\n{lines}\n{about['argv']}\n```"
