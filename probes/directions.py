"""Directions between two sets of prompts, in every layer and stream, and what says that they mean anything.

    python -m probes.directions                                            indoor against outdoor sentences
    python -m probes.directions runs/kromcanon --a happy --b sad --out directions.parquet
    python -m probes.directions runs/seed0 runs/seed1 runs/seed2 --a harmful.jsonl --b harmless.jsonl
    python -m probes.directions runs/chat --a harmful.jsonl --b harmless.jsonl --template "User: {text}\\nAssistant:"

A direction is the difference of the sets' mean residual streams after a block, divided by its norm (SPEC §1.6).
Streams are those the model has (token and context; s0, s1, … of hyper-connections), `joint` is them one after the
other, `resid` what the head reads. auc and d are those of a direction from half of the prompts, on the other half;
shuffled are the same numbers with labels dealt at random. Several runs of one width are compared layer by layer with
the random baseline E|cos| = sqrt(2/(π d)), which holds for isotropic vectors; activations are not isotropic.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Seed, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import RunOptions, check_options, open_run, progress_bar, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.probes.direction_tables import Found
    from streamscope.probes.prompts.sets import PromptSet


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m probes.directions`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("lfa",)
    """Run folders, or bundled models."""
    a: str = "indoor"
    """The set that directions point to: .jsonl (field text), .txt, SUITE#CATEGORY, or happy, sad, indoor, outdoor."""
    b: str = "outdoor"
    """The set that they point away from."""
    pool: Literal["mean", "last"] = "mean"
    """Mean over positions (without BOS), or the last one."""
    template: str = "{text}"
    """What each prompt stands in, for example "User: {text}\\nAssistant:"; \\n is a new line."""
    draws: Whole = 20
    """Shuffles of the labels for the controls; 0: none."""
    seed: Seed = 0
    """Which halves are taken, and which shuffles."""
    out: Path | None = None
    """Write the table (.parquet) here, beside it the directions (.safetensors), the other tables and the figure."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, run, print, write."""
    options = parse(Options, argv, __doc__)
    runs = options.runs or ("lfa",)
    shared = RunOptions(run=runs[0], out=options.out, device=options.device)
    check_options(shared)
    if len(set(runs)) < len(runs):
        raise InputError("a run is named twice: its directions are its own")

    from streamscope.models.checkpoint import run_folder
    from streamscope.probes.direction_plots import plot
    from streamscope.probes.direction_tables import LAYER_UNITS, RUN_UNITS, STREAM_UNITS, between
    from streamscope.probes.prompts.sets import check_template, contrast

    template = options.template.replace("\\n", "\n")
    check_template(template)
    for run in runs:
        run_folder(run)
    sets = contrast(options.a, options.b)
    found = [_directions(replace(options, template=template), shared, run, sets) for run in runs]
    cosines = between(found)
    import pandas as pd

    layers = pd.concat([one.layers for one in found], ignore_index=True)
    streams = pd.concat([one.streams for one in found], ignore_index=True)
    for one in found:
        _print(one)
    if len(found) > 1:
        _compare(found, cosines)
    tables: dict[str, Any] = {"": (layers, LAYER_UNITS), "streams": (streams, STREAM_UNITS)}
    if len(cosines):
        tables["runs"] = (cosines, RUN_UNITS)
    title = f"{sets[0].name} − {sets[1].name}, {'mean over positions' if options.pool == 'mean' else 'last position'}"
    if options.out is not None:
        _save(options.out, found)
    about = {"runs": list(runs), "sets": [one.about for one in found], "draws": options.draws, "seed": options.seed}
    write_results(shared, tables, plot(found, cosines, title), **about)


def _directions(options: Options, shared: RunOptions, run: str, sets: "tuple[PromptSet, PromptSet]") -> "Found":
    """Load a run, run both sets through it, find the directions."""
    from streamscope.models.checkpoint import run_folder
    from streamscope.probes.direction_tables import find
    from streamscope.probes.prompts.alignment import check_tokenizer
    from streamscope.probes.prompts.sets import encode
    from streamscope.probes.stream_states import stream_states

    _, model = open_run(shared, run)
    tokenizer = check_tokenizer(model)
    one, other = (encode(s, tokenizer, model.cfg.n_ctx, options.template) for s in sets)
    bar = progress_bar(Path(run).name)
    a, b = (stream_states(model, rows.tokens, options.pool, progress=bar) for rows in (one, other))
    found = find(a, b, run=run, preset=model.config.name, draws=options.draws, seed=options.seed)
    about = {
        "run": str(run_folder(run)), "preset": model.config.name, "pool": options.pool, "template": options.template,
        "a": options.a, "b": options.b, "n_a": len(one.tokens), "n_b": len(other.tokens),
        "too_long": one.too_long + other.too_long, "repeated": sum(s.repeated for s in sets),
    }  # fmt: skip
    return replace(found, about=about)


def _print(found: "Found") -> None:
    """The layers of a run, then how alike its streams are."""
    from streamscope.probes.direction_tables import best_layer
    from streamscope.probes.undefined import legend

    a = found.about
    left_out = f", {a['too_long']} longer than the context left out" if a["too_long"] else ""
    left_out += f", {a['repeated']} repeated ones left out" if a["repeated"] else ""
    title = f"{found.preset} ({found.run}): {a['n_a']} {a['a']} against {a['n_b']} {a['b']}{left_out}"
    text = [
        "undefined" if auc != auc else f"{auc:.3f} ({low:.3f} … {high:.3f})"
        for auc, low, high in found.layers[["auc", "auc_low", "auc_high"]].itertuples(index=False)
    ]
    shown = found.layers.assign(**{"auc (95 %)": text})
    columns = ("layer", "stream", "norm", "shuffled_norm", "relative", "auc (95 %)", "d", "svd_cosine")
    show(shown, title, columns)
    if found.layers.loc[found.layers["stream"] == "resid", "d"].notna().any():
        at = best_layer(found.layers)
        print(f"best layer by d on held-out prompts: {at}; by norm: {best_layer(found.layers, 'norm')}")
        resid = found.layers[(found.layers["stream"] == "resid") & found.layers["auc"].notna()]
        apart = [f"L{layer}" for layer in resid.loc[resid["auc_low"] > 0.5, "layer"]]
        print(f"resid separates held-out prompts (95 % interval of AUC above 0.5) in: {', '.join(apart) or 'no layer'}")
    streams = found.streams
    if streams["concentration"].notna().any():
        cosine, chance = streams["stream_cosine"].mean(), streams["shuffled_cosine"].mean()
        control = f" (shuffled labels {chance:.4f})" if chance == chance else ""
        print(
            f"streams: mean cosine of their directions {cosine:.4f}{control}, concentration "
            f"{streams['concentration'].mean():.4f}, means over layers where defined"
        )
    if lines := legend(found.layers):
        print(lines)


def _compare(found: "list[Found]", cosines: "pd.DataFrame") -> None:
    """Mean |cosine| over layers of each pair of runs, and the pairs that have none."""
    if len(cosines):
        means = cosines.groupby(["run_a", "run_b", "kind", "stream"], sort=False)[["absolute", "random"]].mean()
        show(means.reset_index(), "mean |cosine| over layers of two runs; random: sqrt(2/(π d))")
    widths = Counter(one.width for one in found)
    if len(widths) > 1:
        print(f"runs of widths {', '.join(map(str, widths))}: only runs of equal width have cosines")


def _save(out: Path, found: "list[Found]") -> None:
    """OUT.safetensors, or with several runs OUT-<run>.safetensors, numbered where the names are equal."""
    from streamscope.probes.direction_files import save_directions
    from streamscope.probes.direction_tables import labels

    for one, label in zip(found, labels(found), strict=True):
        path = out.with_name(f"{out.stem if len(found) == 1 else f'{out.stem}-{label}'}.safetensors")
        save_directions(path, one, one.about)
        print(f"directions {path}")


if __name__ == "__main__":
    command(main)
