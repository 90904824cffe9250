"""Judge claims about one model, with its cases or documents as units.

    python -m papers.claims.single results/bundled_claims

`claims.toml` in the folder says, per claim, which row of which table in it holds what the claim is about, and on
which side of which limit it must lie. Of an order between architectures this says nothing: that needs training seeds.

    value       what was measured, with the 95 % interval of the table
    difference  the measured value − limit; limit − value where the claim says below, limit − |value| where it says
                within; 95 % interval of the table
    p           the named column of the table, else Student's p of that interval on the limit's side, with that
                interval's degrees of freedom (`single_judged.interval_df`; cases − 1 where the table has no p of the
                value); Holm over all claims of the folder
    direction   `papers.comparison.verdicts`, one training seed; a claim that says within has no smallest effect of
                interest, because its limit is one

A curve whose span (`flat`) may be 0 has no shape to judge: it is not resolved, or negligible where the whole
interval lies within ± the smallest effect of interest. Before all that the gate (`probes.phenomena`) is asked. `has`: a
claim about something that is absent in the model gets "no such head". `does`: a claim about a task whose log-odds are
not resolved above chance gets "the model cannot do the task". Beside the table `trained.json` says how the models of
all tables of the folder were trained.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import tyro

from streamscope.cli.parse import command, parse

GATE = Path(__file__).resolve().parents[2] / "results" / "specimens" / "phenomena.parquet"
OUT = "claims.parquet"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.claims.single`."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder with claims.toml and the tables that it names; claims.parquet and trained.json are written there."""
    gate: Path = GATE
    """The table of `probes.phenomena`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, judge, print, write."""
    options = parse(Options, argv, __doc__)

    from streamscope.cli.disk import check_writable, read_toml, write_text
    from streamscope.cli.output_lock import one_at_a_time
    from streamscope.cli.provenance import provenance
    from streamscope.instruments.table import check_own, write_table
    from streamscope.papers.claims.single_judged import CLAIMS, File, judged, trained
    from streamscope.papers.comparison import TRAINED
    from streamscope.papers.comparison.tables import table_of, units

    given = cast(File, read_toml(options.folder / CLAIMS, File, "give a folder with claims.toml"))
    check_own(options.folder / OUT, "papers.claims.single")
    check_writable(options.folder / OUT)
    table = judged(given["claim"], options.folder, options.gate)
    columns = ("claim", "quantity", "difference", "p_holm", "direction")
    table_of(table, "claims/single", f"{len(table)} claims about one model each", columns).print()
    own = units(table, "claims/single")
    facts = json.dumps(trained(options.folder), indent=1, ensure_ascii=False) + "\n"
    with one_at_a_time(options.folder):
        write_table(table, options.folder / OUT, units=own, about=provenance("cpu"))
        write_text(options.folder / TRAINED, facts)
    print(f"written {options.folder / OUT} and {TRAINED}")


if __name__ == "__main__":
    command(main)
