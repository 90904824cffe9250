"""Make another project's model random, save it in its format, import it, and compare the outputs of both."""

import importlib
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.papers.peers.importers.connections import hyper_connection
from streamscope.papers.peers.importers.formats import convert
from streamscope.papers.peers.importers.tensors import read

Row = dict[str, Any]
B, T, D = 2, 12, 64
SIZES = {"n_layers": 2, "n_heads": 4, "vocab_size": 96}
DTYPES = (torch.float64, torch.float32)
TPU = ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model", "torch_xla.distributed",
       "torch_xla.distributed.parallel_loader", "torch_xla.distributed.xla_multiprocessing", "matplotlib",
       "matplotlib.pyplot", "transformers", "datasets")  # fmt: skip
"""What HDPL's script imports for data, training and drawing alone."""


@contextmanager
def their_code(folder: Path, *names: str, absent: Sequence[str] = ()) -> Iterator[list[Any]]:
    """Modules imported from a folder, and forgotten afterwards; `absent` ones are stand-ins that do nothing.

    Raises `InputError` for a folder that is none, lacks them, or needs a package that is not installed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name a clone")
    roots = {name.partition(".")[0] for name in (*names, *absent)} - {"mlx"}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    with patch.dict("os.environ"), patch.object(sys, "path", [str(folder), *sys.path]):
        try:
            for name in before:
                del sys.modules[name]
            sys.modules.update({name: MagicMock() for name in absent})
            try:
                modules = [importlib.import_module(name) for name in names]
            except ImportError as error:
                raise InputError(f"the code in {folder} cannot be imported: {error}") from None
            yield modules
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
                del sys.modules[name]
            sys.modules.update(before)


def row(peer: str, what: str, stored: str, ours: Tensor, theirs: Tensor) -> Row:
    """The largest difference as a share of the largest output of theirs."""
    difference = float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())
    return {
        "peer": peer, "what": what, "stored": stored, "computed": name_of(ours.dtype),
        "difference": difference, "roundings": difference / torch.finfo(ours.dtype).eps,
    }  # fmt: skip


def name_of(dtype: object) -> str:
    """float32 of torch.float32 or mlx.core.float32."""
    return str(dtype).rpartition(".")[2]


@torch.no_grad()
def shaken(module: torch.nn.Module, seed: int) -> None:
    """Move every parameter by a random number, larger ones for scales and biases."""
    g = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.add_((torch.randn(p.shape, generator=g, dtype=torch.float64) / math.prod(p.shape[-1:]) ** 0.5).to(p))


def _branch(h: Tensor) -> Tensor:
    return h.roll(1, -1).tanh() * 1.7 + 0.3


# ---- single layers -----------------------------------------------------------------------------


@torch.no_grad()
def _layer(peer: str, kind: str, what: str, module: Any, n: int, seed: int, **options: Any) -> Row:
    """One connection in the dtype it has; theirs keeps streams in the batch."""
    shaken(module, seed)
    dtype = next(module.parameters()).dtype
    X = torch.randn(B, T, n, D, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "module.pt"
        torch.save(module.state_dict(), file)
        ours = hyper_connection(read(file), kind, **options)
    theirs = module.decorate_branch(_branch)(X.transpose(1, 2).flatten(0, 1)).unflatten(0, (B, n)).transpose(1, 2)
    return row(peer, what, name_of(dtype), ours(X, _branch), theirs)


def hyper_connections(folder: Path, seed: int) -> Iterator[Row]:
    """lucidrains' HyperConnections, with and without tanh."""
    with their_code(folder, "hyper_connections.hyper_connections") as (theirs,):
        for tanh in (True, False):
            for dtype in DTYPES:
                module = theirs.HyperConnections(4, dim=D, layer_index=1, tanh=tanh).to(dtype)
                options = {"dyn_act": "tanh" if tanh else "none"}
                what = "HyperConnections" + ("" if tanh else ", tanh=False")
                yield _layer("hyper-connections", "hyper-connections", what, module, 4, seed, **options)


def kromhc(folder: Path, seed: int) -> Iterator[Row]:
    """KromHC of four and eight streams, and MHCLite of four."""
    with their_code(folder, "hyper_conn.Kromhc", "hyper_conn.mhc_lite") as (krom, lite):
        for dtype in DTYPES:
            for n in (4, 8):
                module = krom.KromHC(n, dim=D, layer_index=1).to(dtype)
                yield _layer("KromHC", "kromhc", f"KromHC, {n} streams", module, n, seed)
            module = lite.MHCLite(4, dim=D, layer_index=1).to(dtype)
            lite.perm_mats.update({key: P.to(dtype) for key, P in lite.perm_mats.items()})  # kept in fp32 there
            yield _layer("KromHC", "kromhc", "MHCLite, 4 streams", module, 4, seed)


# ---- models ------------------------------------------------------------------------------------


def _tokens(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (B, T))


@torch.no_grad()
def hdpl(folder: Path, seed: int) -> Iterator[Row]:
    """Logits of the hybrid and of the baseline in fp32, projections of the hybrid in fp64.

    Whole models differ in fp64 by their tables of rotary positions, which are computed in fp32 there.
    """
    with their_code(folder, "training_script", absent=TPU) as (theirs,), tempfile.TemporaryDirectory() as scratch:
        sizes = SIZES | {"dim": D, "head_dim": D // SIZES["n_heads"], "hidden_dim": 2 * D, "vae_linear_rank": 16}
        dense = {name: False for name in vars(theirs.Config) if name.startswith("hybrid_")}
        for what, flags in (("hybrid", {}), ("baseline", dense)):
            for dtype in DTYPES:
                net = theirs.GenModel(type("Small", (theirs.Config,), sizes | flags)).to(dtype).eval()
                shaken(net, seed)
                file, run = Path(scratch) / f"{what}.pt", Path(scratch) / f"{what}-{name_of(dtype)}"
                torch.save(net.state_dict(), file)
                converted = convert(file, "hdpl", run, {"n_heads": SIZES["n_heads"]})
                ours = load(run).to(dtype)
                ours.load_state_dict(converted.tensors)
                if dtype == torch.float32:
                    tokens = torch.tensor(_tokens(seed))
                    yield row("HDPL", f"logits, {what}", name_of(dtype), ours(tokens), net(tokens)[0])
                elif what == "hybrid":
                    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)
                    for part, name in (("attn", "q"), ("mlp", "gate")):
                        one = getattr(getattr(ours.blocks[1], part), name)(x)
                        other = getattr(net.layers[1][part], f"{name}_proj")(x)[0]
                        yield row("HDPL", f"HybridDualPathLinear, {name}", name_of(dtype), one, other)


def kromcanon(folder: Path, seed: int) -> Iterator[Row]:
    """Logits of the four architectures, stored in fp32 and in bf16, computed in fp32."""
    names = ("kromcanon.config", "kromcanon.model", "mlx.core", "mlx.utils")
    with their_code(folder / "src", *names) as (config, model, mx, utils), tempfile.TemporaryDirectory() as scratch:
        mx.set_default_device(mx.cpu)
        mx.random.seed(seed)
        for arch in ("vanilla", "canon", "kromhc", "kromcanon"):
            net = model.GPT2(config.ModelConfig(arch=arch, d_model=D, d_ff=2 * D, max_seq_len=T, **SIZES))
            weights = utils.tree_flatten(net.trainable_parameters())
            moved = [(n, w + mx.random.normal(w.shape) / math.prod(w.shape[-1:]) ** 0.5) for n, w in weights]
            net.update(utils.tree_unflatten(moved))
            for dtype in (mx.float32, mx.bfloat16):
                net.set_dtype(dtype)
                file, run = Path(scratch) / f"{arch}.npz", Path(scratch) / f"{arch}-{name_of(dtype)}"
                mx.savez(str(file), **dict(utils.tree_flatten(net.trainable_parameters())))
                net.set_dtype(mx.float32)
                convert(file, "kromcanon", run, {"n_heads": SIZES["n_heads"]})
                tokens = _tokens(seed)
                with torch.no_grad():
                    ours = load(run)(torch.tensor(tokens))
                theirs = torch.tensor(np.array(net(mx.array(tokens))))
                yield row("kromcanon", f"logits, {arch}", name_of(dtype), ours, theirs)


PEERS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "hyper_connections": hyper_connections, "kromhc": kromhc, "hdpl": hdpl, "kromcanon": kromcanon,
}  # fmt: skip
