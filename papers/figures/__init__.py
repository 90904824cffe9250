"""Draw the figures and tables of the five papers from our results, next to the printed values.

    python -m papers.lfa --figure list                          what there is, and what draws or measures it
    python -m papers.lfa --figure 7 --format html               lfa-figure-7.html, of the tables that are shipped
    python -m papers.dst --figure all --out figures             every figure of DST into a folder
    python -m papers.pls --table 2                              printed and measured, row by row, with verdicts
    python -m papers.lfa --figure 4 --tables results/mine       of tables of one's own comparison
    python -m papers --out site                                 all figures of all papers, with their claims

Nothing is trained or measured here. Axes and order are the paper's. Next to our values stand the numbers that the
paper prints, but none that could only be read off its pictures.
"""

from typing import Any


def drawn(paper: str, options: Any) -> bool:
    """Draw or list what --figure and --table ask for; False where neither is given, and where runs are: these are
    measured first, and drawn by `papers.scales.at_scale`.

    Raises `InputError` for numbers that the paper does not have, for figures that no result table has, and where a
    table or what writes the format is missing; nothing is written then.
    """
    if options.runs or not (options.figure or options.table):
        return False
    from streamscope.papers.figures.requests import show

    show(paper, options)
    return True
