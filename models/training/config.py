"""Options of a training run. Nothing here imports torch; the field docs are the help of the command."""

import json
import math
import re
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from streamscope.cli.bounds import Count, NotNegative, Positive, Seed, Share, Whole, check
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device
from streamscope.models.config import Hyper, ModelConfig
from streamscope.models.config.serialization import from_dict

Decay = Annotated[float, Ge(0), Lt(1)]
"""Decay of a running mean per step."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of a training. The recipe of preset and scale fills every `None`."""

    lr: Positive | None = None
    """Peak learning rate of AdamW."""
    lr_floor: Share | None = None
    """Final learning rate as a share of the peak."""
    warmup: Whole | None = None
    """Steps of linear warm-up, at most a tenth of the run."""
    weight_decay: NotNegative = 0.1
    """Decoupled weight decay of AdamW, on tensors with two or more axes."""
    decay_vectors: bool | None = None
    """Also decay vectors (norms and biases), as MLX does."""
    beta1: Decay = 0.9
    """AdamW β1."""
    beta2: Decay | None = None
    """AdamW β2."""
    bias_correction: bool | None = None
    """AdamW's bias correction of means that start at 0, also for hyper-connections. MLX has none, so its first steps
    are larger."""
    optimizer: Literal["adamw", "muon"] | None = None
    """adamw for all parameters, or muon for matrices and AdamW for tables, vectors and tensors with more axes."""
    muon_lr: Positive = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: Decay = 0.95
    """Muon's (Nesterov) momentum."""
    muon_decay: NotNegative = 0.01
    """Muon's weight decay."""
    muon_decay_mode: Literal["decoupled", "coupled"] | None = None
    """decoupled: shrink the weights, as in torch; coupled: add decay · W to the gradient before orthogonalising, as in
    MLX."""
    muon_kernels: bool | None = None
    """Optimise Canon's kernels with Muon, as in the KROM authors' code, where they grow; otherwise with AdamW."""
    muon_dtype: Literal["bf16", "fp32"] = "bf16"
    """Dtype of Muon's Newton–Schulz iteration."""
    hc_optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimiser of the hyper-connections; sgd is without momentum."""
    hc_lr: Positive = 5e-3
    """Peak learning rate of the hyper-connections."""
    hc_decay: NotNegative = 0.2
    """Weight decay of all parameters of the hyper-connections, including biases."""
    hc_beta1: Decay = 0.8
    """AdamW β1 of the hyper-connections."""
    hc_beta2: Decay = 0.95
    """AdamW β2 of the hyper-connections."""
    clip: NotNegative | None = None
    """Largest global gradient norm; 0 switches clipping off."""
    batch_size: Count | None = None
    """Sequences per optimiser step."""
    accumulate: Count = 1
    """Micro-batches per step; must divide the batch size."""
    epochs: Positive | None = None
    """Passes over the training windows."""
    steps: Count | None = None
    """Optimiser steps; overrides epochs."""
    phases: str | None = None
    """Phases with their own length and mixture: STEPS:BATCHxCONTEXT or STEPS:BATCHxCONTEXT:WEIGHTS each, for example
    6000:8x64:.7/.3,1500:8x128,500:4x256. WEIGHTS are those of the parts of --data (default: as in --data). The steps
    add up to the length of the run. Evaluations use the model's context and --batch-size."""
    packing: Literal["stream", "document"] = "stream"
    """stream: concatenated documents, cut every n_ctx tokens; document: one document per window."""
    seed: Seed = 0
    """Seed of the weights, the data order and the noise (dropout, HDPL), unless one of them has its own seed."""
    seed_weights: Seed | None = None
    """Seed of the initial weights; default: --seed."""
    seed_data: Seed | None = None
    """Seed of the order of the training windows; default: --seed."""
    seed_noise: Seed | None = None
    """Seed of dropout and of HDPL's noise; default: --seed."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Autocast. auto: bf16 on CUDA, and from width 96 on a CPU with bf16 instructions (elsewhere it is slower); the run
    records the choice, and --resume keeps it."""
    param_dtype: Literal["fp32", "bf16"] | None = None
    """Storage dtype of parameters, gradients and moments; for hyper-connections see --set residual.hc_dtype."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Rounding to bf16 storage: stochastic is right on average, nearest loses steps below half a unit."""
    compile: Literal["off", "blocks", "step"] = "off"
    """Compile for training: each block, or (on CUDA) the whole step with its loss. Analyses are never compiled."""
    log_every: Count = 10
    """Steps between rows of metrics.jsonl with training losses. With the extra `tensorboard` the run folder has
    all curves in tb/ (tensorboard --logdir RUN), which W&B reads too (wandb sync RUN/tb)."""
    eval_every: Count = 200
    """Steps between evaluations."""
    eval_batches: Count = 50
    """Maximum number of batches per evaluation, from the start of the validation part."""
    sample_every: Whole = 400
    """Steps between samples of text; 0: no samples."""
    checkpoint_every: Count = 200
    """Steps between checkpoints."""
    snapshots: str = "log"
    """Steps whose weights are saved, to be measured as RUN@STEP: log (0, 1, 2, 4 … 512, then every 1000), log:N (then
    every N), every:N, steps such as 0,100,500, or none. The last step is always included."""
    snapshot_dtype: Literal["fp32", "bf16"] = "fp32"
    """Storage dtype of snapshots; bf16 takes half the space."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Method under torchrun. ddp: every process holds the model; fsdp: parameters, gradients and moments are
    sharded."""

    @staticmethod
    def from_older(data: dict[str, Any]) -> dict[str, Any]:
        """Convert the fields of an older run: `compile` was a flag for the blocks, `keep` chose the final weights."""
        if data.get("keep", "last") != "last":
            raise InputError("this run keeps its best weights (--keep best), which only versions before 0.2 train")
        data = dict(data)
        data.pop("keep", None)
        if isinstance(data.get("compile"), bool):
            data["compile"] = "blocks" if data["compile"] else "off"
        return data

    def __post_init__(self) -> None:
        check(self)
        snapshot_steps(self.snapshots, 0)
        if self.batch_size is not None and self.batch_size % self.accumulate:
            raise InputError(f"{self.accumulate} micro-batches do not divide a batch of {self.batch_size} sequences")
        steps = sum(phase.steps for phase in phases_of(self.phases))
        if steps and (self.epochs is not None or self.steps not in (None, steps)):
            raise InputError(f"--phases sets the number of steps ({steps}): leave out --steps and --epochs")

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds of weights, data and noise; `seed` where one has no seed of its own."""
        own_seeds = {"weights": self.seed_weights, "data": self.seed_data, "noise": self.seed_noise}
        return {source: self.seed if seed is None else seed for source, seed in own_seeds.items()}

    def late_positions(self, n_ctx: int) -> str:
        """One line about learned positions that the first phases do not train; "" if there are none. Validation always
        reads windows of the whole context."""
        phases = phases_of(self.phases)
        lengths = [phase.n_ctx for phase in phases] or [n_ctx]
        if max(lengths) < n_ctx:
            unused = f"learned positions {max(lengths)} to {n_ctx - 1}"
            return f"{unused} are never trained: no phase has windows of {n_ctx} tokens"
        if lengths[0] >= n_ctx:
            return ""
        full_step = next(phase.first for phase in phases if phase.n_ctx >= n_ctx)
        return (
            f"learned positions {lengths[0]} to {n_ctx - 1} are not all trained before step {full_step:,}: earlier "
            "validation losses include untrained positions"
        )


SEED_OR_RECORD = {
    *("seed", "seed_weights", "seed_data", "seed_noise", "device", "compile", "parallel", "snapshots"),
    *("log_every", "eval_every", "eval_batches", "sample_every", "checkpoint_every", "snapshot_dtype"),
}  # fmt: skip
"""The settings in which seeds of one recipe may differ."""


def seeds_share(config: Mapping[str, Any]) -> str:
    """The training and data of a run's config.json as text, the same for all seeds of one recipe; "" without any.
    Fields that an older version did not write have their default."""
    training, data, sft = map(config.get, ("training", "data", "sft"))
    parts: dict[str, Any] = {"sft": sft} if sft else {}
    if training:
        parts["training"] = settings = USUAL | Training.from_older(training)
        for field in fields(Training):
            settings.setdefault(field.name, field.default)
            if field.name in SEED_OR_RECORD:
                del settings[field.name]
    if data:
        parts["data"] = {"split_at": "separator", "valid_fraction": None, "valid_blocks": None, **data}
    return json.dumps(parts, sort_keys=True) if parts else ""


Phase = namedtuple(
    "Phase", ("first", "steps", "batch_size", "n_ctx", "weights", "windows", "flops"), defaults=(None, None, 0)
)
"""`steps` steps of `batch_size` sequences of `n_ctx` tokens, from step `first`.

`weights` are those of the parts of the mixture; None: as in --data. A `Trainer` adds the `windows` that it reads and
`flops`, FLOPs per training token.
"""


def phases_of(spec: str | None) -> list[Phase]:
    """The phases of `--phases`; [] for None. Raises `InputError` unless they are STEPS:BATCHxCONTEXT[:W/W…], …"""
    whole, weight, phases = r"0*[1-9]\d*", r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?", list[Phase]()
    form = rf"\s*({whole}):({whole})x({whole})(?::({weight}(?:/{weight})*))?\s*"
    for text in spec.split(",") if spec is not None else ():
        match = re.fullmatch(form, text, re.ASCII)
        weights = tuple(map(float, match[4].split("/"))) if match and match[4] else None
        if match is None or (weights and not 0 < sum(weights) < math.inf):
            raise InputError(f"--phases {text!r}: write STEPS:BATCHxCONTEXT or STEPS:BATCHxCONTEXT:WEIGHT/WEIGHT, with "
                             "a comma before the next phase")  # fmt: skip
        steps, batch, n_ctx = map(int, match.groups()[:3])
        phases.append(Phase(sum(phase.steps for phase in phases), steps, batch, n_ctx, weights))
    return phases


def saved_training(data: dict[str, Any], d_model: int) -> Training:
    """The options of a run to resume, with its device and dtype, from its config.json. Where an older run says auto,
    its dtype was bf16 on CUDA and from width 128."""
    training = from_dict(Training, data)
    device = pick_device(training.device)
    older: Literal["fp32", "bf16"] = "fp32" if device == "cpu" and d_model < 128 else "bf16"
    return replace(training, device=device, dtype=older if training.dtype == "auto" else training.dtype)


def tokens_seen(training: Mapping[str, Any], n_ctx: int, step: int) -> int:
    """Training tokens after `step` steps, Σ sequences × tokens per sequence, of the training in a config.json and its
    model's context; padding (packing "document") counts."""
    phases = phases_of(training.get("phases"))
    if not phases:
        return int(step * training["batch_size"] * n_ctx)
    return sum(min(max(step - p.first, 0), p.steps) * p.batch_size * p.n_ctx for p in phases)


def snapshot_steps(spec: str, steps: int) -> list[int]:
    """The steps that `--snapshots` saves in a run of `steps` steps."""
    kind, _, number = spec.partition(":")
    try:
        if spec == "none":
            return []
        if spec == "log" or (kind == "log" and number):
            stride = int(number or 1000)
            selection = {0, *(2**k for k in range(10)), *range(stride * (512 // stride + 1), steps + 1, stride)}
        elif kind == "every":
            selection = set(range(0, steps + 1, stride := int(number)))
        else:
            stride, selection = 1, {int(word) for word in spec.split(",")}
        if stride < 1 or min(selection) < 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        rules = "give log, log:N, every:N, steps such as 0,100,500, or none"
        raise InputError(f"--snapshots {spec}: {rules}") from None
    return sorted(n for n in {*selection, steps} if n <= steps)


RECIPES: dict[str, dict[str, Any]] = {
    "lfa": dict(lr=3e-4, warmup=1000, batch_size=32, epochs=2.0),  # LFA §2.6, SPEC §8
    "dst": dict(lr=5e-4, warmup=1000, batch_size=32, epochs=3.0),  # DST §3.1
    "pls": dict(lr=3e-4, warmup=1000, batch_size=64, epochs=2.0),  # PLS A.8; epochs are not printed
    # HDPL A.1, SPEC §5, §7.5: no clipping, bf16 everywhere
    "hdpl": dict(lr=8e-4, warmup=1000, batch_size=4, steps=20_000, clip=0.0, param_dtype="bf16"),
    "krom": dict(lr=6e-4, warmup=200, batch_size=16, steps=2000, param_dtype="bf16"),  # SPEC §1.1, §1.2
}
"""The papers' settings, by family, at scale paper."""

USUAL: dict[str, Any] = dict(
    optimizer="adamw", beta2=0.95, bias_correction=True, decay_vectors=False, muon_decay_mode="decoupled",
    muon_kernels=False, lr_floor=0.1, clip=1.0, param_dtype="fp32",
)  # fmt: skip
"""Defaults of all families and scales."""

OPTIMISERS: dict[str, dict[str, Any]] = {
    # MLX's AdamW and Muon (SPEC §1.2, §9)
    "krom": dict(
        optimizer="muon", beta2=0.999, bias_correction=False, decay_vectors=True, muon_decay_mode="coupled",
        muon_kernels=True,
    ),
    "hdpl": dict(lr_floor=0.0),
}  # fmt: skip
"""Optimiser and shape of the schedule of a family, at every scale; the rest follows the paper only at scale paper."""

FAMILIES = {"std-t": "lfa", "d-cas": "lfa", "lfa": "lfa", "cfm": "lfa", "pls": "pls", "c2": "pls"}
FAMILIES |= {"llama": "hdpl", "hdpl": "hdpl"}
FAMILIES |= dict.fromkeys(("gpt2", "canon", "kromhc", "kromcanon"), "krom")

SMALL = dict(lr=1e-3, warmup=100, batch_size=16, epochs=4.0)
"""Recipe of the scales below paper; narrow models need a higher rate."""


def with_recipe(training: Training, preset: str, scale: str) -> Training:
    """Fill every None of `training` from the recipe; given epochs replace the recipe's steps."""
    family = FAMILIES.get(preset, "dst")
    recipe: Mapping[str, Any] = RECIPES[family] if scale == "paper" else SMALL
    seeds = {f"seed_{source}": seed for source, seed in training.seeds.items()}
    filled = {**USUAL, **seeds, **OPTIMISERS.get(family, {}), **recipe}
    if training.epochs is not None:
        filled.pop("steps", None)
    if phases := phases_of(training.phases):
        filled |= {"steps": sum(phase.steps for phase in phases), "epochs": None}
    return replace(training, **{k: v for k, v in filled.items() if getattr(training, k) is None})


def check_given(training: Training, filled: Training, model: ModelConfig, usual: Training) -> None:
    """Raise `InputError` for a training option that this model or the other options would ignore, if it is not the
    default. `training` are the user's options, `filled` those after `with_recipe`, `usual` the defaults."""
    hyper, muon, canon = isinstance(model.residual, Hyper), filled.optimizer == "muon", model.canon is not None
    rules: list[tuple[str, bool, str]] = [
        ("hc_", hyper, f"{model.name} has no hyper-connections"),
        ("hc_beta", filled.hc_optimizer == "adamw", "--hc-optimizer sgd has no β"),
        ("muon_", muon, f"--optimizer is {filled.optimizer}, not muon"),
        ("muon_kernels", canon, f"{model.name} has no Canon layers"),
        ("epochs", training.steps is None, "--steps sets the length of the training"),
        ("snapshot_dtype", filled.snapshots != "none", "--snapshots none saves none"),
    ]
    plain = {**asdict(usual), **{name: value for name, value in USUAL.items() if getattr(usual, name) is None}}
    for name, value in asdict(training).items():
        for start, acts, reason in rules:
            if name.startswith(start) and not acts and value is not None and value != plain[name]:
                raise InputError(f"--{name.replace('_', '-')} has no effect, because {reason}: leave it out")


def destination(options: Any, instead: str) -> tuple[Path, bool]:
    """(--out, --resume). Raises `InputError` without --out, and for other options with --resume."""
    if options.out is None:
        raise InputError("--out RUN is missing: name the run folder")
    usual = type(options)()
    pairs = ((options, usual), (options.training, usual.training))
    names = [field.name for a, b in pairs for field in fields(a) if getattr(a, field.name) != getattr(b, field.name)]
    names = [name for name in names if name not in ("out", "resume", "training")]
    if options.resume and names:
        typed = {"preset": "PRESET", "run": "RUN"}
        flags = ", ".join(typed.get(name, f"--{name.replace('_', '-')}") for name in names)
        raise InputError(f"--resume takes all options from the run in --out: leave out {flags}, or {instead}")
    return options.out, options.resume
