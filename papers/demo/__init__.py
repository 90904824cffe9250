"""Measure trained models with probes, ablation and suppression, and write the findings as one page.

    python -m papers.demo stories/d-cas runs/demo/lfa --out runs/demo/page
    python -m papers.demo runs/lfa --pairs 1000 --documents 200

Takes one run or several of one tokenizer. FOLDER/index.html is the page, complete in itself; its folder
holds the tables as parquet, one per measure with the run as its first column. Prompts are held-out minimal pairs of
the built-in stories, documents those that the run was validated on. One to two minutes per zoo model on a core.
FOLDER/live.html is the live page of the first two runs. It needs the extra `view` and `python -m viewer.runtime`.
"""

from collections.abc import Sequence

from streamscope.cli.disk import check_folder
from streamscope.cli.errors import InputError
from streamscope.cli.parse import parse
from streamscope.papers.demo.options import Options


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure every run, write tables and page, print the summary."""
    options = parse(Options, argv, __doc__)
    if not options.runs:
        raise InputError("give a run folder or several: python -m papers.demo RUN RUN --out FOLDER")
    check_folder(options.out)

    from streamscope.papers.demo.report import write_report

    write_report(options)
