"""Open the trained runs of a comparison, check that they can be compared, and say how they were made."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import STORIES, ZOO, read_manifest, run_folder
from streamscope.models.config import ModelConfig, Projection
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import from_dict, override, to_dict
from streamscope.models.runs import flatten
from streamscope.models.training.config import recorded_dtype, tokens_seen
from streamscope.models.training.optim import warmup_steps
from streamscope.papers.comparison import TRAINED

FREE = {
    "seed", "seed_weights", "seed_data", "seed_noise", "device", "compile", "log_every", "eval_every", "eval_batches",
    "sample_every", "checkpoint_every", "snapshots", "snapshot_dtype", "parallel", "keep",
}  # fmt: skip
"""Fields of a run's training that may differ: they do not change what is learnt. `keep` is "last" in older runs."""
SHAPE = ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx")


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    folder: Path
    preset: str
    seed: int
    manifest: dict[str, Any]
    config: dict[str, Any]
    variant: str = ""
    """What of the preset's declared parts was changed, as "+rope" (`with_variants`)."""
    cell: str = ""
    """How it began and how long it trained where a comparison has these as factors, as "+normal@1000"."""

    @property
    def arm(self) -> str:
        """The runs it is averaged with: its preset, its variant, and its cell of the factors."""
        return self.preset + self.variant + self.cell

    @property
    def name(self) -> str:
        """Arm and seed."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def conditions(self) -> dict[str, Any]:
        """What must be the same in all runs of a comparison, by name."""
        data, model = self.manifest["data"], self.config["model"]
        training = {f"training.{k}": v for k, v in self.config["training"].items() if k not in FREE}
        on_cpu = str(self.manifest.get("device", "cpu")).startswith("cpu")
        dtype = recorded_dtype(self.config["training"].get("dtype", "auto"), on_cpu, model["d_model"])
        return {
            "scale": self.manifest["scale"],
            "steps": self.manifest["steps"],
            "steps of the schedule": self.manifest.get("of_steps", self.manifest["steps"]),
            "training data": data["train"]["corpus"],
            "validation data": data["valid"]["corpus"],
            "tokenizer": data["tokenizer"]["sha256"],
            **{name: model[name] for name in SHAPE},
            **training,
            "training.dtype": dtype,
        }

    @property
    def tokens_seen(self) -> int:
        """Training tokens that the run saw, repetitions counted."""
        return self.tokens_at(int(self.manifest["steps"]))

    def tokens_at(self, step: int) -> int:
        """Those of its first `step` steps: Σ sequences × length of a sequence."""
        return tokens_seen(self.config["training"], self.config["model"]["n_ctx"], step)

    @property
    def warmup(self) -> int:
        """Steps of its warm-up."""
        steps = int(self.manifest.get("of_steps", self.manifest["steps"]))
        return warmup_steps(steps, self.config["training"].get("warmup") or 0)

    @property
    def command(self) -> str:
        """How the run was made, as one types it; from its configuration where its maker was no command."""
        argv = [str(word) for word in self.manifest["argv"]]
        if self.preset in argv:
            return "python -m models.train " + shlex.join(argv[argv.index(self.preset) :])
        given = {
            **self.config["data"],
            "scale": self.manifest["scale"],
            "steps": self.conditions["steps of the schedule"],
            "seed": self.seed,
        }
        options = [
            word for name, x in given.items() if x is not None for word in (f"--{name.replace('_', '-')}", str(x))
        ]
        return "python -m models.train " + shlex.join([self.preset, *options])

    @property
    def snapshot(self) -> bool:
        """Whether it is a run at one of its snapshots, RUN@STEP."""
        return self.manifest.get("outcome") == "snapshot"

    @property
    def typed(self) -> str:
        """The folder as its training command names it, else the folder's own name; of a snapshot with @STEP.

        Of a bundled model stories/NAME, for its training's folder is in no clone.
        """
        if not self.snapshot and (self.folder.parent == ZOO or str(self.folder).startswith(STORIES)):
            return f"{STORIES}{self.folder.name}"
        argv = list(self.manifest["argv"])
        at = f"@{self.manifest['step']}" if self.snapshot else ""
        for i, word in enumerate(argv):
            if word == "--out" and i + 1 < len(argv):
                return f"{argv[i + 1]}{at}"
            if word.startswith("--out="):
                return f"{word.removeprefix('--out=')}{at}"
        return self.folder.name


class TrainedRun(TypedDict):
    """A run in trained.json, its folder as it was typed."""

    folder: str
    preset: str
    seed: int
    manifest: dict[str, Any]
    config: dict[str, Any]


class Trained(TypedDict):
    """trained.json, in the folder of a comparison's tables."""

    runs: list[TrainedRun]


def trained_runs(folder: Path) -> list[Run]:
    """The runs behind the tables of a folder, `filled`; none where nothing says how they were trained."""
    path = folder / TRAINED
    runs = read_json(path, Trained)["runs"] if path.is_file() else []
    return [Run(Path(r["folder"]), r["preset"], r["seed"], r["manifest"], filled(r["config"])) for r in runs]


def ended(runs: Sequence[Run]) -> Sequence[Run]:
    """Of the runs those that are no snapshots, or all where all are."""
    return [run for run in runs if not run.snapshot] or runs


def opened(run: str, presets: Sequence[str]) -> Run:
    """A finished run of one of `presets`. Raises `InputError` for another preset, and for a run that did not end."""

    folder = run_folder(run)
    manifest, config = read_manifest(folder), read_json(folder / "config.json", Config)
    config = filled(config)
    preset = str(manifest.get("preset"))
    if preset not in presets:
        raise InputError(f"{folder} is a run of {preset}; this comparison is of {', '.join(presets)}")
    step, steps = manifest.get("step"), manifest.get("steps")
    if manifest.get("outcome") not in ("completed", "snapshot") or step != steps:
        raise InputError(
            f"{folder} is not finished ({manifest.get('outcome', 'running or killed')}); --resume it first"
        )
    return Run(folder, preset, int(manifest["seed"]), manifest, config)


def filled(config: Any) -> Any:
    """A run's configuration with the fields that have come since, at their defaults, so that runs of two versions are
    compared by what they say."""
    return {**config, "model": to_dict(from_dict(ModelConfig, config["model"]))}


def by_preset(folders: Sequence[str], presets: Sequence[str]) -> list[Run]:
    """The runs in the order of their presets and seeds. Raises `InputError` for two of one preset and seed."""
    runs = sorted((opened(f, presets) for f in folders), key=lambda r: (presets.index(r.preset), r.seed))
    no_doubles(runs)
    return runs


def opened_in_arms(
    folders: Sequence[str], presets: Sequence[str], in_arms: Callable[[Sequence[Run]], list[Run]],
    varied: Sequence[str], leave_out: Sequence[str] = (),
) -> list[Run]:  # fmt: skip
    """The runs with the names of their arms, which differ in preset, seed, the parts `varied` and `leave_out` alone.

    Raises `InputError` for two of one arm and seed, and for runs that differ in more.
    """
    runs = in_arms([opened(folder, presets) for folder in folders])
    no_doubles(runs)
    all_agree(runs, [*fields_of(runs, varied), *leave_out])
    return runs


def no_doubles(runs: Sequence[Run]) -> None:
    """Raises `InputError` where two runs that follow each other are of one arm and seed."""
    for one, two in pairwise(runs):
        if (one.arm, one.seed) == (two.arm, two.seed):
            raise InputError(f"{one.folder} and {two.folder} are both {one.name}; give one of them")


def all_agree(runs: Sequence[Run], leave_out: Sequence[str] = ()) -> None:
    """Raises `InputError` where the conditions of two runs differ, or their models (`same_models`), but for the fields
    `leave_out`."""
    for run in runs[1:]:
        conditions = [{k: v for k, v in r.conditions.items() if k not in leave_out} for r in (runs[0], run)]
        must_agree(runs[0], run, *conditions)
    same_models(runs, leave_out)


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
    """Raises `InputError` for two runs of one arm whose models differ, and for two of different arms that were not
    changed alike (`overrides`), but for the fields `leave_out`."""

    first: dict[str, Run] = {}
    for run in runs:
        one = first.setdefault(run.arm, run)
        models = [flatten(r.config["model"]) for r in (one, run)]
        must_agree(one, run, *({k: v for k, v in m.items() if k not in leave_out} for m in models))
        changes = [overrides(r) for r in (runs[0], run)]
        must_agree(runs[0], run, *({k: v for k, v in c.items() if k not in leave_out} for c in changes))


def usual_model(run: Run) -> dict[str, Any]:
    """The configuration of a run's preset at its scale, with raw values that start as in the published runs."""
    config = preset(run.preset, run.manifest["scale"])
    if config.residual.value_path == "raw":
        config = override(config, {"attention.v.init": "none"})
    usual: dict[str, Any] = json.loads(json.dumps(to_dict(config)))
    return usual


def overrides(run: Run) -> dict[str, Any]:
    """Fields of a run's model that are not those of its preset at its scale, by name; the shape left out."""

    usual = flatten(usual_model(run))
    own = flatten(run.config["model"])
    return {k: x for k, x in own.items() if k not in SHAPE and (k not in usual or usual[k] != x)}


# ---- arms that differ in a part ----------------------------------------------------------------

SHORT = {"channel": "cln"}
"""Kind of a part -> its name in an arm's, where that is another."""
WORDS = {
    ("positions", "learned"): "learned positions",
    ("positions", "rope"): "RoPE",
    ("positions", "alibi"): "ALiBi",
    ("positions", "none"): "no positions",
    ("norm", "layer"): "LayerNorm",
    ("norm", "channel"): "CLN",
    ("norm", "rms"): "RMSNorm",
}
"""(part, kind) -> what a sentence calls it."""


def with_variants(runs: Sequence[Run], parts: Sequence[str]) -> list[Run]:
    """The runs, those whose `parts` are not their preset's as arms of their own: std-t+rope, std-t+rope+cln.

    A kind is named alone where its fields are the usual ones, else with them: +rope.fraction=0.5. A part of a part is
    named with a dot, as attention.gate; an arm that lacks its preset's gate is called +no-gate. Of a number it says
    how many: n_heads makes +8heads. Of a projection it says which: attention.o makes +o=hdpl.
    """

    named_runs = []
    for run in runs:
        usual = usual_model(run)
        words = ""
        for part in parts:
            own, theirs = (_part(model, part) for model in (run.config["model"], usual))
            if own == theirs:
                continue
            if own is None:
                words += f"+no-{part.rpartition('.')[2]}"
                continue
            if not isinstance(own, dict):
                words += f"+{own}{part.removeprefix('n_')}"
                continue
            kind = type(attrgetter(part)(from_dict(ModelConfig, run.config["model"])))
            fields = [f".{f}={x}" for f, x in own.items() if f != "kind" and x != to_dict(kind())[f]]
            which = f"{part.rpartition('.')[2]}=" if issubclass(kind, Projection) else ""
            words += f"+{which}{SHORT.get(own['kind'], own['kind'])}{''.join(fields)}"
        named_runs.append(replace(run, variant=words))
    return named_runs


def _part(model: Any, name: str) -> Any:
    """A part of a configuration by its dotted name."""
    for one in name.split("."):
        model = model[one]
    return model


def fields_of(runs: Sequence[Run], parts: Sequence[str]) -> list[str]:
    """The dotted names of the fields of some parts, of all runs."""

    names = (name for run in runs for part in parts for name in flatten(_part(run.config["model"], part), part))
    return list(dict.fromkeys(names))


def confounded(one: Run, two: Run, architecture: Sequence[str]) -> str:
    """In which parts two models differ besides those of the compared `architecture`, in words; "" where in none.

    "std-t has learned positions and LayerNorm, lfa RoPE and CLN".
    """
    a, b = one.config["model"], two.config["model"]
    parts = [p for p in {**a, **b} if p not in ("name", *architecture) and a.get(p) != b.get(p)]
    if not parts:
        return ""
    first, second = (" and ".join(_word(p, x.get(p), y.get(p)) for p in parts) for x, y in ((a, b), (b, a)))
    return f"{one.arm} has {first}, {two.arm} {second}"


def _word(part: str, own: Any, other: Any) -> str:
    """A part in a sentence, in enough detail to differ from the other's."""
    if isinstance(own, dict) and isinstance(other, dict):
        if own["kind"] != other["kind"]:
            return WORDS.get((part, own["kind"]), f"{part} {own['kind']}")
        return ", ".join(f"{part}.{f} {x}" for f, x in own.items() if other.get(f) != x)
    return f"{part} {own['kind'] if isinstance(own, dict) else own}"


def typed(module: str, options: Any, runs: Sequence[Run], leave_out: Sequence[str] = ()) -> str:
    """The command as one types it in the clone: runs by the names that their training gave them, no machine's paths."""
    words = [] if getattr(options, "scale", None) else [run.typed for run in runs]
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


def again(argv: str | list[str]) -> str:
    """The command of a table, as one types it here: by its room, files by their names where they lay elsewhere."""
    parts = shlex.split(argv) if isinstance(argv, str) else argv
    parts = [Path(part).name if part.startswith("/") else part for part in parts]
    return shlex.join(part.removeprefix("streamscope.") for part in parts)
