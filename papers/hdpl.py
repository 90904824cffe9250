"""HDPL's comparison over trained runs: hybrid dual-path projections against the dense model, trained on the same data.

    python -m papers.hdpl runs/textbooks/llama-* runs/textbooks/hdpl-* --out results/hdpl_textbooks

The paper's two models did not see the same data: the hybrid trained first and both shared one iterator (SPEC §5). Here
runs of one seed see the same windows in the same order. Beside the losses stands what the penalty did: the paper's
clamp (max ln 2 per token) takes the KL term's gradient away wherever the KL is larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from models.cli import command, parse
from models.errors import InputError
from papers.losses import Printed

if TYPE_CHECKING:
    import pandas as pd

    from papers.runs import Run

PRESETS = ("llama", "hdpl")
CARD = "HDPL, hybrid dual-path linear layers"
TABLE1 = "Table 1, final validation loss"
ARCHITECTURES = {"llama": Printed(4.3206, TABLE1), "hdpl": Printed(4.2838, TABLE1)}
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


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, print, write."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give run folders: python -m papers.hdpl runs/llama-0 runs/hdpl-0 …")

    from papers.losses import against, losses
    from probes.report import INTERVAL, show

    runs = open_runs(options.runs)
    rows = losses(runs)
    found = against(rows, "llama", ARCHITECTURES)
    columns = ("preset", "parameters", "n", "loss", "difference", INTERVAL, "all_seeds", "printed_difference", "order")
    show(found, "validation loss, difference to llama by seed", columns, 4)
    penalties = kl(runs)
    show(penalties, "the penalty at the end of training", tuple(penalties.columns), 4)
    if options.out is not None:
        _write(options.out, runs, rows, found, penalties)


def open_runs(folders: Sequence[str]) -> "list[Run]":
    """The runs by preset and seed. Raises `InputError` for doubles, and for a recipe that differs."""
    from papers.runs import must_agree, opened, same_models

    runs = sorted((opened(f, PRESETS) for f in folders), key=lambda r: (PRESETS.index(r.preset), r.seed))
    for one, two in pairwise(runs):
        if (one.preset, one.seed) == (two.preset, two.seed):
            raise InputError(f"{one.folder} and {two.folder} are both {one.name}; give one of them")
        must_agree(runs[0], two, runs[0].conditions, two.conditions)
    same_models(runs)
    return runs


def kl(runs: "Sequence[Run]") -> "pd.DataFrame":
    """The last logged training row of every HDPL run: the penalty, the KL in nats, and the share that is clamped."""
    import pandas as pd

    from models.training.run import read_metrics

    rows = []
    for run in (r for r in runs if r.preset == "hdpl"):
        logged = [row for row in read_metrics(run.folder) if row["kind"] == "train"]
        ends: dict[str, Any] = {name: logged[-1].get(name, float("nan")) for name in KL_UNITS}
        first = {f"{name}_first": logged[0].get(name, float("nan")) for name in ("kl_nats", "kl_clamped")}
        rows.append({"preset": run.preset, "seed": run.seed, "step": logged[-1]["step"], **ends, **first})
    return pd.DataFrame(rows, columns=["preset", "seed", "step", *KL_UNITS, "kl_nats_first", "kl_clamped_first"])


def _write(
    folder: Path, runs: "Sequence[Run]", rows: "pd.DataFrame", found: "pd.DataFrame", penalties: "pd.DataFrame"
) -> None:
    """Tables, then README.md; each whole or not at all."""
    from models.provenance import provenance
    from papers.comparison import LEAD, made_by, shape, write_page
    from papers.losses import UNITS, page_rows
    from papers.markdown import table

    where = folder.name if folder.is_absolute() else folder
    argv = f"python -m papers.hdpl {' '.join(run.typed for run in runs)} --out {where}"
    about: dict[str, Any] = {**provenance("cpu"), "argv": argv}
    tables = {"losses": rows, "comparison": found, "kl": penalties}
    units = {"losses": UNITS, "comparison": UNITS, "kl": KL_UNITS}
    run = runs[0]
    model, training = run.config["model"], run.config["training"]
    columns = list(penalties.columns)
    cells = [[f"{x:.4g}" if isinstance(x, float) else x for x in row] for row in penalties.itertuples(index=False)]
    commands = "\n".join(f"{r.command}   # commit {str(r.manifest.get('commit', 'unknown'))[:12]}" for r in runs)
    parts = [
        "# Hybrid dual-path projections against dense ones",
        LEAD.format(CARD),
        f"- Models: scale {run.manifest['scale']} ({shape(model)}); {run.manifest['steps']:,} steps of "
        f"{training['batch_size']} × {model['n_ctx']} tokens on `{run.config['data']['data']}`. The paper's: "
        "4 layers, width 512, 20,000 steps.\n"
        "- Same data, same order for both models of a seed; the paper's two saw different data (SPEC §5).\n"
        + made_by(about),
        f"## Losses\n\n{page_rows(found, rows, 'llama', 'paper')}",
        "## The penalty\n\nThe last logged training step; `_first` is the first logged one. `kl_clamped` is the share "
        "of tokens and projections whose KL lies above the clamp, where it has no gradient.\n\n"
        f"{table(columns, cells)}",
        f"## Commands\n\n```\n{commands}\n{argv}\n```",
    ]  # fmt: skip
    text = "\n\n".join(parts) + "\n"
    write_page(lambda files: text, tables, units, about, folder)


if __name__ == "__main__":
    command(main)
