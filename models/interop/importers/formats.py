"""Reads models of the papers' authors: configuration (from names and shapes) and weights.

kromcanon   teilomillet/kromcanon (KROM), MLX: `model.npz`. Linear maps are [d_out, d_in], in KromHC [d_in, d_out]
hdpl        VladimerKhasia/HDPL (HDPL), PyTorch: `best_model_*.pt`. Block-diagonal maps are those of Conv1d

Canon layers with biases, and factors of KromHC other than two, are refused, because our models have none.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.models.config import Canon, Dense, Hdpl, KromHC, Mlp, ModelConfig, Projection
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import override
from streamscope.models.decoder import Decoder
from streamscope.models.interop.huggingface.convert import fill, fitting_tokenizer, new_folder
from streamscope.models.interop.importers.tensors import (
    Row,
    Table,
    Take,
    count_layers,
    maps,
    matrix,
    read,
    stacked,
    take,
    transposed,
    whole,
)
from streamscope.models.tensors import sha256

Theirs = Mapping[str, Tensor]
D_HEAD = 64
"""Head width in every setting of both repositories."""


@dataclass(frozen=True)
class Format:
    """Reads the checkpoints of a repository."""

    config: Callable[[Theirs], ModelConfig]
    """The configuration, with heads and context of the authors' settings."""
    table: Table
    assumed: tuple[str, ...]
    """Fields that `config` assumes."""
    unread: Callable[[ModelConfig], Collection[str]] = lambda config: ()
    """Names of their tensors that nothing computes with."""


@dataclass(frozen=True)
class ImportedModel:
    """A converted model."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    assumed: dict[str, Any]
    """Values that neither the file nor the user gives."""


def _branch(ours: str, theirs: str) -> list[Row]:
    """Rows of one hyper-connection of the port."""
    outer = [(f"{ours}.{o}.{n}", f"{theirs}.{t}_{n}", how) for n in ("pre", "post")
             for o, t, how in (("b", "b", whole), ("W", "w", transposed), ("alpha", "alpha", whole))]  # fmt: skip
    return [
        *outer,
        (f"{ours}.norm_weight", f"{theirs}.norm.weight", whole),
        (f"{ours}.b.res", f"{theirs}.b_res.{{k}}", stacked),
        (f"{ours}.W.res", f"{theirs}.w_res.{{k}}", maps),
        (f"{ours}.alpha.res", f"{theirs}.alpha_res", whole),
    ]


CANON = {
    "A": "blocks.{l}.canon_a.conv.weight", "B": "blocks.{l}.attn.canon_b.conv.weight",
    "C": "blocks.{l}.canon_c.conv.weight", "D": "blocks.{l}.ffn.canon_d.conv.weight",
}  # fmt: skip
KROMCANON: Table = (
    ("embed.weight", "wte.weight", whole),
    ("pos_embed.weight", "wpe.weight", whole),
    ("ln_final.weight", "ln_f.weight", whole),
    *((f"blocks.{{l}}.ln{n}.weight", f"blocks.{{l}}.norm{n}.weight", whole) for n in (1, 2)),
    *((f"blocks.{{l}}.attn.{n}.weight", f"blocks.{{l}}.attn.{n}_proj.weight", whole) for n in "qkvo"),
    ("blocks.{l}.mlp.up.weight", "blocks.{l}.ffn.fc1.weight", whole),
    ("blocks.{l}.mlp.down.weight", "blocks.{l}.ffn.fc2.weight", whole),
    *((f"blocks.{{l}}.canon_{place.lower()}.weight", their, whole) for place, their in CANON.items()),
    *_branch("blocks.{l}.attn_hc", "blocks.{l}.kromhc_attn"),
    *_branch("blocks.{l}.mlp_hc", "blocks.{l}.kromhc_ffn"),
)


def kromcanon(theirs: Theirs) -> ModelConfig:
    """KROM's four architectures (Canon layers, KromHC, both, neither), from the names in the file."""
    (vocabulary, width), (context, _) = matrix(theirs, "wte.weight"), matrix(theirs, "wpe.weight")
    layers = count_layers(theirs, "blocks.")
    kernels = {place: kernel for place, name in CANON.items() if (kernel := _last_axis(theirs, name, layers))}
    streams = any(".kromhc_" in name for name in theirs)
    base = preset({(0, 0): "gpt2", (1, 0): "canon", (0, 1): "kromhc", (1, 1): "kromcanon"}[bool(kernels), streams])
    residual = base.residual
    if isinstance(residual, KromHC):
        static = theirs.get("blocks.0.kromhc_attn.b_pre")
        if static is None or static.ndim != 1:
            raise InputError("blocks.0.kromhc_attn.b_pre is missing or not a list; its length is the number of streams")
        residual = replace(
            residual, n=len(static), dynamic=any(name.endswith(".w_pre") for name in theirs),
            freeze_res=not any(".b_res." in name for name in theirs),
        )  # fmt: skip
    return replace(
        base, n_layers=layers, d_model=width, n_heads=_heads(width), d_vocab=vocabulary, n_ctx=context,
        mlp=Mlp(d_mlp=matrix(theirs, "blocks.0.ffn.fc1.weight")[0]), residual=residual,
        canon=Canon(places="".join(kernels), kernel=max(kernels.values())) if kernels else None,
    )  # fmt: skip


def _last_axis(theirs: Theirs, pattern: str, layers: int) -> int:
    """Length of the last axis of the first tensor with this name; 0 if no layer has one."""
    names = (pattern.replace("{l}", str(layer)) for layer in range(layers))
    return next((theirs[name].shape[-1] for name in names if name in theirs and theirs[name].ndim), 0)


def _unused_terms(config: ModelConfig) -> set[str]:
    """Names of scales and maps of the port whose terms are switched off."""
    spec = config.residual
    if not isinstance(spec, KromHC) or (spec.dynamic and not spec.freeze_res):
        return set()
    ends = ["alpha_res", *(f"w_res.{k}" for k in range(spec.factors))] if spec.freeze_res else []
    ends += [] if spec.dynamic else ["alpha_pre", "alpha_post", "alpha_res"]
    modules = [f"blocks.{layer}.kromhc_{branch}" for layer in range(config.n_layers) for branch in ("attn", "ffn")]
    return {f"{module}.{end}" for module in modules for end in ends}


def blocks(x: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A Conv1d [d_out, d_in/K, 1] of K groups; ours is [K, d_in/K, d_out/K]."""
    return x[0].squeeze(-1).unflatten(0, (shape[0], -1)).mT


LINEAR = {f"attn.{n}": f"attn.{n}_proj" for n in "qkvo"} | {f"mlp.{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")}
HYBRID: dict[str, tuple[str, Take]] = {
    "detail": ("block_path.weight", blocks), "decoder.weight": ("decoder.weight", whole),
    **{f"{o}.{end}": (f"{t}.{end}", whole) for o, t in (("mu", "enc_mu"), ("logvar", "enc_logvar"))
       for end in ("weight", "bias")},
}  # fmt: skip
HDPL: Table = (
    ("embed.weight", "token_emb.weight", whole),
    ("unembed.weight", "lm_head.weight", whole),
    ("ln_final.weight", "norm.weight", whole),
    *((f"blocks.{{l}}.ln{n}.weight", f"layers.{{l}}.norm{n}.weight", whole) for n in (1, 2)),
    *((f"blocks.{{l}}.{o}.weight", f"layers.{{l}}.{t}.linear.weight", whole) for o, t in LINEAR.items()),
    *((f"blocks.{{l}}.{o}.{end}", f"layers.{{l}}.{t}.{their}", how)
      for o, t in LINEAR.items() for end, (their, how) in HYBRID.items()),
)  # fmt: skip


def hdpl(theirs: Theirs) -> ModelConfig:
    """HDPL's hybrid and its baseline, from the names of layer 0.

    The code ties head and embedding, but training on a TPU unties them (SPEC §5): they are tied if they are equal.
    """
    vocabulary, width = matrix(theirs, "token_emb.weight")
    matrix(theirs, "lm_head.weight")
    layers = count_layers(theirs, "layers.")
    gate = "layers.0.mlp.gate_proj."
    hidden = matrix(theirs, gate + ("decoder.weight" if _hybrid(theirs, gate) else "linear.weight"))[0]
    specs = {ours: _projection(theirs, f"layers.0.{their}.", hidden if ours == "mlp.down" else width)
             for ours, their in LINEAR.items()}  # fmt: skip
    base, hybrid = preset("llama"), any(isinstance(spec, Hdpl) for spec in specs.values())
    config = replace(
        base, name="hdpl" if hybrid else base.name, n_layers=layers, d_model=width, n_heads=_heads(width),
        d_vocab=vocabulary,
        readout=replace(base.readout, tied=_equal(theirs["token_emb.weight"], theirs["lm_head.weight"])),
    )  # fmt: skip
    parts = {ours.replace("attn", "attention"): spec for ours, spec in specs.items()}
    return override(config, parts | {"mlp.d_mlp": hidden})


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x, y)


def _hybrid(theirs: Theirs, prefix: str) -> bool:
    return any(f"{prefix}{their}" in theirs for their, _ in HYBRID.values())


def _projection(theirs: Theirs, prefix: str, d_in: int) -> Projection:
    """Dense, or the hybrid with latent width and blocks from its shapes."""
    if not _hybrid(theirs, prefix):
        return Dense()
    rank, _ = matrix(theirs, f"{prefix}enc_mu.weight")
    detail = theirs.get(f"{prefix}block_path.weight")
    if detail is None or detail.ndim != 3 or not detail.shape[1]:
        raise InputError(f"{prefix}block_path.weight is missing or not that of a Conv1d")
    return Hdpl(rank=rank, groups=d_in // detail.shape[1])


def _tied_names(config: ModelConfig) -> set[str]:
    """The second name of a tied head."""
    return {"lm_head.weight"} if config.readout.tied else set()


def _heads(width: int) -> int:
    """Number of heads of width `D_HEAD`, or 1 if it does not divide the width."""
    return 1 if width % D_HEAD else width // D_HEAD


FORMATS = {
    "kromcanon": Format(kromcanon, KROMCANON, ("n_heads",), _unused_terms),
    "hdpl": Format(hdpl, HDPL, ("n_heads", "n_ctx", "positions.base"), _tied_names),
}


def import_model(theirs: Theirs, format: str, changes: Mapping[str, Any] | None = None) -> ImportedModel:
    """Convert a model from its tensors by name (`tensors.read`), keeping its dtypes.

    `changes` are dotted overrides of the configuration. Raises `InputError` for missing, additional or differently
    shaped tensors, and for an impossible configuration.
    """
    if format not in FORMATS:
        raise unknown("format", format, list(FORMATS))
    how, changes = FORMATS[format], dict(changes or {})
    read_off = how.config(theirs)
    if read_off.d_model % D_HEAD and "n_heads" not in changes:
        raise InputError(f"the number of heads of a width of {read_off.d_model} is unknown: give --set n_heads=N")
    config = override(replace(read_off, name=f"authors-{read_off.name}"), changes)
    with torch.device("meta"):
        shapes = {name: x.shape for name, x in Decoder(config).state_dict().items()}
    factors = config.residual.factors if isinstance(config.residual, KromHC) else 0
    tensors = take(how.table, theirs, shapes, layers=config.n_layers, factors=factors, unread=how.unread(read_off))
    assumed = {name: attrgetter(name)(config) for name in how.assumed if name not in changes}
    return ImportedModel(config, tensors, assumed)


def convert(
    file: Path, format: str, out: Path, changes: Mapping[str, Any] | None = None, tokenizer: Path | None = None
) -> ImportedModel:
    """Convert a checkpoint to the run folder `out`, atomically.

    Raises `InputError` if `out` exists, the tokenizer has more entries than the model, and like `tensors.read` and
    `import_model`.
    """
    with new_folder(out) as part:
        theirs = read(file)
        try:
            model = import_model(theirs, format, changes)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        words = fitting_tokenizer(tokenizer, model.config.d_vocab) if tokenizer is not None else None
        about: dict[str, Any] = {"source": str(file.resolve()), "source_sha256": sha256(file), "format": format}
        fill(part, model.config, model.tensors, words, **about, assumed=model.assumed)
    return model
