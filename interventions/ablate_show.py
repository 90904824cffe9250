"""What `python -m interventions.ablate` prints: single heads beside their controls, sets with their interactions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interventions.control_run import show_differences
from probes.command import INTERVAL, show

if TYPE_CHECKING:
    import pandas as pd

CONTROL, INTERACTION = "above control (95 %)", "interaction (95 %)"
ABOVE = ("control", CONTROL, "p_above_holm")
PRINTED = 40
"""Rows of differences that are printed: as many as a model of these papers has heads."""


def print_ablations(title: str, table: "pd.DataFrame", effect: str, columns: tuple[str, ...]) -> None:
    """A table of single heads with its `columns`, or of sets with their interactions, the strongest of many.

    Intervals stand in one column with what they are of; below are the reasons of undefined cells.
    """
    from interventions.interactions import strongest
    from probes.undefined import legend

    if "interaction" in table:
        shown = strongest(table)
        few, every = shown["head"].nunique(), table["head"].nunique()
        if few < every:
            has = table["interaction"].notna().any()
            title += (
                f"; {few} of {every} sets, those with the strongest interaction" if has else f"; {few} of {every} sets"
            )
        columns = (effect, INTERVAL, "p_holm", "p_above_holm", INTERACTION, "p_interaction_holm")
        both = _with_interval(shown, INTERACTION, "interaction")
    else:
        shown = table
        both = _with_interval(table, CONTROL, "above")
    if not table["draws"].any():
        columns = tuple(name for name in columns if name not in (*ABOVE, "p_rank"))
    both = both.assign(scale=[f"{g:g}" for g in both["scale"]])
    show(both, title, ("head", "scale", *columns), digits=4)
    if lines := legend(shown):
        print(lines)


def print_differences(table: "pd.DataFrame", names: Sequence[str], units: str) -> None:
    """Run minus control: every row, of more than `PRINTED` of a measure the largest."""
    shown = table.assign(scale=[f"{g:g}" for g in table["scale"]])
    many = table.groupby("measure").size().max() > PRINTED
    show_differences(shown, names, ("head", "scale"), units=units, top=PRINTED if many else None)


def _with_interval(table: "pd.DataFrame", name: str, of: str) -> "pd.DataFrame":
    rows = zip(table[of], table[f"{of}_low"], table[f"{of}_high"], strict=True)
    return table.assign(**{name: [_text(*row) for row in rows]})


def _text(value: float, low: float, high: float) -> str:
    """A number with its interval."""
    if value != value:
        return "undefined"
    return f"{value:+.4f}" + (f" ({low:+.4f} … {high:+.4f})" if low == low else "")
