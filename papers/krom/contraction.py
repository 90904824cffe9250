"""Test on untrained models whether mixing contracts stream differences as the blog computes (KROM).

    python -m papers.krom.contraction
    python -m papers.krom.contraction --out contraction.parquet

The blog: at bias −2 a mixing operation contracts differences by |1 − 2s| = .76, sixteen of them to .012, "meaning 98.8%
of inter-stream difference is contracted away". But streams begin equal: what differs is written by the modules
themselves, each with unlike weights for the streams, and only those that follow mix it. The product speaks of what the
first module writes. Here KromCanon of the blog's size is built as its authors start it, where s is that of the bias and
nothing else; random tokens; every bias, and H_res = I, on the same weights.

    spread      ‖X − X̄‖ / ‖X‖ of the streams X [n, d] of a token after the last block, mean over tokens; X̄ their mean
    rank        exp(−Σ p ln p), p the squared singular values of X over their sum: 1 for copies, at most n
    contracted  1 − ‖X − X̄‖ at the bias / the same with H_res = I, each a mean over tokens
    predicted   1 − |1 − 2s|^modules
    gained      contracted at one bias − at another

Seeds of the weights and tokens are the units. What training makes of it is another question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from streamscope.cli.bounds import Bounds
from streamscope.cli.parse import command, parse
from streamscope.instruments.command import check_results, finish


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom.contraction`."""

    seeds: Annotated[int, Bounds(low=2, high=1000)] = 10
    """Models of each bias."""
    scale: str = "paper"
    """Size of the preset."""
    out: Path | None = None
    """Write the tables (.parquet) here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, build, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_results(options.out, "papers.krom.contraction", ("", "claims"))

    from streamscope.cli.provenance import provenance
    from streamscope.instruments.result import Result
    from streamscope.models.config.presets import preset
    from streamscope.papers.comparison.report import CLAIMS
    from streamscope.papers.comparison.tables import table_of
    from streamscope.papers.krom.contraction_measure import claims, measured, table

    quantities = measured(options.seeds, options.scale)
    modules = 2 * preset("kromcanon", options.scale).n_layers
    title = f"streams after {modules} modules, means over {options.seeds} untrained models"
    tables = {
        "contraction": table_of(table(quantities, modules), "krom/contraction", title),
        "claims": table_of(claims(quantities), "claims", "the blog's claims", CLAIMS),
    }
    about = {**provenance("cpu"), "seeds": options.seeds, "scale": options.scale}
    finish(Result(tables), options.out, about)


if __name__ == "__main__":
    command(main)
