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
    old_modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    with patch.dict("os.environ"), patch.object(sys, "path", [str(folder), *sys.path]):
        try:
            for name in old_modules:
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
            sys.modules.update(old_modules)


def row(peer: str, quantity: str, stored: str, our_output: Tensor, their_output: Tensor) -> Row:
    """The largest difference as a share of the largest output of theirs."""
    difference = float((our_output.double() - their_output.double()).abs().max() / their_output.double().abs().max())
    return {
        "peer": peer, "what": quantity, "stored": stored, "computed": name_of(our_output.dtype),
        "difference": difference, "roundings": difference / torch.finfo(our_output.dtype).eps,
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
def _layer(peer: str, kind: str, label: str, module: Any, n: int, seed: int, **options: Any) -> Row:
    """One connection in the dtype it has; theirs keeps streams in the batch."""
    shaken(module, seed)
    dtype = next(module.parameters()).dtype
    X = torch.randn(B, T, n, D, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "module.pt"
        torch.save(module.state_dict(), file)
        our_layer = hyper_connection(read(file), kind, **options)
    their_output = module.decorate_branch(_branch)(X.transpose(1, 2).flatten(0, 1)).unflatten(0, (B, n)).transpose(1, 2)
    return row(peer, label, name_of(dtype), our_layer(X, _branch), their_output)


def hyper_connections(folder: Path, seed: int) -> Iterator[Row]:
    """lucidrains' HyperConnections, with and without tanh."""
    with their_code(folder, "hyper_connections.hyper_connections") as (their_module,):
        for tanh in (True, False):
            for dtype in DTYPES:
                module = their_module.HyperConnections(4, dim=D, layer_index=1, tanh=tanh).to(dtype)
                options = {"dyn_act": "tanh" if tanh else "none"}
                label = "HyperConnections" + ("" if tanh else ", tanh=False")
                yield _layer("hyper-connections", "hyper-connections", label, module, 4, seed, **options)


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
    with their_code(folder, "training_script", absent=TPU) as (their_module,), tempfile.TemporaryDirectory() as scratch:
        sizes = SIZES | {"dim": D, "head_dim": D // SIZES["n_heads"], "hidden_dim": 2 * D, "vae_linear_rank": 16}
        dense = {name: False for name in vars(their_module.Config) if name.startswith("hybrid_")}
        for variant, flags in (("hybrid", {}), ("baseline", dense)):
            for dtype in DTYPES:
                net = their_module.GenModel(type("Small", (their_module.Config,), sizes | flags)).to(dtype).eval()
                shaken(net, seed)
                file, run = Path(scratch) / f"{variant}.pt", Path(scratch) / f"{variant}-{name_of(dtype)}"
                torch.save(net.state_dict(), file)
                converted = convert(file, "hdpl", run, {"n_heads": SIZES["n_heads"]})
                our_model = load(run).to(dtype)
                our_model.load_state_dict(converted.tensors)
                if dtype == torch.float32:
                    tokens = torch.tensor(_tokens(seed))
                    yield row("HDPL", f"logits, {variant}", name_of(dtype), our_model(tokens), net(tokens)[0])
                elif variant == "hybrid":
                    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)
                    for part, name in (("attn", "q"), ("mlp", "gate")):
                        our_output = getattr(getattr(our_model.blocks[1], part), name)(x)
                        their_output = getattr(net.layers[1][part], f"{name}_proj")(x)[0]
                        yield row("HDPL", f"HybridDualPathLinear, {name}", name_of(dtype), our_output, their_output)


def kromcanon(folder: Path, seed: int) -> Iterator[Row]:
    """Logits of the four architectures, stored in fp32 and in bf16, computed in fp32."""
    names = ("kromcanon.config", "kromcanon.model", "mlx.core", "mlx.utils")
    with their_code(folder / "src", *names) as (config, model, mx, utils), tempfile.TemporaryDirectory() as scratch:
        mx.set_default_device(mx.cpu)
        mx.random.seed(seed)
        for arch in ("vanilla", "canon", "kromhc", "kromcanon"):
            net = model.GPT2(config.ModelConfig(arch=arch, d_model=D, d_ff=2 * D, max_seq_len=T, **SIZES))
            weights = utils.tree_flatten(net.trainable_parameters())
            new_weights = [(n, w + mx.random.normal(w.shape) / math.prod(w.shape[-1:]) ** 0.5) for n, w in weights]
            net.update(utils.tree_unflatten(new_weights))
            for dtype in (mx.float32, mx.bfloat16):
                net.set_dtype(dtype)
                file, run = Path(scratch) / f"{arch}.npz", Path(scratch) / f"{arch}-{name_of(dtype)}"
                mx.savez(str(file), **dict(utils.tree_flatten(net.trainable_parameters())))
                net.set_dtype(mx.float32)
                convert(file, "kromcanon", run, {"n_heads": SIZES["n_heads"]})
                tokens = _tokens(seed)
                with torch.no_grad():
                    our_logits = load(run)(torch.tensor(tokens))
                their_logits = torch.tensor(np.array(net(mx.array(tokens))))
                yield row("kromcanon", f"logits, {arch}", name_of(dtype), our_logits, their_logits)


PEERS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "hyper_connections": hyper_connections, "kromhc": kromhc, "hdpl": hdpl, "kromcanon": kromcanon,
}  # fmt: skip
