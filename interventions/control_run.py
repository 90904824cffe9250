"""A run and the model beside it: what the commands with --control share (their option, opening, tables, printing)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.errors import InputError
from streamscope.probes.command import INTERVAL, RunOptions, open_run, show

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class ControlOptions(RunOptions):
    """Arguments of the commands that measure a run, or a run and a control."""

    control: str | None = None
    """A control model of the same layers and heads to compare with: a run folder or a bundled model. The run itself
    may be named again; its differences are 0."""


def open_runs(options: ControlOptions) -> list[tuple[str, Any]]:
    """(name, model) of the run and, where one is given, of its control; the names differ.

    Raises `InputError` for a run that does not exist and a control of another shape.
    """
    from streamscope.models.checkpoint import run_folder

    runs = [options.run, *([options.control] if options.control is not None else [])]
    for run in runs:
        run_folder(run)
    found = [open_run(options, run) for run in runs]
    shapes = [(m.config.n_layers, m.config.n_heads) for _, m in found]
    if len(set(shapes)) > 1:
        (a, b), (c, d) = shapes
        raise InputError(
            f"--control {options.control} has {c} layers of {d} heads, the model {a} of {b}; "
            "heads can be compared between models of one shape"
        )
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        found[1] = (f"{names[1]}, control", found[1][1])
    return found


def check_tokens(options: ControlOptions, opened: Sequence[tuple[str, Any]], *, context: bool = False) -> None:
    """Whether a run and its control read the same tokens, so that documents and cases are the same in both.

    With `context` also whether they cut documents at the same length. Raises `InputError` for another tokenizer,
    vocabulary or context.
    """
    if len(opened) < 2:
        return
    from streamscope.probes.prompts.alignment import check_tokenizer

    texts = [(check_tokenizer(model), model.config.d_vocab) for _, model in opened]
    if len({(tokenizer.sha256, d_vocab) for tokenizer, d_vocab in texts}) > 1:
        (_, a), (_, b) = texts
        sizes = f" ({b} tokens, the model {a})" if a != b else ""
        raise InputError(
            f"--control {options.control} has another vocabulary{sizes}; "
            "what both are measured on must be the same tokens: train them with one tokenizer"
        )
    lengths = [model.config.n_ctx for _, model in opened]
    if context and len(set(lengths)) > 1:
        raise InputError(
            f"--control {options.control} has a context of {lengths[1]} tokens, the model {lengths[0]}; "
            "documents would be cut in different places"
        )


def named(names: Sequence[str], tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """Tables of several models as one, with the model in front."""
    import pandas as pd

    parts = [table.copy() for table in tables]
    for name, part in zip(names, parts, strict=True):
        part.insert(0, "model", name)
    return pd.concat(parts, ignore_index=True)


def named_with_control(names: Sequence[str], tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """`named` for two models, the table as it is for one."""
    return named(names, tables) if len(tables) > 1 else tables[0]


def show_differences(
    table: "pd.DataFrame", names: Sequence[str], keys: Sequence[str], *, units: str, top: int | None = None
) -> None:
    """Print a table of `model_differences`: a part per measure, and why cells are undefined.

    Of each measure the `top` rows with the largest differences; all, in their order, without.
    """
    import pandas as pd

    from streamscope.probes.undefined import legend

    shown = []
    for measure, rows in table.groupby("measure", sort=False):
        if top is not None:
            size = rows["difference"].abs().sort_values(ascending=False, kind="stable", na_position="last")
            rows = rows.reindex(size.index).head(top)
        title = f"{names[0]} minus {names[1]}: {measure}; 95 % over shared {units}"
        counted = ("n", "clusters") if "clusters" in rows else ("n",)
        show(rows, title, (*keys, "run", "control", "difference", INTERVAL, "p_holm", *counted), digits=4)
        shown.append(rows)
    if lines := legend(pd.concat(shown)):
        print(lines)
