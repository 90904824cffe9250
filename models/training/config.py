"""Options of a training run. Nothing here imports torch; the field docs are the command's help."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from streamscope.cli.bounds import Bounds, Count, NotNegative, Positive, Seed, Share, Whole, check
from streamscope.cli.errors import InputError
from streamscope.models.config import Hyper, ModelConfig
from streamscope.text import SplitAt

Decay = Annotated[float, Bounds(low=0, below=1)]
"""How much a running mean keeps of itself at every step."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train. Defaults of `None` are filled from the recipe of the preset and scale."""

    lr: Positive | None = None
    """Peak learning rate of AdamW."""
    lr_floor: Share | None = None
    """Final learning rate as a share of the peak."""
    warmup: Whole | None = None
    """Steps of linear warm-up; never more than a tenth of the run."""
    weight_decay: NotNegative = 0.1
    """Decoupled weight decay of AdamW, on tensors with two or more axes."""
    decay_vectors: bool | None = None
    """Decay vectors as well: norms and biases. MLX decays them."""
    beta1: Decay = 0.9
    """AdamW β1."""
    beta2: Decay | None = None
    """AdamW β2."""
    bias_correction: bool | None = None
    """AdamW's correction for means that start at 0, hyper-connections' too. MLX has none: first moves are larger."""
    optimizer: Literal["adamw", "muon"] | None = None
    """adamw for everything; muon for matrices and AdamW for tables, vectors and tensors of more axes."""
    muon_lr: Positive = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: Decay = 0.95
    """Muon's (Nesterov) momentum."""
    muon_decay: NotNegative = 0.01
    """Muon's weight decay."""
    muon_decay_mode: Literal["decoupled", "coupled"] | None = None
    """decoupled: shrink the weights, as torch; coupled: add decay · W to the gradient before it is orthogonalised, as
    MLX."""
    muon_kernels: bool | None = None
    """Muon moves Canon's kernels as well, as in KROM's authors' code, where they grow; else AdamW does."""
    muon_dtype: Literal["bf16", "fp32"] = "bf16"
    """What Muon's Newton–Schulz iteration is computed in."""
    hc_optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimiser of the hyper-connections; sgd has no momentum."""
    hc_lr: Positive = 5e-3
    """Peak learning rate of the hyper-connections."""
    hc_decay: NotNegative = 0.2
    """Their weight decay, on all of their parameters: biases as well."""
    hc_beta1: Decay = 0.8
    """Their AdamW β1."""
    hc_beta2: Decay = 0.95
    """Their AdamW β2."""
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
    """A schedule of lengths and mixtures: for each phase STEPS:BATCHxCONTEXT or STEPS:BATCHxCONTEXT:WEIGHTS, as
    6000:8x64:.7/.3,1500:8x128,500:4x256. WEIGHTS are those of the parts of --data, by default as it says. The steps add
    up to those of the run. Evaluations keep the model's context and --batch-size."""
    packing: Literal["stream", "document"] = "stream"
    """stream: documents one after another, cut every n_ctx tokens; document: one document per window."""
    seed: Seed = 0
    """Seed of the weights, the data order and the noise (dropout, HDPL), where they have none of their own."""
    seed_weights: Seed | None = None
    """Seed of the initial weights; default: --seed."""
    seed_data: Seed | None = None
    """Seed of the order of the training windows; default: --seed."""
    seed_noise: Seed | None = None
    """Seed of dropout and of HDPL's noise; default: --seed."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Autocast. auto: bf16 on CUDA, and on a CPU from width 128 (below that bf16 is slower)."""
    param_dtype: Literal["fp32", "bf16"] | None = None
    """Storage of parameters, gradients and moments; hyper-connections have their own, --set residual.hc_dtype."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """How a step is rounded to bf16 storage: stochastic is right on average, nearest loses steps under half a unit."""
    compile: Literal["off", "blocks", "step"] = "off"
    """torch.compile for training, never for analyses: each block, or on CUDA the whole model with its loss."""
    log_every: Count = 10
    """Steps between training-loss rows."""
    eval_every: Count = 200
    """Steps between evaluations."""
    eval_batches: Count = 50
    """Most batches per evaluation; the first windows of the validation part."""
    sample_every: Whole = 400
    """Steps between samples of text; 0 for none."""
    checkpoint_every: Count = 200
    """Steps between checkpoints."""
    keep: Literal["last", "best"] = "last"
    """Which weights model.safetensors holds at the end: the last, or those with the best validation loss."""
    snapshots: str = "log"
    """Steps whose weights are kept, to be measured as RUN@STEP: log (0, 1, 2, 4 … 512, then every 1000), log:N (then
    every N), every:N, steps as 0,100,500, or none. The last step is always among them."""
    snapshot_dtype: Literal["fp32", "bf16"] = "fp32"
    """What snapshots are stored in; bf16 takes half the space."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun. ddp: every process holds the model; fsdp: parameters, gradients and moments are sharded."""

    @staticmethod
    def from_older(data: dict[str, Any]) -> dict[str, Any]:
        """The fields of a run written before: `compile` was a flag for the blocks."""
        compile_ = data.get("compile")
        return data | {"compile": "blocks" if compile_ else "off"} if isinstance(compile_, bool) else data

    def __post_init__(self) -> None:
        check(self)
        snapshot_steps(self.snapshots, 0)
        if self.batch_size is not None and self.batch_size % self.accumulate:
            raise InputError(f"{self.accumulate} micro-batches do not divide a batch of {self.batch_size} sequences")
        steps = sum(phase.steps for phase in phases_of(self.phases))
        if steps and (self.epochs is not None or self.steps not in (None, steps)):
            raise InputError(f"--phases says how many steps there are ({steps}): leave out --steps and --epochs")

    def seed_of(self, what: Literal["weights", "data", "noise"]) -> int:
        """The seed of one source of chance; `seed` where it has none of its own, as in runs from before there were."""
        own: int | None = getattr(self, f"seed_{what}")
        return self.seed if own is None else own

    @property
    def seeds(self) -> dict[str, int]:
        """All three, by what they decide."""
        return {what: self.seed_of(what) for what in ("weights", "data", "noise")}


@dataclass(frozen=True)
class Phase:
    """A stretch of a run: `steps` steps of `batch_size` sequences of `n_ctx` tokens, from step `first`."""

    first: int
    steps: int
    batch_size: int
    n_ctx: int
    weights: tuple[float, ...] | None = None
    """Of the parts of the mixture; None: as --data says."""


def phases_of(spec: str | None) -> list[Phase]:
    """The phases that `--phases` declares, in order; none for None.

    Raises `InputError` for another spelling than STEPS:BATCHxCONTEXT[:W/W…], with commas between.
    """
    found: list[Phase] = []
    for text in spec.split(",") if spec is not None else ():
        match = re.fullmatch(r"\s*(\d+):(\d+)x(\d+)(?::([\d./e-]+))?\s*", text, re.ASCII)
        try:
            if match is None:
                raise ValueError
            steps, batch, n_ctx = (int(number) for number in match.groups()[:3])
            weights = tuple(float(weight) for weight in match[4].split("/")) if match[4] else None
            if min(steps, batch, n_ctx) < 1 or (weights and (min(weights) < 0 or not 0 < sum(weights) < math.inf)):
                raise ValueError
        except ValueError:
            raise InputError(
                f"--phases {text.strip()!r}: write STEPS:BATCHxCONTEXT or STEPS:BATCHxCONTEXT:WEIGHT/WEIGHT, as "
                "6000:8x64:.7/.3, with a comma before the next phase"
            ) from None
        found.append(Phase(sum(phase.steps for phase in found), steps, batch, n_ctx, weights))
    return found


def late_positions(phases: Sequence[Phase], n_ctx: int) -> str:
    """Which of `n_ctx` learned positions the first phases leave as they were drawn, in a line; "" where none.

    Validation reads windows of the whole context all the time, so losses before that step are partly of such positions.
    """
    short = phases[0].n_ctx if phases else n_ctx
    if short >= n_ctx:
        return ""
    whole = next((phase.first for phase in phases if phase.n_ctx >= n_ctx), None)
    longest = max(phase.n_ctx for phase in phases)
    if whole is None:
        return f"learned positions {longest} to {n_ctx - 1} are never trained: no phase has windows of {n_ctx} tokens"
    return (
        f"learned positions {short} to {n_ctx - 1} are all trained from step {whole:,} on alone: validation losses "
        "before it read some that are not"
    )


def tokens_seen(training: Mapping[str, Any], n_ctx: int, step: int) -> int:
    """Training tokens after `step` steps, repetitions counted: Σ sequences × tokens of a sequence.

    `training` is that of a run's config.json, `n_ctx` the context of its model.
    """
    phases = phases_of(training.get("phases"))
    if not phases:
        return int(step * training["batch_size"] * n_ctx)
    return sum(min(max(step - p.first, 0), p.steps) * p.batch_size * p.n_ctx for p in phases)


def snapshot_steps(spec: str, steps: int) -> list[int]:
    """The steps of a run of `steps` steps that `--snapshots` keeps, in order; none for "none".

    Raises `InputError` for another spelling than log, log:N, every:N, numbers with commas, or none.
    """
    kind, _, number = spec.partition(":")
    try:
        if spec == "none":
            return []
        if spec == "log" or (kind == "log" and number):
            stride = int(number or 1000)
            wanted = {0, *(2**k for k in range(10)), *range(stride * (512 // stride + 1), steps + 1, stride)}
        elif kind == "every":
            wanted = set(range(0, steps + 1, stride := int(number)))
        else:
            stride, wanted = 1, {int(word) for word in spec.split(",")}
        if stride < 1 or min(wanted) < 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"--snapshots {spec}: log, log:N (0, 1, 2, 4 … 512, then every N), every:N, steps as 0,100,500, or none"
        ) from None
    return sorted(n for n in {*wanted, steps} if n <= steps)


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
"""What neither the family nor the scale changes."""

OPTIMISERS: dict[str, dict[str, Any]] = {
    # MLX's AdamW and Muon (SPEC §1.2, §9)
    "krom": dict(
        optimizer="muon",
        beta2=0.999,
        bias_correction=False,
        decay_vectors=True,
        muon_decay_mode="coupled",
        muon_kernels=True,
    ),
    "hdpl": dict(lr_floor=0.0),
}
"""A family's formulas, at every scale: its optimiser and the shape of its schedule. Rates, lengths, batch, clipping and
storage are the paper's at scale paper alone."""

FAMILIES = {"std-t": "lfa", "d-cas": "lfa", "lfa": "lfa", "cfm": "lfa", "pls": "pls", "c2": "pls"}
FAMILIES |= {"llama": "hdpl", "hdpl": "hdpl"}
FAMILIES |= dict.fromkeys(("gpt2", "canon", "kromhc", "kromcanon"), "krom")

SMALL = dict(lr=1e-3, warmup=100, batch_size=16, epochs=4.0)
"""For the scales that are not a paper's: narrow models take a higher rate."""


def with_recipe(training: Training, preset: str, scale: str) -> Training:
    """`training` with every None filled from the recipe; epochs that are given replace the recipe's steps."""
    family = FAMILIES.get(preset, "dst")
    recipe: Mapping[str, Any] = RECIPES[family] if scale == "paper" else SMALL
    seeds = {f"seed_{what}": seed for what, seed in training.seeds.items()}
    filled = {**USUAL, **seeds, **OPTIMISERS.get(family, {}), **recipe}
    if training.epochs is not None:
        filled.pop("steps", None)
    if phases := phases_of(training.phases):
        filled |= {"steps": sum(phase.steps for phase in phases), "epochs": None}
    return replace(training, **{k: v for k, v in filled.items() if getattr(training, k) is None})


def check_given(given: Training, filled: Training, model: ModelConfig, usual: Training) -> None:
    """Raise `InputError` for an option of a training that would be ignored for this model or by these other options.

    `given` is what was asked for, `filled` the same after `with_recipe`, `usual` what holds where nothing is asked for.
    A value that is the usual one anyway is never refused.
    """
    hyper, muon, canon = isinstance(model.residual, Hyper), filled.optimizer == "muon", model.canon is not None
    rules: list[tuple[str, bool, str]] = [
        ("hc_", hyper, f"{model.name} has no hyper-connections"),
        ("hc_beta", filled.hc_optimizer == "adamw", "--hc-optimizer sgd has no β"),
        ("muon_", muon, f"--optimizer is {filled.optimizer}, not muon"),
        ("muon_kernels", canon, f"{model.name} has no Canon layers"),
        ("epochs", given.steps is None, "--steps says how long the training is"),
        ("snapshot_dtype", filled.snapshots != "none", "--snapshots none keeps none"),
    ]
    plain = {**asdict(usual), **{name: value for name, value in USUAL.items() if getattr(usual, name) is None}}
    for name, value in asdict(given).items():
        for start, acts, reason in rules:
            if name.startswith(start) and not acts and value is not None and value != plain[name]:
                raise InputError(f"--{name.replace('_', '-')} has no effect, because {reason}: leave it out")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m models.train`."""

    preset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")] = ""
    """std-t d-cas lfa cfm · dst-dense dst-kron dst-ind dst-full-ind · pls c2 · llama hdpl · gpt2 canon kromhc
    kromcanon."""
    data: str | None = None
    """Training SOURCE: a .txt, .jsonl, .json, .csv or .parquet file, a folder of them (its split train, where it has
    splits), a Hugging Face id, stories, stories4, or a mixture of these with weights of their tokens, "A*.5 + B*.5"."""
    valid: str | None = None
    """Validation SOURCE; without it a part of --data is held out."""
    valid_fraction: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Without --valid: how much of --data is held out, by default 0.05: documents, chosen by their text."""
    valid_blocks: Count | None = None
    """Hold out the ends of so many blocks of every document instead: contiguous text that no training window reads. By
    default where whole documents leave one side empty, as of one book: 10."""
    text_field: str = "text"
    """Field or column that holds the text, in JSON, CSV, parquet and Hugging Face sources; without a field text, chats
    in a field messages are read."""
    split_at: SplitAt = "separator"
    """What separates the documents of a text file: lines <|endoftext|> (without one it is one document), blank lines,
    or nothing: every file is one."""
    max_documents: Count | None = None
    """Read at most this many documents."""
    scale: Literal["paper", "small", "zoo", "tiny"] = "small"
    """paper: as printed; small: width 192; zoo: width 96; tiny: for tests."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Change the model, for example --set attention.v=kron --set n_layers=4 --set mixing=kron-kron/dns-dns."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder with encoder.json and vocab.bpe, a run or a bundled model; default: train BPE on the
    data."""
    start: str | None = None
    """Begin with the weights, and the tokenizer, of this run, snapshot (RUN@STEP) or bundled model of the same
    configuration; default: weights drawn by the seed. Optimiser and schedule begin anew."""
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; everything else is read from there."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=Training)
