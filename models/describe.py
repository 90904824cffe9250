"""Describe a model before training: parameters by part, mixing, FLOPs, and hooks with shapes.

python -m models.describe lfa
python -m models.describe dst-kron --scale small --set residual.order=parallel
python -m models.describe --run runs/lfa
python -m models.describe hf:FOLDER
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import counted, print_grid, visible
from streamscope.models.config.presets import PRESETS, preset
from streamscope.models.config.serialization import parse_set
from streamscope.models.run_names import foreign_name, run_folder

if TYPE_CHECKING:
    from streamscope.models.config import ModelConfig
    from streamscope.models.transformer import StreamTransformer


@dataclass(frozen=True, kw_only=True)
class Options:
    preset: Annotated[str, tyro.conf.Positional] = ""
    """A preset, or hf:NAME, of which only the configuration is read; without it, all presets are listed."""
    scale: Literal["paper", "small", "zoo", "tiny"] = "paper"
    """Scale of the preset."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Change the model, for example --set mixing=kron-kron/dns-dns."""
    run: Path | None = None
    """Describe the model of a run folder instead."""
    hooks: Literal["layer", "all", "none"] = "layer"
    """Hook table: of one layer, all hooks, or none."""


def parameters_by_part(model: "StreamTransformer") -> list[tuple[str, int]]:
    """(part, parameters) summed over layers; the rows add up to `model.n_params()`."""
    rows: dict[str, int] = {}
    for name, p in model.named_parameters():
        part, *inside = name.split(".")
        if part == "blocks":
            part = ".".join(["blocks.*", *inside[1 : 3 if inside[1] in ("attn", "mlp") else 2]])
        rows[part] = rows.get(part, 0) + p.numel()
    return list(rows.items())


def hook_rows(config: "ModelConfig", scope: str) -> list[tuple[str, str, str, str]]:
    """(name, shape with numbers, access, meaning) of the hooks; with scope="layer", only of layer 0."""
    from streamscope.models.hooks import concrete_shape, expected_hooks

    rows = []
    for name, row in expected_hooks(config):
        if scope == "layer" and name.startswith("blocks."):
            if not name.startswith("blocks.0."):
                continue
            name = name.replace("blocks.0.", "blocks.L.", 1)
        access = ("edit" if row.edit(config) else "observe only") + (", on demand" if row.on_demand else "")
        rows.append((name, concrete_shape(row, name, config), access, row.meaning))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if not options.preset and options.run is None:
        if options != Options():
            raise InputError("--scale, --set and --hooks need a model: name a preset, as in lfa --set n_layers=4")
        for name, (line, _) in PRESETS.items():
            print(f"{name:14s} {line}")
        return
    if options.preset and options.run is not None:
        raise InputError("give a preset or --run, not both")
    model = _model(options)

    from streamscope.models.flops import flops_per_token, training_flops_per_token

    config, width = model.config, None if sys.stdout.isatty() else 150
    print(
        f"{visible(config.name)}: {counted(config.n_layers, 'layer')}, {counted(config.n_heads, 'head')}, "
        f"width {config.d_model}, vocabulary {config.d_vocab:,}, context {config.n_ctx}\n"
        f"mixing {config.mixing}   residual {config.residual.kind}   positions {config.positions.kind}"
        + (f"   canon {config.canon.places}" if config.canon is not None else "")
    )
    counts = [*parameters_by_part(model), ("total", model.n_params())]
    print_grid(("part", "count"), ((part, f"{count:>13,}") for part, count in counts), "parameters", width)
    flops = flops_per_token(model)
    parts = ", ".join(f"{name} {value:,}" for name, value in flops.items())
    print(f"FLOPs per token, forward, {config.n_ctx} tokens: {sum(flops.values()):,} ({parts}); "
          f"training: {sum(training_flops_per_token(model).values()):,}\n")  # fmt: skip
    if options.hooks != "none":
        columns = ("name", "shape", "access", "meaning")
        print_grid(columns, hook_rows(config, options.hooks), "hooks, in firing order", width)


def _model(options: Options) -> "StreamTransformer":
    is_folder = options.preset not in PRESETS and Path(options.preset).is_dir()
    run = Path(options.preset) if options.preset and is_folder else options.run
    foreign = None if run is not None else foreign_name(options.preset)
    if run is None and foreign is None:
        config = preset(options.preset, options.scale, **parse_set(options.set))
        from streamscope.models.make import build

        return build(config)
    if options.set or options.scale != Options.scale:
        model_name = "a run" if foreign is None else "hf:NAME"
        raise InputError(f"--scale and --set only change a preset: leave them out with {model_name}")
    if foreign is None:
        folder = run_folder(str(run))
        from streamscope.models.checkpoint import load

        return load(folder)
    import torch

    from streamscope.models.interop.huggingface.convert import read_config, source_folder
    from streamscope.models.transformer import StreamTransformer

    with torch.device("meta"):
        return StreamTransformer(read_config(source_folder(foreign))[0], seed=None)


if __name__ == "__main__":
    command(main)
