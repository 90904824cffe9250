"""Trained runs that a comparison takes: opened, held against each other, and told how they were made."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from models.checkpoint import read_json, run_folder
from models.errors import InputError

FREE = {"seed", "device", "compile", "log_every", "eval_every", "eval_batches", "sample_every", "checkpoint_every"}
"""Fields of a run's training that may differ: they do not change what is learnt."""
SHAPE = ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx")


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    folder: Path
    preset: str
    seed: int
    manifest: dict[str, Any]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Preset and seed."""
        return f"{self.preset}, seed {self.seed}"

    @property
    def conditions(self) -> dict[str, Any]:
        """What must be the same in all runs of a comparison, by name."""
        data, model = self.manifest["data"], self.config["model"]
        training = {f"training.{k}": v for k, v in self.config["training"].items() if k not in FREE}
        return {
            "scale": self.manifest["scale"],
            "steps": self.manifest["steps"],
            "training data": data["train"]["corpus"],
            "validation data": data["valid"]["corpus"],
            "tokenizer": data["tokenizer"]["sha256"],
            **{name: model[name] for name in SHAPE},
            **training,
        }

    @property
    def command(self) -> str:
        """How the run was made, as one types it; from its configuration where its maker was no command."""
        argv = [str(word) for word in self.manifest["argv"]]
        if self.preset in argv:
            return "python -m models.train " + shlex.join(argv[argv.index(self.preset) :])
        given = {
            **self.config["data"],
            "scale": self.manifest["scale"],
            "steps": self.manifest["steps"],
            "seed": self.seed,
        }
        options = [
            word for name, x in given.items() if x is not None for word in (f"--{name.replace('_', '-')}", str(x))
        ]
        return "python -m models.train " + shlex.join([self.preset, *options])

    @property
    def typed(self) -> str:
        """The folder as its training command names it, else the folder's own name."""
        argv = list(self.manifest["argv"])
        for i, word in enumerate(argv):
            if word == "--out" and i + 1 < len(argv):
                return str(argv[i + 1])
            if word.startswith("--out="):
                return str(word.removeprefix("--out="))
        return self.folder.name


def opened(run: str, presets: Sequence[str]) -> Run:
    """A finished run of one of `presets`. Raises `InputError` for another preset, and for a run that did not end."""
    folder = run_folder(run)
    manifest, config = read_json(folder / "manifest.json"), read_json(folder / "config.json")
    preset = manifest.get("preset")
    if preset not in presets:
        raise InputError(f"{folder} is a run of {preset}; this comparison is of {', '.join(presets)}")
    step, steps = manifest.get("step"), manifest.get("steps")
    if manifest.get("outcome") != "completed" or step != steps:
        raise InputError(
            f"{folder} is not finished ({manifest.get('outcome', 'running or killed')}); --resume it first"
        )
    return Run(folder, preset, int(manifest["seed"]), manifest, config)


def must_agree(one: Run, two: Run, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Raises `InputError` naming the first condition in which two runs differ."""
    for name in {**first, **second}:
        a, b = first.get(name), second.get(name)
        if a != b:
            short = [str(x)[:12] if isinstance(x, str) else str(x) for x in (a, b)]
            raise InputError(
                f"{one.folder} and {two.folder} cannot be compared: {name} is {short[0]} there, {short[1]} here"
            )


def same_models(runs: Sequence[Run], leave_out: Sequence[str] = ()) -> None:
    """Raises `InputError` for two runs of one preset whose models differ, and for two of different presets that
    were not changed alike (`overrides`), but for the fields `leave_out`."""
    from models.runs import flatten

    first: dict[str, Run] = {}
    for run in runs:
        one = first.setdefault(run.preset, run)
        models = [flatten(r.config["model"]) for r in (one, run)]
        must_agree(one, run, *({k: v for k, v in m.items() if k not in leave_out} for m in models))
        changes = [overrides(r) for r in (runs[0], run)]
        must_agree(runs[0], run, *({k: v for k, v in c.items() if k not in leave_out} for c in changes))


def overrides(run: Run) -> dict[str, Any]:
    """Fields of a run's model that are not those of its preset at its scale, by name; the shape left out."""
    from models.config_io import to_dict
    from models.presets import preset
    from models.runs import flatten

    usual = flatten(json.loads(json.dumps(to_dict(preset(run.preset, run.manifest["scale"])))))
    own = flatten(run.config["model"])
    return {k: x for k, x in own.items() if k not in SHAPE and (k not in usual or usual[k] != x)}


def typed(module: str, options: Any, runs: Sequence[Run], leave_out: Sequence[str] = ()) -> str:
    """The command as one types it in the clone: runs by the names that their training gave them, no machine's paths."""
    words = [run.typed for run in runs]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in ("runs", "device", *leave_out) or value == field.default:
            continue
        name = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
            continue
        values = [str(x) for x in (value if isinstance(value, tuple) else (value,))]
        words += [f"--{name}", *(Path(x).name if Path(x).is_absolute() else x for x in values)]
    return f"python -m {module} {shlex.join(words)}"
