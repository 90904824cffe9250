"""Options of a training run. Nothing here imports torch; the field docs are the command's help."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from models.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train. Defaults of `None` are filled from the recipe of the preset and scale."""

    lr: float | None = None
    """Peak learning rate of AdamW."""
    lr_floor: float = 0.1
    """Final learning rate as a share of the peak."""
    warmup: int | None = None
    """Steps of linear warm-up; never more than a tenth of the run."""
    weight_decay: float = 0.1
    """Decoupled weight decay of AdamW, on tensors with two or more axes."""
    beta1: float = 0.9
    """AdamW β1."""
    beta2: float | None = None
    """AdamW β2."""
    optimizer: Literal["adamw", "muon"] | None = None
    """adamw for everything; muon for matrices and AdamW for tables, vectors and tensors of more axes."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: float = 0.95
    """Muon's (Nesterov) momentum."""
    muon_decay: float = 0.01
    """Muon's decoupled weight decay."""
    hc_optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimiser of the hyper-connections; sgd has no momentum."""
    hc_lr: float = 5e-3
    """Peak learning rate of the hyper-connections."""
    hc_decay: float = 0.2
    """Their weight decay, on all of their parameters: biases as well."""
    hc_beta1: float = 0.8
    """Their AdamW β1."""
    hc_beta2: float = 0.95
    """Their AdamW β2."""
    clip: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    batch_size: int | None = None
    """Sequences per optimiser step."""
    accumulate: int = 1
    """Micro-batches per step; must divide the batch size."""
    epochs: float | None = None
    """Passes over the training windows."""
    steps: int | None = None
    """Optimiser steps; overrides epochs."""
    packing: Literal["stream", "document"] = "stream"
    """stream: documents one after another, cut every n_ctx tokens; document: one document per window."""
    seed: int = 0
    """Seed of the weights, the data order and dropout."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Autocast. auto: bf16 on CUDA, and on a CPU from width 128 (below that bf16 is slower)."""
    compile: bool = False
    """torch.compile each block for training; analyses always run eagerly."""
    log_every: int = 10
    """Steps between training-loss rows."""
    eval_every: int = 200
    """Steps between evaluations."""
    eval_batches: int = 50
    """Most batches per evaluation; the first windows of the validation part."""
    sample_every: int = 400
    """Steps between samples of text; 0 for none."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep: Literal["last", "best"] = "last"
    """Which weights model.safetensors holds at the end: the last, or those with the best validation loss."""

    def __post_init__(self) -> None:
        for name in ("accumulate", "log_every", "eval_every", "eval_batches", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "epochs", "steps", "batch_size", "muon_lr", "hc_lr"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} must be positive, got {value}")
        if self.batch_size is not None and self.batch_size % self.accumulate:
            raise InputError(f"{self.accumulate} micro-batches do not divide a batch of {self.batch_size} sequences")


RECIPES: dict[str, dict[str, Any]] = {
    "lfa": dict(lr=3e-4, warmup=1000, batch_size=32, epochs=2.0),  # LFA §2.6, SPEC §8
    "dst": dict(lr=5e-4, warmup=1000, batch_size=32, epochs=3.0),  # DST §3.1
    "pls": dict(lr=3e-4, warmup=1000, batch_size=64, epochs=2.0),  # PLS A.8; epochs are not printed
    "hdpl": dict(lr=8e-4, warmup=1000, batch_size=4, epochs=1.0),  # HDPL A.1: 20,000 steps; batch: SPEC §7.5
    "krom": dict(lr=6e-4, warmup=200, batch_size=16, steps=2000),  # SPEC §1.2; bf16 throughout there
}
"""The papers' settings, by family, at scale paper."""

OPTIMISERS: dict[str, dict[str, Any]] = {"krom": dict(optimizer="muon", beta2=0.999)}
"""Other than AdamW with β2 = 0.95, at every scale."""

FAMILIES = {"std-t": "lfa", "d-cas": "lfa", "lfa": "lfa", "cfm": "lfa", "pls": "pls", "c2": "pls"}
FAMILIES |= {"llama": "hdpl", "hdpl": "hdpl"}
FAMILIES |= dict.fromkeys(("gpt2", "canon", "kromhc", "kromcanon"), "krom")

SMALL = dict(lr=1e-3, warmup=100, batch_size=16, epochs=4.0)
"""For the scales that are not a paper's: narrow models take a higher rate."""


def with_recipe(training: Training, preset: str, scale: str) -> Training:
    """`training` with every None filled from the recipe; epochs that are given replace the recipe's steps."""
    family = FAMILIES.get(preset, "dst")
    recipe: Mapping[str, Any] = RECIPES[family] if scale == "paper" else SMALL
    filled = {"optimizer": "adamw", "beta2": 0.95, **OPTIMISERS.get(family, {}), **recipe}
    if training.epochs is not None:
        filled.pop("steps", None)
    return replace(training, **{k: v for k, v in filled.items() if getattr(training, k) is None})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m models.train`."""

    preset: Annotated[str, tyro.conf.Positional] = ""
    """std-t d-cas lfa cfm · dst-dense dst-kron dst-ind dst-full-ind · pls c2 · llama hdpl · gpt2 canon kromhc
    kromcanon."""
    data: str | None = None
    """Training SOURCE: a .txt, .jsonl or .parquet file or a folder of them, a Hugging Face id, or stories."""
    valid: str | None = None
    """Validation SOURCE; without it 5 % of the documents of --data are held out."""
    text_field: str = "text"
    """Field or column that holds the text, in JSONL, parquet and Hugging Face sources."""
    max_documents: int | None = None
    """Read at most this many documents."""
    scale: Literal["paper", "small", "zoo", "tiny"] = "small"
    """paper: as printed; small: width 192; zoo: width 96; tiny: for tests."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Change the model, for example --set attention.v=kron --set n_layers=4 --set mixing=kron-kron/dns-dns."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder with encoder.json and vocab.bpe, or a run; default: train BPE on the data."""
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; everything else is read from there."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=Training)
