"""Compare our outputs with those of the authors' own code on copied weights.

    python -m papers.peers --hyper-connections site-packages --kromhc KromHC --hdpl HDPL --kromcanon kromcanon

Each option is a clone (of wz1119/KromHC, VladimerKhasia/HDPL, teilomillet/kromcanon), or the folder with the installed
package hyper-connections. Its code is run from there: name only folders whose code you trust. A random module of
theirs is saved in its own format, read by `papers.peers.importers` and given the same input; kromcanon needs the
package mlx (mlx[cpu] on Linux), the two of hyper-connections einops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamscope.cli.bounds import Seed
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.instruments.command import finish
from streamscope.instruments.options import check_out


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.peers`."""

    hyper_connections: Path | None = None
    """Folder that holds the package hyper_connections of lucidrains."""
    kromhc: Path | None = None
    """Clone of wz1119/KromHC."""
    hdpl: Path | None = None
    """Clone of VladimerKhasia/HDPL."""
    kromcanon: Path | None = None
    """Clone of teilomillet/kromcanon."""
    seed: Seed = 0
    """Of the random weights and inputs."""
    out: Path | None = None
    """Write the table (.parquet) here."""


COLUMNS = (
    ("peer", "code", "name", "whose code"),
    ("what", "module", "name", "what was compared"),
    ("stored", "stored", "class", "dtype of the weights on disk"),
    ("computed", "computed", "class", "dtype of the computation"),
    ("difference", "largest difference", "share of the largest output of theirs", "between ours and theirs", ".1e"),
    ("roundings", "roundings", "the same, in machine epsilons of the dtype that both computed in", "of it", ".1f"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, compare, print, write."""
    options = parse(Options, argv, __doc__)
    folders = {name: getattr(options, name) for name in ("hyper_connections", "kromhc", "hdpl", "kromcanon")}
    if not any(folders.values()):
        raise InputError("name the folder of somebody's code: --hyper-connections, --kromhc, --hdpl or --kromcanon")
    if options.out is not None:
        check_out(options.out, "papers.peers")

    import pandas as pd
    import torch

    from streamscope.cli.provenance import provenance
    from streamscope.instruments.result import Result
    from streamscope.instruments.table import Column, Table
    from streamscope.papers.peers.measure import PEERS

    torch.manual_seed(options.seed)  # what theirs starts from
    rows = [row for name, folder in folders.items() if folder is not None for row in PEERS[name](folder, options.seed)]

    title = "largest difference between our outputs and theirs, with their weights"
    columns = [Column(name=n, title=t, unit=u, doc=d, format="".join(f)) for n, t, u, d, *f in COLUMNS]
    table = Table(pd.DataFrame(rows), tuple(columns), title=title)
    finish(Result({"peers": table}), options.out, {**provenance("cpu"), "instrument": "papers.peers"})
