"""Where does a prediction come from? Put single activations of one prompt into the run of another, and see.

    python -m interventions.patch                     the bundled LFA: streams, attention, FFN by position, every head
    python -m interventions.patch runs/kron --hooks token_pre context_pre z mlp.post --direction denoise noise
    python -m interventions.patch runs/kron --senders top3:recovery L1.mlp --out patch.parquet
    python -m interventions.patch --clean "Leo met a robot and a monkey. Built from metal, it" --answer " beeped"
        --corrupt "Leo met a robot and a monkey. Lonely and sad, it" --foil " lay" --by token

A pair is a clean and a corrupted prompt of equally many tokens: two texts of yours, or of a suite by --contrast: clue
(the same nouns, what follows calls for the other one), noun (another noun stands there), order (the two orders of a
minimal pair). Prompts without such a partner are left out and counted. The metric is ln p(answer) − ln p(foil) after
the last token; recovery is 0 at the corrupted run's value and 1 at the clean one's, undefined in pairs where the two
differ by less than --threshold. denoise puts the clean activation into the corrupted run, noise the reverse. Intervals
are over independent pairs. Beside it stands the first-order guess (attribution patching), and how far it is off.

Hooks by short names: z, q, k, v, pattern, attn_out, mlp_out, mlp.post, resid_pre, token_mid, context_post, s1_pre, …
--senders adds path patching: the effect of a head, L2.attn or L2.mlp through one reader (`interventions.path_patching`
says what is frozen); top3:recovery are the heads that recovered most, on these same pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from models.cli import command, parse
from models.errors import InputError
from models.head_spec import Head, score_names
from probes.command import INTERVAL, progress_bar, show, write_results
from probes.report import ProbeOptions, check_options, open_run

if TYPE_CHECKING:
    import pandas as pd

    from interventions.pairs import Pairs

EFFECT = "effect, nats (95 %)"


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m interventions.patch`."""

    suite: str = "stories"
    """stories, competing, story-events, coreference, a JSONL file, or FORMAT:PATH of a published set."""
    contrast: Literal["clue", "noun", "order"] = "clue"
    """What differs between the two prompts of a pair."""
    clean: str | None = None
    """A clean text of your own; with --corrupt, --answer and --foil instead of a suite."""
    corrupt: str | None = None
    """The corrupted text, of equally many tokens."""
    answer: str | None = None
    """What follows the clean text, with its leading space; its first token counts."""
    foil: str | None = None
    """What follows the corrupted text."""
    pairs: int = 20
    """About so many pairs, spread over the suite."""
    hooks: tuple[str, ...] = ()
    """Hooks to patch; default: the streams entering each layer, attn_out, mlp_out, z."""
    layers: tuple[str, ...] = ()
    """Layers as 3 or 2-4; default: all."""
    by: Literal["auto", "role", "head", "head-role", "token", "all"] = "auto"
    """What is patched at once: all positions of a role, a head, a head at a role, one position, or everything."""
    direction: tuple[Literal["denoise", "noise"], ...] = ("denoise",)
    """Clean into corrupted, or corrupted into clean."""
    method: tuple[Literal["exact", "attribution"], ...] = ("exact", "attribution")
    """Run every patch, guess it from one gradient, or both."""
    senders: tuple[str, ...] = ()
    """Path patching from heads (L2.H3, top3:recovery), L2.attn or L2.mlp."""
    threshold: float = 0.5
    """Nats between clean and corrupted below which recovery is undefined."""
    top: int = 12
    """Rows to print; the written table holds all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, patch, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    _check(options)

    from html import escape

    import numpy as np

    from interventions.attribution import attribute_pairs
    from interventions.patch_tables import ERROR_UNITS, UNITS, cell_table, error_table, plot
    from interventions.patching import default_spots, patch_pairs, plan, spots
    from interventions.steer import parse_layers
    from probes.undefined import legend

    name, model = open_run(options)
    layers = parse_layers(options.layers, model.config.n_layers) or None
    chosen = spots(model, options.hooks or default_spots(model))
    found, title = _pairs(options, model)
    pairs = found.pairs
    cells = plan(model, pairs, chosen, options.by if options.by != "token" else "role", layers)
    tables: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    rows, errors = [], []
    for direction in dict.fromkeys(options.direction):
        exact = guessed = None
        if "exact" in options.method:
            bar = progress_bar(f"{direction}: {len(cells)} patches")
            exact = patch_pairs(model, pairs, cells, direction, progress=bar)
        if "attribution" in options.method:
            guessed = attribute_pairs(model, pairs, cells, direction, progress=progress_bar("attribution"))
        clean, corrupt = (exact.clean, exact.corrupt) if exact is not None else _baselines(model, pairs)
        table = cell_table(cells, pairs, exact, guessed, options.threshold, clean - corrupt, direction)
        heading = f"{name}, {title}: clean {np.mean(clean):+.3f}, corrupted {np.mean(corrupt):+.3f} nats; {direction}"
        _print(heading, table, options)
        rows.append(table)
        if exact is not None and guessed is not None:
            errors.append(error_table(cells, exact.effect, guessed, direction))
            show(errors[-1].drop(columns="direction"), f"{direction}: attribution against the exact effect, nats")
            if lines := legend(errors[-1]):
                print(lines)
        figures["" if not figures else direction] = plot(table, escape(f"{name}: {direction}, {title}"))
    import pandas as pd

    tables[""] = (pd.concat(rows, ignore_index=True), UNITS)
    if errors:
        tables["attribution"] = (pd.concat(errors, ignore_index=True), ERROR_UNITS)
    if options.senders:
        tables["paths"], figures["paths"] = _paths(options, name, model, pairs, rows[0])
    about = {"suite": options.suite, "contrast": options.contrast, "pairs": len(pairs), "left_out": found.left_out}
    write_results(options, tables, figures, **about, threshold=options.threshold, what=title)


def _check(options: Options) -> None:
    """Raise `InputError` for options that do not go together, before anything is loaded."""
    own = (options.clean, options.corrupt, options.answer, options.foil)
    if any(x is not None for x in own) and any(x is None for x in own):
        raise InputError("a pair of your own needs all of --clean, --corrupt, --answer and --foil")
    if not options.direction or not options.method:
        raise InputError("give at least one --direction and one --method")
    if not options.threshold > 0:
        raise InputError(f"--threshold {options.threshold}: nats above 0, for recovery divides by the difference")
    if options.pairs < 1:
        raise InputError(f"--pairs {options.pairs}: at least 1")
    if options.top < 1:
        raise InputError(f"--top {options.top}: at least 1")
    if strange := score_names(options.senders) - {"recovery"}:
        raise InputError(f"--senders rank heads by recovery, not {', '.join(sorted(strange))}")


def _pairs(options: Options, model: Any) -> "tuple[Pairs, str]":
    """The pairs, and what they are in words."""
    from interventions.pairs import Pairs, by_token, choose_pairs, make_pairs, own_pair
    from probes.prompts import align, check_tokenizer, load_suite

    tokenizer = check_tokenizer(model)
    if options.clean is not None:
        assert options.corrupt is not None and options.answer is not None and options.foil is not None
        pair = own_pair(tokenizer, options.clean, options.corrupt, options.answer, options.foil)
        if len(pair.clean) > model.config.n_ctx:
            raise InputError(f"the text has {len(pair.clean)} tokens, the context holds {model.config.n_ctx}")
        return Pairs((pair,)), f"one pair, {options.answer!r} against {options.foil!r}"
    suite = load_suite(options.suite, n=options.n, seed=options.seed)
    every = make_pairs(align(suite, tokenizer, model.config.n_ctx), tokenizer, options.contrast)
    found = choose_pairs(every, options.pairs)
    if found.left_out:
        print(f"{suite.name} by {options.contrast}: {len(every.pairs)} pairs{found.left_out}")
    title = f"{len(found.pairs)} pairs of {suite.name} by {options.contrast}"
    if options.by == "token":
        found = Pairs(tuple(by_token(found.pairs, tokenizer)), found.filtered)
    return found, title


def _baselines(model: Any, pairs: Any) -> tuple[Any, Any]:
    """Log-odds of the clean and the corrupted prompts, unpatched."""
    import numpy as np

    from interventions.batch import answer_log_probs

    answers = [[p.answer, p.foil] for p in pairs]
    odds = []
    for tokens in ([p.clean for p in pairs], [p.corrupt for p in pairs]):
        log_p = answer_log_probs(model, tokens, [p.last for p in pairs], answers, [])
        odds.append(np.asarray(log_p[0, :, 0] - log_p[0, :, 1]))
    return odds[0], odds[1]


def _paths(options: Options, name: str, model: Any, pairs: Any, table: "pd.DataFrame") -> Any:
    """((table, units), figure) of path patching in the first direction."""
    from interventions.patch_tables import UNITS, edge_table, plot_edges
    from interventions.path_patching import edges_of, parse_senders, patch_edges

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
    edges = edges_of(model, parse_senders(options.senders, model, scores))
    direction = options.direction[0]
    found = patch_edges(model, pairs, edges, direction, progress=progress_bar(f"{len(edges)} paths"))
    paths = edge_table(edges, pairs, found, options.threshold)
    shown = paths.reindex(paths["effect"].abs().sort_values(ascending=False, kind="stable").index).head(options.top)
    columns = ("sender", "reader", EFFECT, "recovery", INTERVAL, "p_holm", "n")
    show(
        shown.assign(**{EFFECT: _intervals(shown)}),
        f"{direction}: the {len(shown)} strongest of {len(paths)} paths",
        columns,
    )
    return (paths, UNITS), plot_edges(paths, f"{name}: paths, {direction}, {len(pairs)} pairs")


def _intervals(table: "pd.DataFrame") -> list[str]:
    """Effects with their intervals, in text."""
    rows = table[["effect", "effect_low", "effect_high"]].itertuples(index=False)
    return [f"{x:+.3f}" + (f" ({a:+.3f} … {b:+.3f})" if a == a else "") for x, a, b in rows]


def _print(heading: str, table: "pd.DataFrame", options: Options) -> None:
    """The strongest cells, and why cells are undefined."""
    from rich.markup import escape

    from probes.undefined import legend

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


if __name__ == "__main__":
    command(main)
