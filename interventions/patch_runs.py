"""What `python -m interventions.patch` does with each model: patch, guess, follow paths, compare, print."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.interventions.control_run import named_with_control, show_differences
from streamscope.models.errors import InputError
from streamscope.models.head_spec import Head, score_names
from streamscope.probes.command import INTERVAL, progress_bar, show

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from streamscope.interventions.patch import Options
    from streamscope.interventions.patching import Cell, Patched, Spot

EFFECT = "effect, nats (95 %)"


@dataclass(frozen=True)
class Measured:
    """What patching one model in one direction gave: exact and guessed effects, clean − corrupted, tables."""

    exact: "Patched | None"
    guessed: "np.ndarray | None"
    gap: "np.ndarray"
    table: "pd.DataFrame"
    errors: "pd.DataFrame | None"


def patch_model(
    options: "Options", name: str, model: Any, pairs: Any, cells: "Sequence[Cell]", direction: Any, title: str
) -> Measured:
    """Every cell of every pair in one direction, printed."""
    import numpy as np

    from streamscope.interventions.attribution import attribute_pairs
    from streamscope.interventions.patch_tables import cell_table, error_table
    from streamscope.interventions.patching import patch_pairs
    from streamscope.probes.undefined import legend

    exact = guessed = errors = None
    if "exact" in options.method:
        bar = progress_bar(f"{name}, {direction}: {len(cells)} patches")
        exact = patch_pairs(model, pairs, cells, direction, progress=bar)
    if "attribution" in options.method:
        bar = progress_bar(f"{name}: attribution")
        guessed = attribute_pairs(model, pairs, cells, direction, progress=bar)
    clean, corrupt = (exact.clean, exact.corrupt) if exact is not None else _baselines(model, pairs)
    table = cell_table(cells, pairs, exact, guessed, options.threshold, clean - corrupt, direction)
    heading = f"{name}, {title}: clean {np.mean(clean):+.3f}, corrupted {np.mean(corrupt):+.3f} nats; {direction}"
    show_cells(heading, table, options)
    if exact is not None and guessed is not None:
        errors = error_table(cells, exact.effect, guessed, direction)
        show(errors.drop(columns="direction"), f"{direction}: attribution against the exact effect, nats")
        if lines := legend(errors):
            print(lines)
    return Measured(exact, guessed, clean - corrupt, table, errors)


def spots_of_control(options: "Options", control: Any, hooks: Sequence[str]) -> "list[Spot]":
    """`spots` of the control. Raises `InputError` for a hook that it lacks or only shows, naming the control."""
    from streamscope.interventions.patching import spots

    try:
        return spots(control, hooks)
    except InputError as error:
        raise InputError(
            f"--control {options.control}: {error}; give --hooks that both models have, as attn_out mlp_out z"
        ) from None


def check_senders(options: "Options", nets: Sequence[Any]) -> None:
    """Raise `InputError`, before anything is measured, for senders from which a model has no paths."""
    from streamscope.interventions.path_patching import edges_of, parse_senders

    chosen = [spec for spec in options.senders if not score_names([spec])]
    ranked = ["L0.H0"] if len(chosen) < len(options.senders) else []  # stands for the heads yet to be ranked
    for model in nets if options.senders else ():
        edges_of(model, parse_senders([*chosen, *ranked], model))


def differences(
    options: "Options", names: Sequence[str], pairs: Any, cells: "Sequence[Sequence[Cell]]", each: Sequence[Measured]
) -> "pd.DataFrame":
    """The model minus its control in one direction, printed."""
    from streamscope.interventions.case_differences import compare_patches
    from streamscope.interventions.patch_tables import cell_labels

    direction, (run, control) = each[0].table["direction"].iloc[0], each
    table = compare_patches(
        (cell_labels(cells[0]), cell_labels(cells[1])), (run.exact, control.exact), (run.guessed, control.guessed),
        (run.gap, control.gap), [p.cluster for p in pairs], options.threshold, ("hook",), direction,
    )  # fmt: skip
    print(direction)
    show_differences(table, names, ("hook", "layer", "head", "position"), units="pairs", top=options.top)
    return table


def _baselines(model: Any, pairs: Any) -> tuple[Any, Any]:
    """Log-odds of the clean and the corrupted prompts, unpatched."""
    import numpy as np

    from streamscope.interventions.batch import answer_log_probs

    answers = [[p.answer, p.foil] for p in pairs]
    odds = []
    for tokens in ([p.clean for p in pairs], [p.corrupt for p in pairs]):
        log_p = answer_log_probs(model, tokens, [p.last for p in pairs], answers, [])
        odds.append(np.asarray(log_p[0, :, 0] - log_p[0, :, 1]))
    return odds[0], odds[1]


def patch_paths(options: "Options", opened: Sequence[tuple[str, Any]], pairs: Any, table: "pd.DataFrame") -> Any:
    """(tables with units by name, figure) of path patching in the first direction; `table` ranks the run's heads."""
    from streamscope.interventions.patch_plots import plot_edges
    from streamscope.interventions.patch_tables import UNITS, edge_labels, edge_table
    from streamscope.interventions.path_patching import edges_of, parse_senders, patch_edges

    names, model = [name for name, _ in opened], opened[0][1]
    scores: dict[str, dict[Head, float]] = {}
    if score_names(options.senders):
        column = "recovery" if "recovery" in table and table["recovery"].notna().any() else None
        of_heads = table[(table["hook"] == "z") & (table["index"] >= 0) & (table["position"] == "all")]
        every = model.config.n_layers * model.config.n_heads
        if column is None or len(of_heads) != every:
            raise InputError(
                "top3:recovery ranks every head by its exact patch: let --hooks hold z, by head, all layers"
            )
        sign = -1.0 if options.direction[0] == "noise" else 1.0
        cells = of_heads[["layer", "index", column]].itertuples(index=False)
        scores["recovery"] = {Head(int(layer), int(head)): sign * value for layer, head, value in cells}
    senders, direction = parse_senders(options.senders, model, scores), options.direction[0]
    edges = [edges_of(net, senders) for _, net in opened]
    found, each = [], []
    for (name, net), some in zip(opened, edges, strict=True):
        found.append(patch_edges(net, pairs, some, direction, progress=progress_bar(f"{name}: {len(some)} paths")))
        paths = edge_table(some, pairs, found[-1], options.threshold)
        shown = paths.reindex(paths["effect"].abs().sort_values(ascending=False, kind="stable").index)
        shown = shown.head(options.top)
        title = f"{name}, {direction}: the {len(shown)} strongest of {len(paths)} paths"
        columns = ("sender", "reader", EFFECT, "recovery", INTERVAL, "p_holm", "n")
        show(shown.assign(**{EFFECT: _intervals(shown)}), title, columns)
        each.append(paths)
    together = named_with_control(names, each)
    tables: dict[str, Any] = {"paths": (together, UNITS)}
    if len(found) > 1:
        from streamscope.interventions.case_differences import PATCH_UNITS, compare_patches

        labels, gaps = (edge_labels(edges[0]), edge_labels(edges[1])), [one.clean - one.corrupt for one in found]
        compared = compare_patches(
            labels, (found[0], found[1]), (None, None), (gaps[0], gaps[1]), [p.cluster for p in pairs],
            options.threshold, ("sender",), direction,
        )  # fmt: skip
        show_differences(compared, names, ("sender", "reader"), units="pairs", top=options.top)
        tables["paths-control"] = (compared, PATCH_UNITS)
    return tables, plot_edges(together, f"{' and '.join(names)}: paths, {direction}, {len(pairs)} pairs")


def _intervals(table: "pd.DataFrame") -> list[str]:
    """Effects with their intervals, in text."""
    rows = table[["effect", "effect_low", "effect_high"]].itertuples(index=False)
    return [f"{x:+.3f}" + (f" ({a:+.3f} … {b:+.3f})" if a == a else "") for x, a, b in rows]


def show_cells(heading: str, table: "pd.DataFrame", options: "Options") -> None:
    """The strongest cells, and why cells are undefined."""
    from rich.markup import escape

    from streamscope.probes.undefined import legend

    exact = "effect" in table
    key = "effect" if exact else "attribution"
    order = table[key].abs().sort_values(ascending=False, kind="stable").index
    best = table.reindex(order).head(options.top)
    shown = best.assign(**({EFFECT: _intervals(best)} if exact else {}))
    places = zip(best["head"], best["position"], strict=True)
    shown["where"] = [escape(f"{h} {p}" if h and p != "all" else h or p) for h, p in places]
    print(heading)
    few = int((table["n"] - table["defined"]).max())
    if few:
        print(
            f"recovery is undefined in up to {few} pairs, where the runs differ by less than {options.threshold:g} nats"
        )
    columns = ["hook", "layer", "where", *((EFFECT, "recovery", INTERVAL, "p_holm") if exact else ())]
    columns += ["attribution", "attributed"] if "attribution" in table else []
    show(shown, f"the {len(best)} strongest of {len(table)} patches", (*columns, "n", "clusters"))
    if lines := legend(best):
        print(lines)
