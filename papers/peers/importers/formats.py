"""Reads models of the papers' authors: configuration (from names and shapes) and weights.

kromcanon   teilomillet/kromcanon (KROM), MLX: `model.npz`. Linear maps are [d_out, d_in], in KromHC [d_in, d_out]
hdpl        VladimerKhasia/HDPL (HDPL), PyTorch: `best_model_*.pt`. Block-diagonal maps are those of Conv1d

Canon layers with biases, and factors of KromHC other than two, are refused, because our models have none.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli.disk import sha256
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.models.config import Canon, Dense, Hdpl, KromHC, Mlp, ModelConfig, Projection
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import override
from streamscope.models.interop.huggingface.convert import fill, fitting_tokenizer
from streamscope.models.interop.tables import TRANSPOSED, WHOLE, Conversion, Table, equal, modules, shapes_of, take
from streamscope.models.tensors import new_folder
from streamscope.papers.peers.importers.tensors import count_layers, matrix, read

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


def _branch(our_branch: str, their_branch: str) -> Table:
    """The table of one hyper-connection of the port."""
    stack = Conversion(lambda x, shape: torch.stack(list(x)))
    maps = Conversion(lambda x, shape: torch.cat([part.mT for part in x]))  # [d_in, part of d_out]
    table = {"norm_weight": ("norm.weight", WHOLE), "alpha.res": ("alpha_res", WHOLE)}
    table |= {"b.res": ("b_res.{k}", stack), "W.res": ("w_res.{k}", maps)}
    for name in ("pre", "post"):
        table |= {f"b.{name}": (f"b_{name}", WHOLE), f"alpha.{name}": (f"alpha_{name}", WHOLE)}
        table |= {f"W.{name}": (f"w_{name}", TRANSPOSED)}
    return {f"blocks.{{l}}.{our_branch}.{name}": (f"blocks.{{l}}.{their_branch}.{their}", conversion)
            for name, (their, conversion) in table.items()}  # fmt: skip


CANON = {"A": "canon_a.conv", "B": "attn.canon_b.conv", "C": "canon_c.conv", "D": "ffn.canon_d.conv"}
KROMCANON: Table = {
    **modules("blocks", {"embed": "wte", "pos_embed": "wpe", "ln_final": "ln_f"}, {
        "ln1": "norm1", "ln2": "norm2", **{f"attn.{name}": f"attn.{name}_proj" for name in "qkvo"},
        "mlp.up": "ffn.fc1", "mlp.down": "ffn.fc2",
        **{f"canon_{place.lower()}": their for place, their in CANON.items()},
    }),
    **_branch("attn_hc", "kromhc_attn"), **_branch("mlp_hc", "kromhc_ffn"),
}  # fmt: skip


def kromcanon(their_tensors: Theirs) -> ModelConfig:
    """KROM's four architectures (Canon layers, KromHC, both, neither), from the names in the file."""
    (vocabulary, width), (context, _) = matrix(their_tensors, "wte.weight"), matrix(their_tensors, "wpe.weight")
    layers = count_layers(their_tensors, "blocks.")
    kernels = {place: kernel for place, name in CANON.items() if (kernel := _last_axis(their_tensors, name, layers))}
    streams = any(".kromhc_" in name for name in their_tensors)
    base = preset({(0, 0): "gpt2", (1, 0): "canon", (0, 1): "kromhc", (1, 1): "kromcanon"}[bool(kernels), streams])
    residual = base.residual
    if isinstance(residual, KromHC):
        static = their_tensors.get("blocks.0.kromhc_attn.b_pre")
        if static is None or static.ndim != 1:
            raise InputError("blocks.0.kromhc_attn.b_pre is missing or not a list; its length is the number of streams")
        residual = replace(
            residual, n=len(static), dynamic=any(name.endswith(".w_pre") for name in their_tensors),
            freeze_res=not any(".b_res." in name for name in their_tensors),
        )  # fmt: skip
    return replace(
        base, n_layers=layers, d_model=width, n_heads=_heads(width), d_vocab=vocabulary, n_ctx=context,
        mlp=Mlp(d_mlp=matrix(their_tensors, "blocks.0.ffn.fc1.weight")[0]), residual=residual,
        canon=Canon(places="".join(kernels), kernel=max(kernels.values())) if kernels else None,
    )  # fmt: skip


def _last_axis(tensors: Theirs, module: str, layers: int) -> int:
    """Length of the last axis of the first such weight; 0 if no layer has one."""
    names = (f"blocks.{layer}.{module}.weight" for layer in range(layers))
    return next((tensors[name].shape[-1] for name in names if name in tensors and tensors[name].ndim), 0)


def _unused_terms(config: ModelConfig) -> set[str]:
    """Names of scales and maps of the port whose terms are switched off."""
    spec = config.residual
    if not isinstance(spec, KromHC) or (spec.dynamic and not spec.freeze_res):
        return set()
    ends = ["alpha_res", *(f"w_res.{k}" for k in range(spec.factors))] if spec.freeze_res else []
    ends += [] if spec.dynamic else ["alpha_pre", "alpha_post", "alpha_res"]
    modules = [f"blocks.{layer}.kromhc_{branch}" for layer in range(config.n_layers) for branch in ("attn", "ffn")]
    return {f"{module}.{end}" for module in modules for end in ends}


BLOCKS = Conversion(lambda x, shape: x[0].squeeze(-1).unflatten(0, (shape[0], -1)).mT)
"""A Conv1d [d_out, d_in/K, 1] of K groups; ours is [K, d_in/K, d_out/K]."""
LINEAR = {f"attn.{n}": f"attn.{n}_proj" for n in "qkvo"} | {f"mlp.{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")}
HYBRID = {"decoder": "decoder", "mu": "enc_mu", "logvar": "enc_logvar"}
HDPL: Table = {
    **modules("layers", {"embed": "token_emb", "unembed": "lm_head", "ln_final": "norm"}, {
        "ln1": "norm1", "ln2": "norm2", **{name: f"{their}.linear" for name, their in LINEAR.items()},
        **{f"{name}.{part}": f"{their}.{end}" for name, their in LINEAR.items() for part, end in HYBRID.items()},
    }),
    **{f"blocks.{{l}}.{name}.detail": (f"layers.{{l}}.{their}.block_path.weight", BLOCKS)
       for name, their in LINEAR.items()},
}  # fmt: skip


def hdpl(their_tensors: Theirs) -> ModelConfig:
    """HDPL's hybrid and its baseline, from the names of layer 0.

    The code ties head and embedding, but training on a TPU unties them (SPEC §5): they are tied if they are equal.
    """
    vocabulary, width = matrix(their_tensors, "token_emb.weight")
    matrix(their_tensors, "lm_head.weight")
    layers = count_layers(their_tensors, "layers.")
    gate = "layers.0.mlp.gate_proj."
    hidden = matrix(their_tensors, gate + ("decoder.weight" if _hybrid(their_tensors, gate) else "linear.weight"))[0]
    specs = {name: _projection(their_tensors, f"layers.0.{their}.", hidden if name == "mlp.down" else width)
             for name, their in LINEAR.items()}  # fmt: skip
    base, hybrid = preset("llama"), any(isinstance(spec, Hdpl) for spec in specs.values())
    config = replace(
        base, name="hdpl" if hybrid else base.name, n_layers=layers, d_model=width, n_heads=_heads(width),
        d_vocab=vocabulary,
        readout=replace(base.readout, tied=equal(their_tensors["token_emb.weight"], their_tensors["lm_head.weight"])),
    )  # fmt: skip
    parts = {name.replace("attn", "attention"): spec for name, spec in specs.items()}
    return override(config, parts | {"mlp.d_mlp": hidden})


def _hybrid(their_tensors: Theirs, prefix: str) -> bool:
    starts = tuple(f"{prefix}{their}." for their in ("block_path", *HYBRID.values()))
    return any(name.startswith(starts) for name in their_tensors)


def _projection(their_tensors: Theirs, prefix: str, d_in: int) -> Projection:
    """Dense, or the hybrid with latent width and blocks from its shapes."""
    if not _hybrid(their_tensors, prefix):
        return Dense()
    rank, _ = matrix(their_tensors, f"{prefix}enc_mu.weight")
    detail = their_tensors.get(f"{prefix}block_path.weight")
    if detail is None or detail.ndim != 3 or not detail.shape[1]:
        raise InputError(f"{prefix}block_path.weight is missing or not that of a Conv1d")
    return Hdpl(rank=rank, groups=d_in // detail.shape[1])


def _heads(width: int) -> int:
    """Number of heads of width `D_HEAD`, or 1 if it does not divide the width."""
    return 1 if width % D_HEAD else width // D_HEAD


FORMATS = {
    "kromcanon": Format(kromcanon, KROMCANON, ("n_heads",), _unused_terms),
    "hdpl": Format(
        hdpl, HDPL, ("n_heads", "n_ctx", "positions.base"),
        lambda config: {"lm_head.weight"} if config.readout.tied else (),  # the second name of a tied head
    ),
}  # fmt: skip


def import_model(their_tensors: Theirs, format: str, changes: Mapping[str, Any] | None = None) -> ImportedModel:
    """Convert a model from its tensors by name (`tensors.read`), keeping its dtypes.

    `changes` are dotted overrides of the configuration. Raises `InputError` for missing, additional or differently
    shaped tensors, and for an impossible configuration.
    """
    if format not in FORMATS:
        raise unknown("format", format, list(FORMATS))
    format_spec, changes = FORMATS[format], dict(changes or {})
    read_off = format_spec.config(their_tensors)
    if read_off.d_model % D_HEAD and "n_heads" not in changes:
        raise InputError(f"the number of heads of a width of {read_off.d_model} is unknown: give --set n_heads=N")
    config = override(replace(read_off, name=f"authors-{read_off.name}"), changes)
    factors = config.residual.factors if isinstance(config.residual, KromHC) else 0
    options: dict[str, Any] = {"factors": factors, "unread": format_spec.unread(read_off)}
    tensors = take(format_spec.table, their_tensors, their_tensors.__getitem__, shapes_of(config), **options)
    assumed = {name: attrgetter(name)(config) for name in format_spec.assumed if name not in changes}
    return ImportedModel(config, tensors, assumed)


def convert(
    file: Path, format: str, out: Path, changes: Mapping[str, Any] | None = None, tokenizer: Path | None = None
) -> ImportedModel:
    """Convert a checkpoint to the run folder `out`, atomically.

    Raises `InputError` if `out` exists, the tokenizer has more entries than the model, and like `tensors.read` and
    `import_model`.
    """
    with new_folder(out) as part:
        their_tensors = read(file)
        with reading(file, f"is it of the format {format}?"):
            model = import_model(their_tensors, format, changes)
        words = fitting_tokenizer(tokenizer, model.config.d_vocab) if tokenizer is not None else None
        about: dict[str, Any] = {"source": str(file.resolve()), "source_sha256": sha256(file), "format": format}
        fill(part, model.config, model.tensors, words, **about, assumed=model.assumed)
    return model
