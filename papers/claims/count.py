"""Count the parameters of presets at the sizes that their papers print.

    python -m papers.claims.count
    python -m papers.claims.count llama hdpl --out results/parameter_counts/counts.parquet

Beside each stands its control, the dense model of its paper, and the share of parameters that it has fewer or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.parse import command, parse
from streamscope.instruments.command import check_results, finish

CONTROLS = {"llama": "", "hdpl": "llama", "gpt2": "", "canon": "gpt2", "kromhc": "gpt2", "kromcanon": "gpt2"}
"""Presets that are built in the sizes that their papers print -> the dense model of the same paper."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.claims.count`."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PRESET…")] = tuple(CONTROLS)
    """Presets to count."""
    out: Path | None = None
    """Write the table (.parquet) here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, count, print, write."""
    options = parse(Options, argv, __doc__)
    check_results(options.out, "papers.claims.count")

    import pandas as pd
    import torch

    from streamscope.cli.provenance import provenance
    from streamscope.instruments.result import Result
    from streamscope.instruments.undefined_cells import mark
    from streamscope.models.config.presets import preset
    from streamscope.models.transformer import StreamTransformer
    from streamscope.papers.comparison.tables import table_of

    def count(name: str) -> int:
        with torch.device("meta"):
            return StreamTransformer(preset(name, "paper")).n_params()

    rows = []
    for name in options.presets:
        n, control = count(name), CONTROLS.get(name, "")
        share = 1 - n / count(control) if control else float("nan")
        sizes = {"parameters": n, "millions": n / 1e6, "mebibytes": 4 * n / 2**20}
        rows.append({"preset": name, "control": control, **sizes, "fewer": share, "more": -share})
    found = pd.DataFrame(rows)
    found = mark(found, ["fewer", "more"], found["control"] == "", "no control")
    counts = table_of(found, "claims/count", "parameters at the size of the paper")
    finish(Result({"counts": counts}), options.out, provenance("cpu"))


if __name__ == "__main__":
    command(main)
