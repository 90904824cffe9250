"""HDPL's comparison over trained runs: hybrid dual-path projections against the dense model, trained on the same data.

    python -m papers.hdpl runs/textbooks/llama-* runs/textbooks/hdpl-* --out results/hdpl_textbooks
    python -m papers.hdpl --tables results/hdpl_textbooks --out results/hdpl_textbooks

The paper's two models did not see the same data: the hybrid trained first and both shared one iterator (SPEC §5). Here
runs of one seed see the same windows in the same order. Beside the losses stands what the penalty did: the paper's
clamp (max ln 2 per token) takes the KL term's gradient away wherever the KL is larger. With --tables an earlier
comparison's tables are judged and its page is written again, without a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.papers.losses import Below, Printed

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.papers.comparison.runs import Run

PRESETS = ("llama", "hdpl")
CARD = "HDPL, hybrid dual-path linear layers"
TABLE1 = "Table 1, final validation loss"
ARCHITECTURES = {"llama": Printed(4.3206, TABLE1), "hdpl": Printed(4.2838, TABLE1)}
AS_HERE, AS_THEIRS = 4.861, 4.717
"""Loss of a dense model after 250 steps at the scale of the bundled models, one seed, with each start (SPEC §9)."""
START = (
    "The dense model does not start as the authors' does: here its maps are N(0, .02), those that write to the "
    "residual divided by √(2L); in the authors' code they are uniform within ±1/√fan-in. Measured beside that code, "
    f"with one seed, this start alone cost a dense model {AS_HERE - AS_THEIRS:.2f} nats per token (scale of the "
    f"bundled models, step 250: {AS_HERE} against {AS_THEIRS}; SPEC §9)"
)
WITHDRAWN = "withdrawn: the dense model does not start as the authors' does"
KL_UNITS = {
    "kl": "nats, the part of the training loss",
    "kl_nats": "nats per token and projection",
    "kl_clamped": "share",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.hdpl`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders of llama and hdpl."""
    out: Path | None = None
    """Folder for README.md and the tables (.parquet)."""
    tables: Path | None = None
    """Folder of an earlier comparison: its tables are judged and its page is written again, without any model."""


@dataclass(frozen=True)
class Found:
    """The runs, their tables, and who made them."""

    runs: "list[Run]"
    about: dict[str, Any]
    losses: "pd.DataFrame"
    comparison: "pd.DataFrame"
    order: "pd.DataFrame"
    kl: "pd.DataFrame"
    bundled: "pd.DataFrame"
    """Loss curves of the bundled models."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, print, write."""
    options = parse(Options, argv, __doc__)
    if options.tables is not None and options.runs:
        raise InputError(f"give run folders to measure, or --tables {options.tables} to judge again; not both")
    if not options.runs and options.tables is None:
        raise InputError("give run folders: python -m papers.hdpl runs/llama-0 runs/hdpl-0 …")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file; give a folder")

    from streamscope.probes.command import INTERVAL, show
    from streamscope.probes.undefined import legend

    found = again(options.tables) if options.tables is not None else read(open_runs(options.runs))
    columns = ("preset", "parameters", "n", "loss", "difference", INTERVAL, "all_seeds", "printed_difference")
    show(found.comparison, "validation loss, difference to llama by seed", columns, 4)
    show(found.order, "the paper's order: higher − lower loss", ("claim", "by_seed", "difference", "direction"), 4)
    for table in (found.comparison, found.order):
        if lines := legend(table):
            print(lines)
    show(found.kl, "the penalty at the end of training", tuple(found.kl.columns), 4)
    if options.out is not None:
        if options.tables is None:
            where = options.out.name if options.out.is_absolute() else options.out
            typed = " ".join(run.typed for run in found.runs)
            found.about["argv"] = f"python -m papers.hdpl {typed} --out {where}"
        write(found, options.out)


def open_runs(folders: Sequence[str]) -> "list[Run]":
    """The runs by preset and seed. Raises `InputError` for doubles, and for a recipe that differs."""
    from streamscope.papers.comparison.runs import must_agree, opened, same_models

    runs = sorted((opened(f, PRESETS) for f in folders), key=lambda r: (PRESETS.index(r.preset), r.seed))
    for one, two in pairwise(runs):
        if (one.preset, one.seed) == (two.preset, two.seed):
            raise InputError(f"{one.folder} and {two.folder} are both {one.name}; give one of them")
        must_agree(runs[0], two, runs[0].conditions, two.conditions)
    same_models(runs)
    return runs


def read(runs: "list[Run]") -> Found:
    """The tables of all runs."""
    from streamscope.models.provenance import provenance
    from streamscope.papers.losses import losses

    tables = {"losses": losses(runs), "kl": kl(runs)}
    return judge(runs, tables, {**provenance("cpu"), "argv": "python -m papers.hdpl"})


def again(folder: Path) -> Found:
    """An earlier comparison, judged again. Raises `InputError` for a folder without one."""
    from streamscope.papers.comparison.report import reopen

    return judge(*reopen(folder, "papers.hdpl"))


def judge(runs: "list[Run]", tables: "dict[str, pd.DataFrame]", about: dict[str, Any]) -> Found:
    """What follows from measured tables: differences to the dense model, and the paper's order."""
    from streamscope.papers.losses import against, bundled, order

    rows = tables["losses"]
    return Found(
        runs=runs,
        about=about,
        losses=rows,
        comparison=against(rows, "llama", ARCHITECTURES),
        order=order(rows, _order(runs)),
        kl=tables["kl"],
        bundled=tables["bundled"] if "bundled" in tables else bundled(PRESETS),
    )


def kl(runs: "Sequence[Run]") -> "pd.DataFrame":
    """The last logged training row of every HDPL run: the penalty, the KL in nats, and the share that is clamped."""
    import pandas as pd

    from streamscope.models.training.run import read_metrics

    rows = []
    for run in (r for r in runs if r.preset == "hdpl"):
        logged = [row for row in read_metrics(run.folder) if row["kind"] == "train"]
        ends: dict[str, Any] = {name: logged[-1].get(name, float("nan")) for name in KL_UNITS}
        first = {f"{name}_first": logged[0].get(name, float("nan")) for name in ("kl_nats", "kl_clamped")}
        rows.append({"preset": run.preset, "seed": run.seed, "step": logged[-1]["step"], **ends, **first})
    return pd.DataFrame(rows, columns=["preset", "seed", "step", *KL_UNITS, "kl_nats_first", "kl_clamped_first"])


def as_theirs(runs: "Sequence[Run]") -> bool:
    """Whether every model started by the rules of its preset, which are those of the authors' code (SPEC §5, §9)."""
    from streamscope.models.config import ModelConfig
    from streamscope.models.config.presets import preset
    from streamscope.models.config.serialization import from_dict

    return all(from_dict(ModelConfig, run.config["model"]).init == preset(run.preset).init for run in runs)


def _order(runs: "Sequence[Run]") -> "tuple[Below, ...]":
    """The paper's order, withdrawn where a model did not start as the authors' does."""
    return (Below("hdpl", "llama", (4.2838, 4.3206), TABLE1, "" if as_theirs(runs) else WITHDRAWN),)


def write(found: Found, folder: Path) -> None:
    """Tables, then README.md; each whole or not at all."""
    from streamscope.papers.comparison.report import write_page
    from streamscope.papers.losses import BUNDLED_UNITS, UNITS

    tables = {
        "losses": found.losses, "comparison": found.comparison, "order": found.order, "bundled": found.bundled,
        "kl": found.kl,
    }  # fmt: skip
    units = {"losses": UNITS, "comparison": UNITS, "order": UNITS, "bundled": BUNDLED_UNITS, "kl": KL_UNITS}
    write_page(lambda files: page(found, files), tables, units, found.about, folder, runs=found.runs)


def page(found: Found, files: "Sequence[str]") -> str:
    """README.md."""
    import math

    from streamscope.papers.comparison.markdown import table
    from streamscope.papers.comparison.report import LEAD, Report, commands, dose, files_line, made_by, shape
    from streamscope.papers.losses import curves, order_rows, page_rows

    run = found.runs[0]
    model, training = run.config["model"], run.config["training"]
    lengths = training.get("phases") or f"{training['batch_size']} × {model['n_ctx']}"
    columns = list(found.kl.columns)
    cells = [[f"{x:.4g}" if isinstance(x, float) else x for x in row] for row in found.kl.itertuples(index=False)]
    ends = [f"{x:.2f}" for x in (found.losses["loss"].min(), found.losses["loss"].max())]
    parts = [
        "# Hybrid dual-path projections against dense ones",
        *([] if as_theirs(found.runs) else [
            f"**No size on this page can be interpreted until the dense model is trained again.** {START}"
            f"{_beside(found)}. The verdict on the paper's order is withdrawn."
        ]),
        LEAD.format(CARD),
        f"{dose(found.runs)}; the paper trains for 20,000 steps. Models trained this little say little: losses are "
        f"{' to '.join(ends)} nats per token (guessing among {model['d_vocab']:,} tokens: "
        f"{math.log(model['d_vocab']):.2f}), and nothing here tests longer training. "
        f"{curves(found.bundled, *PRESETS)}".rstrip(),
        f"- Models: scale {run.manifest['scale']} ({shape(model)}); {run.manifest['steps']:,} steps of "
        f"{lengths} tokens on "
        f"`{run.config['data']['data']}`. The paper's: "
        "4 layers, width 512, 20,000 steps.\n"
        "- Same data, same order for both models of a seed; the paper's two saw different data (SPEC §5).\n"
        f"{made_by(found.about)}\n{files_line(files)}",
        f"## Losses\n\n{page_rows(found.comparison, found.losses, 'llama', 'paper')}",
        *([f"## The paper's order of losses\n\n{order_rows(found.order, 'paper')}"] if len(found.order) else []),
        "## The penalty\n\nThe last logged training step; `_first` is the first logged one. `kl_clamped` is the share "
        "of tokens and projections whose KL lies above the clamp, where it has no gradient.\n\n"
        f"{table(columns, cells)}",
        commands(Report(runs=found.runs, tables={}, about=found.about)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _beside(found: Found) -> str:
    """The difference that is reported, beside what the start alone costs."""
    one = found.comparison[(found.comparison["preset"] == "hdpl") & found.comparison["difference"].notna()]
    if one.empty:
        return ""
    gap = abs(one["difference"].iloc[0])
    more = "more than" if gap < AS_HERE - AS_THEIRS else "beside"
    return f", {more} the {gap:.3f} by which the two models differ here"


if __name__ == "__main__":
    command(main)
