"""Where does a prediction come from? Put single activations of one prompt into the run of another, and see.

    python -m interventions.patch                     the bundled LFA: streams, attention, FFN by position, every head
    python -m interventions.patch runs/kron --hooks token_pre context_pre z mlp.post --direction denoise noise
    python -m interventions.patch runs/kron --senders top3:recovery L1.mlp --out patch.parquet
    python -m interventions.patch --clean "Leo met a robot and a monkey. Built from metal, it" --answer " beeped"
        --corrupt "Leo met a robot and a monkey. Lonely and sad, it" --foil " lay" --by token
    python -m interventions.patch runs/lfa --control runs/std-t --hooks attn_out mlp_out z

A pair is a clean and a corrupted prompt of equally many tokens: two texts of yours, or of a suite by --contrast: clue
(the same nouns, what follows calls for the other one), noun (another noun stands there), order (the two orders of a
minimal pair). Prompts without such a partner are left out and counted. The metric is ln p(answer) − ln p(foil) after
the last token; recovery is 0 at the corrupted run's value and 1 at the clean one's, undefined in pairs where the two
differ by less than --threshold. denoise puts the clean activation into the corrupted run, noise the reverse. Intervals
are over independent pairs. Beside it stands the first-order guess (attribution patching), and how far it is off.

Hooks by short names: z, q, k, v, pattern, attn_out, mlp_out, mlp.post, resid_pre, token_mid, context_post, s1_pre, …
--senders adds path patching: the effect of a head, L2.attn or L2.mlp through one reader (`interventions.path_patching`
says what is frozen); top3:recovery are the heads that recovered most, on these same pairs. --control patches the same
places of the same pairs in a second model with the run's tokenizer, and gives the difference of the effects and of the
recoveries, paired by pair; the senders are those of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.interventions.control_run import ControlOptions, check_tokens, named_with_control, open_runs
from streamscope.models.bounds import Count, Positive
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.models.head_spec import score_names
from streamscope.probes.command import write_results
from streamscope.probes.report import ProbeOptions, check_options

if TYPE_CHECKING:
    from streamscope.interventions.pairs import Pairs


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions, ControlOptions):
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
    pairs: Count = 20
    """About so many pairs, spread over the suite."""
    hooks: tuple[str, ...] = ()
    """Hooks to patch, also embed, pos_embed, ln_final.normalized; default: the streams entering each layer, attn_out,
    mlp_out, z."""
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
    threshold: Positive = 0.5
    """Nats between clean and corrupted below which recovery is undefined."""
    top: Count = 12
    """Rows to print; the written table holds all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, patch, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    _check(options)

    from html import escape

    import pandas as pd

    from streamscope.interventions.patch_plots import plot
    from streamscope.interventions.patch_runs import (
        check_senders,
        differences,
        patch_model,
        patch_paths,
        spots_of_control,
    )
    from streamscope.interventions.patch_tables import ERROR_UNITS, UNITS
    from streamscope.interventions.patching import default_spots, plan, spots
    from streamscope.interventions.steer import parse_layers

    opened = open_runs(options)
    names, model = [name for name, _ in opened], opened[0][1]
    check_tokens(options, opened)
    layers = parse_layers(options.layers, model.config.n_layers) or None
    hooks = options.hooks or default_spots(model)
    chosen = [spots(model, hooks), *(spots_of_control(options, net, hooks) for _, net in opened[1:])]
    check_senders(options, [net for _, net in opened])
    found, title = _pairs(options, model, min(net.config.n_ctx for _, net in opened))
    pairs, by = found.pairs, options.by if options.by != "token" else "role"
    cells = [plan(net, pairs, some, by, layers) for (_, net), some in zip(opened, chosen, strict=True)]
    tables: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    rows, errors, compared = [], [], []
    for direction in dict.fromkeys(options.direction):
        each = [
            patch_model(options, name, net, pairs, some, direction, title)
            for (name, net), some in zip(opened, cells, strict=True)
        ]
        rows.append(named_with_control(names, [one.table for one in each]))
        if all(one.errors is not None for one in each):
            errors.append(named_with_control(names, [one.errors for one in each if one.errors is not None]))
        if len(each) > 1:
            compared.append(differences(options, names, pairs, cells, each))
        both = escape(f"{' and '.join(names)}: {direction}, {title}")
        figures["" if not figures else direction] = plot(rows[-1], both)
        if len(rows) == 1:
            ranked = each[0].table
    tables[""] = (pd.concat(rows, ignore_index=True), UNITS)
    if errors:
        tables["attribution"] = (pd.concat(errors, ignore_index=True), ERROR_UNITS)
    if options.senders:
        parts, figures["paths"] = patch_paths(options, opened, pairs, ranked)
        tables |= parts
    if compared:
        from streamscope.interventions.case_differences import PATCH_UNITS

        tables["control"] = (pd.concat(compared, ignore_index=True), PATCH_UNITS)
    about = {"suite": options.suite, "contrast": options.contrast, "pairs": len(pairs), "left_out": found.left_out}
    about |= {"threshold": options.threshold, "what": title, "control": options.control}
    write_results(options, tables, figures, **about)


def _check(options: Options) -> None:
    """Raise `InputError` for options that do not go together, before anything is loaded."""
    own = (options.clean, options.corrupt, options.answer, options.foil)
    if any(x is not None for x in own) and any(x is None for x in own):
        raise InputError("a pair of your own needs all of --clean, --corrupt, --answer and --foil")
    if not options.direction or not options.method:
        raise InputError("give at least one --direction and one --method")
    if strange := score_names(options.senders) - {"recovery"}:
        raise InputError(f"--senders rank heads by recovery, not {', '.join(sorted(strange))}")


def _pairs(options: Options, model: Any, n_ctx: int) -> "tuple[Pairs, str]":
    """The pairs that a context of `n_ctx` tokens holds, and what they are in words."""
    from streamscope.interventions.pairs import Pairs, by_token, choose_pairs, make_pairs, own_pair
    from streamscope.probes.prompts import align, check_tokenizer, load_suite
    from streamscope.probes.stats.estimators import read_clusters

    tokenizer = check_tokenizer(model)
    if options.clean is not None:
        assert options.corrupt is not None and options.answer is not None and options.foil is not None
        pair = own_pair(tokenizer, options.clean, options.corrupt, options.answer, options.foil)
        if len(pair.clean) > n_ctx:
            raise InputError(f"the text has {len(pair.clean)} tokens, the context holds {n_ctx}")
        return Pairs((pair,)), f"one pair, {options.answer!r} against {options.foil!r}"
    suite = load_suite(options.suite, n=options.n, seed=options.seed)
    every = make_pairs(align(suite, tokenizer, n_ctx), tokenizer, options.contrast)
    found = choose_pairs(every, options.pairs)
    if found.left_out:
        print(f"{suite.name} by {options.contrast}: {len(every.pairs)} pairs{found.left_out}")
    words = read_clusters([p.cluster for p in found.pairs], len(found.pairs)).shared is not None
    title = f"{len(found.pairs)} pairs of {suite.name} by {options.contrast}, 95 % for new "
    title += "words" if words else "texts"
    if options.by == "token":
        found = Pairs(tuple(by_token(found.pairs, tokenizer)), found.filtered)
    return found, title


if __name__ == "__main__":
    command(main)
