"""Checkpoints under the authors' names against the papers' formulas, written here from those names; refusals."""

import io
import itertools
import json
import math
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import load
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.peers.importers import main
from streamscope.papers.peers.importers.connections import hyper_connection
from streamscope.papers.peers.importers.formats import import_model
from streamscope.papers.peers.importers.tensors import read

Weights = dict[str, Tensor]
FP64, FP32 = 1e-12, 3e-6
"""Largest difference allowed, as a share of the largest logit."""
V, T, D, M, H, L = 50, 12, 32, 48, 4, 2
TOKENS = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(3))


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Weights:
    """Random numbers in fp64: norms and scales about 1, everything else of a size that moves the output."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        near_one = re.search(r"norm\d?\.weight|ln_f|alpha_(pre|post|res)|_scale", name)
        found[name] = 1 + 0.3 * x if near_one else x / math.prod(shape[-1:]) ** 0.5
    return found


def away(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


# ---- kromcanon: SPEC §1 --------------------------------------------------------------------------


def krom_shapes(canon: str = "", streams: int = 0, dynamic: bool = True, frozen: bool = False) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {"wte.weight": (V, D), "wpe.weight": (T, D), "ln_f.weight": (D,)}
    for layer in range(L):
        b = f"blocks.{layer}."
        shapes |= {f"{b}attn.{n}_proj.weight": (D, D) for n in "qkvo"}
        shapes |= {f"{b}norm{n}.weight": (D,) for n in (1, 2)}
        shapes |= {f"{b}ffn.fc1.weight": (M, D), f"{b}ffn.fc2.weight": (D, M)}
        places = {"A": ("canon_a", D), "B": ("attn.canon_b", 3 * D), "C": ("canon_c", D), "D": ("ffn.canon_d", M)}
        shapes |= {f"{b}{places[p][0]}.conv.weight": (places[p][1], 4) for p in canon}
        for branch in ("attn", "ffn") if streams else ():
            m, factors = f"{b}kromhc_{branch}.", streams.bit_length() - 1
            shapes |= {f"{m}b_pre": (streams,), f"{m}b_post": (streams,)}
            shapes |= {f"{m}alpha_{n}": () for n in ("pre", "post", "res")}
            shapes |= {f"{m}b_res.{k}": (2,) for k in range(0 if frozen else factors)}
            if dynamic:
                shapes |= {f"{m}norm.weight": (streams * D,)}
                shapes |= {f"{m}w_{n}": (streams * D, streams) for n in ("pre", "post")}
                shapes |= {f"{m}w_res.{k}": (streams * D, 2) for k in range(factors)}
    return shapes


def rms(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return gamma * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def canon(w: Weights, name: str, x: Tensor) -> Tensor:
    """x_t,c + Σ_j w_c,j x_(t−3+j),c, in loops over time and taps."""
    if f"{name}.conv.weight" not in w:
        return x
    kernel, y = w[f"{name}.conv.weight"], x.clone()
    for t in range(x.shape[1]):
        for j in range(4):
            if t - 3 + j >= 0:
                y[:, t] += kernel[:, j] * x[:, t - 3 + j]
    return y


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of [B, T, H · K], a head at a time."""
    out = []
    for q, k, v in zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1), strict=True):  # noqa: B020
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        out.append(
            scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v
        )
    return torch.cat(out, -1)


def krom_coefficients(w: Weights, m: str, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """H_pre, H_post, H_res of streams X [B, T, N, D]; H_post is what X would give."""
    n, dynamic = X.shape[-2], f"{m}w_pre" in w
    x = rms(X.flatten(-2), w[f"{m}norm.weight"], 1e-5) if dynamic else X.flatten(-2)

    def logits(bias: str, scale: str, map_: str) -> Tensor:
        term = w[f"{m}{scale}"] * torch.tanh(x @ w[f"{m}{map_}"]) if dynamic else torch.zeros(*x.shape[:2], 1)
        return w[f"{m}{bias}"] + term

    res = torch.ones(*x.shape[:2], 1, 1, dtype=x.dtype)
    for k in range(n.bit_length() - 1):
        if f"{m}b_res.{k}" in w:
            a = logits(f"b_res.{k}", "alpha_res", f"w_res.{k}").softmax(-1)
            U = torch.stack([a, a.flip(-1)], -2)
        else:
            U = torch.eye(2, dtype=x.dtype).expand(*x.shape[:2], 2, 2)
        res = torch.stack([torch.stack([torch.kron(r, u) for r, u in zip(rs, us, strict=True)])
                           for rs, us in zip(res, U, strict=True)])  # fmt: skip
    return logits("b_pre", "alpha_pre", "w_pre").sigmoid(), 2 * logits("b_post", "alpha_post", "w_post").sigmoid(), res


def krom_forward(w: Weights, tokens: Tensor) -> Tensor:
    """Logits of the port, from the names of its file."""
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    n = len(w["blocks.0.kromhc_attn.b_pre"]) if "blocks.0.kromhc_attn.b_pre" in w else 0
    X = x[..., None, :].repeat(1, 1, n, 1) if n else x
    for layer in range(L):
        b = f"blocks.{layer}."

        def attn(h: Tensor, b: str = b) -> Tensor:
            h = canon(w, f"{b}canon_a", rms(h, w[f"{b}norm1.weight"], 1e-5))
            qkv = torch.cat([h @ w[f"{b}attn.{p}_proj.weight"].T for p in "qkv"], -1)
            return attention(*canon(w, f"{b}attn.canon_b", qkv).chunk(3, -1)) @ w[f"{b}attn.o_proj.weight"].T

        def ffn(h: Tensor, b: str = b) -> Tensor:
            h = canon(w, f"{b}canon_c", rms(h, w[f"{b}norm2.weight"], 1e-5))
            h = canon(w, f"{b}ffn.canon_d", h @ w[f"{b}ffn.fc1.weight"].T)
            return (h * (1 + torch.erf(h / math.sqrt(2))) / 2) @ w[f"{b}ffn.fc2.weight"].T

        for name, branch in (("attn", attn), ("ffn", ffn)):
            if n:
                pre, _, res = krom_coefficients(w, f"{b}kromhc_{name}.", X)
                mixed = res @ X
                post = krom_coefficients(w, f"{b}kromhc_{name}.", mixed)[1]
                X = mixed + post[..., None] * branch((pre[..., None] * X).sum(-2))[..., None, :]
            else:
                X = X + branch(X)
    return rms(X.mean(-2) if n else X, w["ln_f.weight"], 1e-5) @ w["wte.weight"].T


# ---- HDPL: SPEC §5 ---------------------------------------------------------------------------------

ALL = ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up")


def hdpl_shapes(hybrid: tuple[str, ...] = ALL, rank: int = 6, groups: int = 8) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {"token_emb.weight": (V, D), "norm.weight": (D,), "lm_head.weight": (V, D)}
    widths = {f"attn.{n}": (D, D) for n in "qkvo"} | {"mlp.gate": (D, M), "mlp.up": (D, M), "mlp.down": (M, D)}
    for layer in range(L):
        shapes |= {f"layers.{layer}.norm{n}.weight": (D,) for n in (1, 2)}
        for name, (d_in, d_out) in widths.items():
            p = f"layers.{layer}.{name}_proj."
            shapes |= {
                f"{p}block_path.weight": (d_out, d_in // groups, 1), f"{p}decoder.weight": (d_out, rank),
                f"{p}enc_mu.weight": (rank, d_in), f"{p}enc_mu.bias": (rank,),
                f"{p}enc_logvar.weight": (rank, d_in), f"{p}enc_logvar.bias": (rank,),
            } if name in hybrid else {f"{p}linear.weight": (d_out, d_in)}  # fmt: skip
    return shapes


def hdpl_linear(w: Weights, p: str, x: Tensor) -> Tensor:
    """Dense, or blocks one after the other plus the decoded SiLU of the mean (HDPL Eq. 2–7 at evaluation)."""
    if f"{p}linear.weight" in w:
        return x @ w[f"{p}linear.weight"].T
    block = w[f"{p}block_path.weight"][..., 0]
    groups = x.shape[-1] // block.shape[1]
    detail = [part @ one.T for part, one in zip(x.chunk(groups, -1), block.chunk(groups), strict=True)]
    mu = x @ w[f"{p}enc_mu.weight"].T + w[f"{p}enc_mu.bias"]
    return torch.cat(detail, -1) + (mu * mu.sigmoid()) @ w[f"{p}decoder.weight"].T


def turned(x: Tensor) -> Tensor:
    """Rotary positions with base 500,000 on the halves of every head, as complex numbers."""
    heads = []
    for head in x.chunk(H, -1):
        a, b = head.chunk(2, -1)
        k = a.shape[-1]
        angle = torch.arange(x.shape[1]).double()[:, None] * 500_000.0 ** (-torch.arange(k).double() / k)
        z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
        heads += [z.real, z.imag]
    return torch.cat(heads, -1)


def hdpl_forward(w: Weights, tokens: Tensor) -> Tensor:
    x = w["token_emb.weight"][tokens]
    for layer in range(L):
        p = f"layers.{layer}."
        h = rms(x, w[f"{p}norm1.weight"], 1e-6)
        q, k, v = (hdpl_linear(w, f"{p}attn.{n}_proj.", h) for n in "qkv")
        x = x + hdpl_linear(w, f"{p}attn.o_proj.", attention(turned(q), turned(k), v))
        h = rms(x, w[f"{p}norm2.weight"], 1e-6)
        gate, up = (hdpl_linear(w, f"{p}mlp.{n}_proj.", h) for n in ("gate", "up"))
        x = x + hdpl_linear(w, f"{p}mlp.down_proj.", gate * gate.sigmoid() * up)
    return rms(x, w["norm.weight"], 1e-6) @ w["lm_head.weight"].T


# ---- models: equal -------------------------------------------------------------------------------

CASES: dict[str, tuple[str, dict[str, tuple], Callable[[Weights, Tensor], Tensor], str]] = {
    "vanilla": ("kromcanon", krom_shapes(), krom_forward, "authors-gpt2"),
    "canon": ("kromcanon", krom_shapes("ABCD"), krom_forward, "authors-canon"),
    "canon-ab": ("kromcanon", krom_shapes("AB"), krom_forward, "authors-canon"),
    "kromhc": ("kromcanon", krom_shapes(streams=4), krom_forward, "authors-kromhc"),
    "kromhc-8": ("kromcanon", krom_shapes(streams=8), krom_forward, "authors-kromhc"),
    "static": ("kromcanon", krom_shapes(streams=4, dynamic=False), krom_forward, "authors-kromhc"),
    "frozen": ("kromcanon", krom_shapes(streams=4, frozen=True), krom_forward, "authors-kromhc"),
    "kromcanon": ("kromcanon", krom_shapes("ABCD", 4), krom_forward, "authors-kromcanon"),
    "baseline": ("hdpl", hdpl_shapes(()), hdpl_forward, "authors-llama"),
    "hybrid": ("hdpl", hdpl_shapes(), hdpl_forward, "authors-hdpl"),
    "all-hybrid": ("hdpl", hdpl_shapes((*ALL, "attn.o", "mlp.down"), groups=4), hdpl_forward, "authors-hdpl"),
}
SET = ["--set", f"n_heads={H}"]


def written(w: Weights, path: Path) -> Path:
    """A file of theirs. In .npz bfloat16 is two bytes without a type, as MLX writes it."""
    if path.suffix == ".npz":
        arrays = {n: x.view(torch.int16).numpy().view("V2") if x.dtype == torch.bfloat16 else x.numpy()
                  for n, x in w.items()}  # fmt: skip
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        save_file({name: x.contiguous() for name, x in w.items()}, path)
    else:
        torch.save(w, path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_formulas_in_fp64(case: str, tmp_path: Path) -> None:
    format, shapes, forward, name = CASES[case]
    w = drawn(shapes)
    file = written(w, tmp_path / f"model{'.npz' if format == 'kromcanon' else '.pt'}")
    found = import_model(read(file), format, {"n_heads": H})
    assert found.config.name == name and all(x.dtype == torch.float64 for x in found.tensors.values())
    model = StreamTransformer(found.config, None, seed=None).double().eval()
    model.load_state_dict(found.tensors)
    with torch.no_grad():
        assert away(model(TOKENS), forward(w, TOKENS)) < FP64


@pytest.mark.parametrize(
    ("case", "end", "dtype"),
    [("kromcanon", ".npz", torch.float32), ("vanilla", ".safetensors", torch.float32), ("hybrid", ".pt", torch.float32),
     ("kromcanon", ".npz", torch.bfloat16)],
)  # fmt: skip
def test_the_command_writes_a_run(
    case: str, end: str, dtype: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Also of bfloat16 as MLX writes it, without a type."""
    format, shapes, forward, name = CASES[case]
    w = {n: x.to(dtype) for n, x in drawn(shapes).items()}
    file, out = written(w, tmp_path / f"model{end}"), tmp_path / "runs" / "theirs"
    main([str(file), "--format", format, "--out", str(out), *SET])
    assert f"{name}: 2 layers, 4 heads, width 32" in capsys.readouterr().out
    with torch.no_grad():
        want = forward({n: x.double() for n, x in w.items()}, TOKENS)
        assert away(load(out)(TOKENS).double(), want) < FP32
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["source"] == str(file) and manifest["format"] == format
    assert manifest["parameters"] == sum(math.prod(shape) for shape in shapes.values())
    assert [p.name for p in out.parent.iterdir()] == ["theirs"]


def test_a_head_is_tied_where_both_names_hold_the_same(tmp_path: Path) -> None:
    w = drawn(hdpl_shapes())
    w["lm_head.weight"] = w["token_emb.weight"]  # one storage, as their code saves it
    found = import_model(read(written(w, tmp_path / "model.pt")), "hdpl", {"n_heads": H})
    assert found.config.readout.tied and "unembed.weight" not in found.tensors
    w["lm_head.weight"] = w["token_emb.weight"].clone()
    w["lm_head.weight"][3, 4] += 1e-9
    assert not import_model(w, "hdpl", {"n_heads": H}).config.readout.tied
    with pytest.raises(InputError, match=r"^lm_head.weight \[50, 32\] is not used by any part"):
        import_model(w, "hdpl", {"n_heads": H, "readout.tied": "true"})


def test_what_a_file_does_not_say_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shapes = {n: tuple(128 if one == D else one for one in shape) for n, shape in krom_shapes().items()}
    file = written(drawn(shapes), tmp_path / "model.npz")
    main([str(file), "--format", "kromcanon", "--out", str(tmp_path / "run")])
    told = capsys.readouterr().out
    assert "authors-gpt2: 2 layers, 2 heads, width 128" in told
    assert "the file lacks n_heads; 2 is the authors' setting (change it by --set n_heads=…)" in told
    found = import_model(drawn(hdpl_shapes()), "hdpl", {"n_heads": H, "n_ctx": 64})
    assert found.assumed == {"positions.base": 500_000.0} and found.config.n_ctx == 64
    with pytest.raises(InputError, match="the number of heads of a width of 32 is unknown: give --set n_heads=N"):
        import_model(drawn(krom_shapes()), "kromcanon")


def test_a_tokenizer_goes_into_the_run(tmp_path: Path) -> None:
    words = Path(load("stories/lfa").run or "") / "tokenizer.json"
    file = written(drawn(krom_shapes()), tmp_path / "model.npz")
    given = ["--format", "kromcanon", "--out", str(tmp_path / "run"), *SET, "--tokenizer", str(words)]
    with pytest.raises(InputError, match=r"tokenizer\.json has 2048 entries, but the model 50"):
        main([str(file), *given])
    assert not (tmp_path / "run").exists()
    shapes = krom_shapes() | {"wte.weight": (2048, D)}
    main([str(written(drawn(shapes), tmp_path / "model.npz")), *given])
    assert load(tmp_path / "run").to_tokens("Lily had a ball.").shape[0] == 1


# ---- models: refused -----------------------------------------------------------------------------


def refused(file: Path, format: str, *more: str) -> str:
    """The line that the command ends with; it leaves nothing behind."""
    out = file.parent / "out" / "run"
    with pytest.raises(InputError) as caught:
        main([str(file), "--format", format, "--out", str(out), *SET, *more])
    line = str(caught.value)
    assert "\n" not in line and len(line) < 400 and not list(file.parent.glob("out/*")), line
    return line


@pytest.mark.parametrize("case", ["kromcanon", "hybrid", "hc", "krom", "lite"])
def test_every_tensor_is_needed_by_name(case: str) -> None:
    """One more on the last axis, or another dimension in front. What gives the sizes can only disagree with others."""
    if case in KINDS:
        w, ask = drawn(layer_shapes(case, 4, 6)), lambda w: hyper_connection(w, KINDS[case])
    else:
        w, ask = drawn(CASES[case][1]), lambda w: import_model(w, CASES[case][0], {"n_heads": H})
    ask(w)
    by_name = 0
    for name, x in w.items():
        with pytest.raises(InputError, match=rf"^{re.escape(name)} is missing"):
            ask({n: y for n, y in w.items() if n != name})
        deeper = x.repeat(2, *[1] * x.ndim) if case in KINDS else x[None]
        for other in (torch.cat([x, x[..., :1]], -1) if x.ndim else x.repeat(2), deeper):
            with pytest.raises(InputError) as caught:
                ask(w | {name: other})
            by_name += name in str(caught.value)
    assert case in KINDS or by_name > 1.8 * len(w)


def test_what_no_part_takes_is_refused_by_name(tmp_path: Path) -> None:
    w, file = drawn(krom_shapes("ABCD", 4)), tmp_path / "model.npz"
    bias = {"blocks.1.canon_a.conv.bias": torch.zeros(D), "lm_head.weight": torch.zeros(V, D)}
    gap = {name.replace("blocks.1.", "blocks.7."): x for name, x in w.items()}
    frozen = drawn(krom_shapes(streams=4, frozen=True))
    for tensors, more, line in (
        (w | bias, (), f"{file}: blocks.1.canon_a.conv.bias [32] and 1 more are not used by any part"),
        (w | {"blocks.0.kromhc_attn.b_res.2": torch.zeros(2)}, (), "b_res.2 [2] is not used by any part"),
        (gap, (), "blocks.1.norm1.weight is missing"),
        (w, ("canon=none",), "blocks.0.canon_a.conv.weight [32, 4] and 7 more are not used by any part"),
        (w, ("residual.freeze_res=true",), "alpha_res [] and 19 more are not used"),
        (w, ("residual.dynamic=false",), "alpha_pre [] and 31 more are not used"),
        (w, ("readout.tied=false",), "files of this format have no unembed.weight: change the configuration back"),
        (w, ("n_head=2",), "unknown field of model 'n_head'"),
        (frozen, ("residual.freeze_res=false",), "b_res.0 is missing"),
    ):
        written(tensors, file)
        assert line in refused(file, "kromcanon", *(word for one in more for word in ("--set", one)))
    with pytest.raises(InputError, match="give a checkpoint"):
        main([str(file)])
    written(w, file)
    with pytest.raises(InputError, match="is not empty: choose another folder"):
        main([str(file), "--format", "kromcanon", "--out", str(tmp_path), *SET])
    assert "token_emb.weight is missing; is it a file of this format?" in refused(file, "hdpl")
    layer = drawn(layer_shapes("hc", 4, 6))
    with pytest.raises(InputError, match=r"^stream_embed \[4, 6\] is not used by any part"):
        hyper_connection(layer | {"stream_embed": torch.zeros(4, 6)}, "hyper-connections")
    with pytest.raises(InputError, match="unknown kind of hyper-connection 'krom'"):
        hyper_connection(layer, "krom")


class Trap:
    """What would run on unpickling."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    sprung, w = tmp_path / "sprung", drawn(hdpl_shapes())
    pt, npz = tmp_path / "model.pt", tmp_path / "model.npz"
    torch.save({**w, "trap": Trap(sprung)}, pt)
    assert "torch.save(model.state_dict(), FILE)" in refused(pt, "hdpl")
    np.savez(npz, trap=np.array(Trap(sprung), dtype=object))
    assert "save it again: only arrays" in refused(npz, "kromcanon")
    np.save(tmp_path / "meta.npy", np.array({"step": 3}, dtype=object))  # what lies beside kromcanon's weights
    assert "is not a supported checkpoint (.npz, .pt, .pth, .safetensors)" in refused(tmp_path / "meta.npy", "hdpl")
    (tmp_path / "meta.npy").rename(npz)
    assert "save it again: only arrays" in refused(npz, "kromcanon")
    assert not sprung.exists()
    np.load(npz, allow_pickle=True)
    torch.save(Trap(sprung), pt)
    torch.load(pt, weights_only=False)
    assert sprung.exists(), "the trap works"


def test_what_is_no_dictionary_of_weights(tmp_path: Path) -> None:
    pt, npz, st = (tmp_path / f"model{end}" for end in (".pt", ".npz", ".safetensors"))
    w = drawn(hdpl_shapes())
    for other, line in (
        ({"model": w, "step": 3}, "save it again"), ([1, 2], "save it again"), ({}, "holds no tensor"),
        (w | {"norm.weight": torch.arange(D)}, f"norm.weight of {pt} is torch.int64"),
        (w | {"norm.weight": torch.ones(D).to_sparse()}, "weights must be dense"),
    ):  # fmt: skip
        torch.save(other, pt)
        assert line in refused(pt, "hdpl")
    for bad in (np.arange(3), np.array(["a"]), np.zeros(3, "V4"), np.zeros(3, np.longdouble)):
        np.savez(npz, **{"wte.weight": bad})
        assert "save it again: only arrays" in refused(npz, "kromcanon")
    for path in (pt, npz, st):
        whole = written(w, path).read_bytes()
        for damaged in (whole[: len(whole) // 2], b"", b"no"):
            path.write_bytes(damaged)
            assert path.name in refused(path, "hdpl")
    assert "is missing: " in refused(tmp_path / "gone.pt", "hdpl")


# ---- single layers: SPEC §2.1, §2.2, §2.4 --------------------------------------------------------


def layer_shapes(kind: str, n: int, d: int) -> dict[str, tuple]:
    """HyperConnections of lucidrains; KromHC and MHCLite of the KromHC repository."""
    if kind == "hc":
        return {
            "norm.gamma": (d,), "static_alpha": (n, n + 1), "static_beta": (n,), "dynamic_alpha_fn": (d, n + 1),
            "dynamic_beta_fn": (d,), "dynamic_alpha_scale": (), "dynamic_beta_scale": (),
        }  # fmt: skip
    r = 2 * (n.bit_length() - 1) if kind == "krom" else math.factorial(n)
    return {
        "norm.gamma": (n * d,), "static_alpha": (n + r,), "static_beta": (n,), "dynamic_alpha_fn": (n * d, n + r),
        "dynamic_beta_fn": (n * d, n), "pre_branch_scale": (1,), "residual_scale": (1,), "h_post_scale": (),
    }  # fmt: skip


def layer_forward(kind: str, w: Weights, X: Tensor, tanh: bool) -> Tensor:
    """X [B, T, N, D] around `branch`; every stream of HC has coefficients of its own, the others read all at once."""
    n = X.shape[-2]
    act: Callable[[Tensor], Tensor] = torch.tanh if tanh else lambda y: y
    x = X if kind == "hc" else X.flatten(-2)
    x = x / x.norm(dim=-1, keepdim=True) * x.shape[-1] ** 0.5 * (w["norm.gamma"] + 1)
    if kind == "hc":
        alpha = act(x @ w["dynamic_alpha_fn"]) * w["dynamic_alpha_scale"] + w["static_alpha"]
        post = act(x @ w["dynamic_beta_fn"]) * w["dynamic_beta_scale"] + w["static_beta"]
        pre, mixing = alpha[..., 0], alpha[..., 1:]
    else:
        y, static = x @ w["dynamic_alpha_fn"], w["static_alpha"]
        pre = (w["pre_branch_scale"] * y[..., :n] + static[:n]).sigmoid()
        post = 2 * (x @ w["dynamic_beta_fn"] * w["h_post_scale"] + w["static_beta"]).sigmoid()
        logits = w["residual_scale"] * y[..., n:] + static[n:]
        mixing = torch.zeros(*X.shape[:2], n, n, dtype=X.dtype)
        if kind == "krom":
            p = [pair.softmax(-1)[..., 0] for pair in logits.split(2, -1)]
            for i, j in itertools.product(range(n), range(n)):
                bits = [(i >> k & 1) == (j >> k & 1) for k in reversed(range(len(p)))]
                mixing[..., i, j] = math.prod(q if same else 1 - q for q, same in zip(p, bits, strict=True))
        else:
            for m, order in enumerate(itertools.permutations(range(n))):
                for i in range(n):
                    mixing[..., i, order[i]] += logits.softmax(-1)[..., m]
    h = (pre[..., None] * X).sum(-2)
    new = [(mixing[..., s, None] * X).sum(-2) + post[..., s, None] * branch(h) for s in range(n)]  # stream s: column s
    return torch.stack(new, -2)


def branch(h: Tensor) -> Tensor:
    return h.roll(1, -1).tanh() * 1.7 + 0.3


LAYERS = [("hc", 4, True), ("hc", 3, False), ("krom", 4, False), ("krom", 8, False), ("krom", 2, False),
          ("lite", 3, False), ("lite", 4, False)]  # fmt: skip
KINDS = {"hc": "hyper-connections", "krom": "kromhc", "lite": "kromhc"}


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, FP64), (torch.float32, FP32)])
@pytest.mark.parametrize(("kind", "n", "tanh"), LAYERS)
def test_a_layer_is_the_formula(kind: str, n: int, tanh: bool, dtype: torch.dtype, most: float, tmp_path: Path) -> None:
    w = {name: x.to(dtype) for name, x in drawn(layer_shapes(kind, n, 6)).items()}
    named = {f"blocks.3.hc.{name}": x for name, x in w.items()} | {"blocks.3.norm.weight": torch.ones(6)}
    torch.save(named, tmp_path / "model.pt")
    options = {} if tanh or kind != "hc" else {"dyn_act": "none"}
    made = hyper_connection(read(tmp_path / "model.pt"), KINDS[kind], "blocks.3.hc.", **options)
    X = torch.randn(2, 5, n, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    for scale in (1.0, 1e-4):  # no ε shows in small streams
        with torch.no_grad():
            want = layer_forward(kind, {name: x.double() for name, x in w.items()}, scale * X.double(), tanh)
            assert away(made(scale * X, branch).double(), want) < most


@pytest.mark.parametrize(("n", "iterations"), [(4, 20), (3, 2)])
@torch.no_grad()
def test_connections_of_deepseek_v4_are_those_of_the_library(n: int, iterations: int) -> None:
    """mHC around a branch, as in the library's layer."""
    theirs = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    sizes = dict(hc_mult=n, hc_sinkhorn_iters=iterations, hc_eps=1e-6, rms_norm_eps=1e-6, hidden_size=12)
    module, generator = theirs.DeepseekV4HyperConnection(SimpleNamespace(**sizes)), torch.Generator().manual_seed(n)
    for p in module.parameters():
        p.copy_(torch.randn(p.shape, generator=generator))
    X, W = torch.randn(2, 5, n, 12, generator=generator), torch.randn(12, 12, generator=generator)
    post, comb, collapsed = module(X)
    want = post[..., None] * torch.tanh(collapsed @ W)[..., None, :] + comb.mT @ X
    tensors = {f"layers.3.attn_hc.{name}": x for name, x in module.state_dict().items()}
    ours = hyper_connection(tensors, "deepseek-v4", "layers.3.attn_hc.", iterations=iterations)
    assert ((ours(X, lambda h: torch.tanh(h @ W)) - want).abs().max() / want.abs().max()).item() < 1e-6
    torch.testing.assert_close(ours.H_res(ours.dynamic(X)), comb.mT, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="scale is missing; is it a module of deepseek-v4"):
        hyper_connection({name: x for name, x in tensors.items() if "scale" not in name}, "deepseek-v4",
                         "layers.3.attn_hc.")  # fmt: skip
    with pytest.raises(InputError, match="cannot be"):
        hyper_connection({**tensors, "layers.3.attn_hc.base": torch.zeros(7)}, "deepseek-v4", "layers.3.attn_hc.")


def test_constrained_connections_that_ours_do_not_equal_are_refused() -> None:
    for other, kind in (
        ({"norm.gamma": (6,), "static_alpha": (4, 5), "dynamic_alpha_fn": (1, 6, 5)}, "hyper-connections"),
        ({"static_alpha": (4, 5), "dynamic_alpha_fn": (24, 20)}, "kromhc"),
    ):
        with pytest.raises(InputError, match="which none of our layers equals"):
            hyper_connection(drawn(layer_shapes("krom", 4, 6) | other), kind)


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", ["(100000000000,)", "(1000000, 1000000, 1000000)"])
def test_an_npz_whose_header_claims_another_size_is_one_line(packed: int, shape: str, tmp_path: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (7,)})
    text = head.getvalue().replace(b"(7,), }".ljust(40), f"{shape}, }}".encode().ljust(40))
    assert shape.encode() in text
    with zipfile.ZipFile(tmp_path / "x.npz", "w", packed) as file:
        file.writestr("w.npy", text + bytes(28))
    with pytest.raises(InputError, match=r"x\.npz cannot be read"):
        read(tmp_path / "x.npz")
