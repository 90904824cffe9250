"""What a paper's trainings cost at the printed size, and a dry run of each.

    python -m papers.scale lfa                         parameters, tokens, GPU hours and disk of every training
    python -m papers.scale lfa --dry-run               builds model, data, schedule and checkpoint of each: ten steps
    python -m models.grid papers/lfa/grid.toml --out runs/lfa-paper --train device=cuda        the trainings

Hours are tokens × FLOPs per token (three times the forward pass, `models.flops`) over the share of a GPU's peak that
small models reach: expected, not measured. Disk is the weights of each snapshot in bf16 and the last checkpoint with
two moments in fp32. A dry run reads a small text in place of the paper's, two sequences at a
time; its vocabulary, and so its embedding, is the smaller one that this text fills.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from annotated_types import Gt, Le

from streamscope.cli.parse import command, parse

EPOCH = 470_000_000
"""Tokens of TinyStories, about."""
PRINTED = {"dst": 3 * EPOCH, "lfa": 2 * EPOCH, "pls": 2 * EPOCH, "hdpl": 20_000 * 4 * 2048, "krom": 2000 * 16 * 512}
"""Training tokens of one model: epochs of TinyStories, or steps × batch × context; a grid's own epochs go first."""
SAVED = 16
"""Snapshots of a training."""
STEPS, SMALL = 10, "stories:10:400"
"""Of the dry run, and its text."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.scale`."""

    paper: Annotated[Literal["dst", "lfa", "hdpl", "pls", "krom"], tyro.conf.Positional]
    """The paper, whose `grid.toml` is read."""
    gpu: Literal["H100", "A100", "L40S", "RTX 4090"] = "H100"
    """The GPU that hours are counted on."""
    share: Annotated[float, Gt(0), Le(1)] = 0.1
    """Share of its peak that is reached."""
    dry_run: bool = False
    """Train ten steps of every training, and open what was saved."""


def costs(paper: str, gpu: str, share: float) -> list[dict[str, Any]]:
    """A row per training of a paper's grid."""
    import torch

    from streamscope.models.flops import PEAKS, training_flops_per_token
    from streamscope.models.grid import cells_of, read_grid
    from streamscope.models.transformer import StreamTransformer

    rows = []
    for cell in cells_of(read_grid(Path(__file__).parent / paper / "grid.toml")):
        with torch.device("meta"):
            model = StreamTransformer(_config(cell.argv))
        flops = sum(training_flops_per_token(model).values())
        speed = share * PEAKS[gpu] / flops
        size, words = model.n_params(), cell.argv
        tokens = float(words[words.index("--epochs") + 1]) * EPOCH if "--epochs" in words else PRINTED[paper]
        rows.append(
            {"training": cell.name, "parameters": size, "tokens": tokens, "tokens/s": speed,
             "hours": tokens / speed / 3600, "GB": (2 * SAVED + 12) * size / 1e9}
        )  # fmt: skip
    return rows


def _config(argv: Sequence[str]) -> Any:
    """The configuration that a training's words ask for."""
    from streamscope.models.config.presets import preset
    from streamscope.models.config.serialization import parse_set

    sets = [argv[i + 1] for i, word in enumerate(argv) if word == "--set"]
    return preset(argv[0], argv[argv.index("--scale") + 1], **parse_set(sets))


def dry_run(paper: str) -> None:
    """Ten steps of every training of the first seed, each in its own process; what was saved is opened."""
    from streamscope.models.checkpoint import load
    from streamscope.models.grid import cells_of, read_grid, train, with_options

    words = [f"steps={STEPS}", f"data={SMALL}", "batch_size=2", "eval_every=5", "checkpoint_every=5", "snapshots=none"]
    with tempfile.TemporaryDirectory() as scratch:
        for cell in cells_of(read_grid(Path(__file__).parent / paper / "grid.toml")):
            if not cell.name.endswith("-s0"):
                continue
            state = train(with_options(cell, words), Path(scratch), 2)
            model = load(Path(scratch) / cell.name)
            print(f"{cell.name}: {state['step']} steps, loss {state['loss']:.3f}; {model.n_params():,} parameters open")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, print the costs or train ten steps."""
    options = parse(Options, argv, __doc__)
    if options.dry_run:
        dry_run(options.paper)
        return
    rows = costs(options.paper, options.gpu, options.share)
    print(f"{'training':24}{'parameters':>12}{'M tokens':>10}{'tokens/s':>12}{'hours':>8}{'GB':>7}{'seeds':>7}")
    arms: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        arms.setdefault(row["training"].rpartition("-s")[0], []).append(row)
    for arm, (row, *other_rows) in arms.items():
        numbers = f"{row['parameters']:12,}{row['tokens'] / 1e6:10.0f}{row['tokens/s']:12,.0f}{row['hours']:8.2f}"
        print(f"{arm:24}{numbers}{row['GB']:7.2f}{1 + len(other_rows):7}")
    hours, disk = sum(row["hours"] for row in rows), sum(row["GB"] for row in rows)
    speed = f"one {options.gpu} at {options.share:.0%} of its peak"
    print(f"{len(rows)} trainings: {hours:.1f} hours of {speed}, {disk:.0f} GB")


if __name__ == "__main__":
    command(main)
