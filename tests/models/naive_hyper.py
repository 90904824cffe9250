"""Hyper-connections from SPEC's formulas, one token at a time, in Python numbers."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.layers.hyper_mixing import HyperConnection


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def softmax(z: list[float]) -> list[float]:
    top = max(z)
    e = [math.exp(v - top) for v in z]
    return [v / sum(e) for v in e]


def kron(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[x * y for x in row_a for y in row_b] for row_a in a for row_b in b]


def sinkhorn(z: list[list[float]], iterations: int) -> list[list[float]]:
    n = len(z)
    m = [[math.exp(v) for v in row] for row in z]
    for _ in range(iterations):
        columns = [sum(m[i][j] for i in range(n)) for j in range(n)]
        m = [[m[i][j] / columns[j] for j in range(n)] for i in range(n)]
        m = [[v / sum(row) for v in row] for row in m]
    return m


def dynamic(made: HyperConnection, name: str, x: list[float] | None, scale: str, out: int) -> list[float]:
    """α · act(x W)_k for every output k; 0 in a static module."""
    if x is None:
        return [0.0] * out
    W, alpha, act = made.W[name].T, float(made.alpha[scale]), made.spec.dyn_act
    y = [sum(x[i] * float(W[i, k]) for i in range(len(x))) for k in range(W.shape[1])]
    return [alpha * (math.tanh(v) if act == "tanh" else v) for v in y]


def rms(x: list[float], gamma: Any) -> list[float]:
    scale = math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
    return [v / scale * float(g) for v, g in zip(x, gamma, strict=True)]


def read_stochastic(made: HyperConnection, X: Tensor) -> tuple[list[float], list[float], list[list[float]]]:
    """(H_pre, H_post, H_res) of one token's streams X [N, D]: SPEC §1.4, §2.1, §2.3, §2.4."""
    spec, n, b = made.spec, made.spec.n, {k: v.detach() for k, v in made.b.items()}
    x = rms([float(v) for s in X for v in s], made.norm_weight) if spec.dynamic else None
    pre = [sigmoid(d + float(s)) for d, s in zip(dynamic(made, "pre", x, "pre", n), b["pre"], strict=True)]
    post = [2 * sigmoid(d + float(s)) for d, s in zip(dynamic(made, "post", x, "post", n), b["post"], strict=True)]
    if spec.freeze_res:
        return pre, post, torch.eye(n).tolist()
    flat = b["res"].flatten().tolist()
    z = [d + s for d, s in zip(dynamic(made, "res", x, "res", len(flat)), flat, strict=True)]
    if isinstance(spec, c.KromHC):
        res = [[1.0]]
        for k in range(spec.factors):
            p, q = softmax(z[2 * k : 2 * k + 2])
            res = kron(res, [[p, q], [q, p]])
    elif isinstance(spec, c.MHC):
        res = sinkhorn([z[n * i : n * i + n] for i in range(n)], spec.iterations)
    else:
        res = [[0.0] * n for _ in range(n)]
        for weight, order in zip(softmax(z), itertools.permutations(range(n)), strict=True):
            for i in range(n):
                res[i][order[i]] += weight
    return pre, post, res


def read_hc(made: HyperConnection, X: Tensor) -> tuple[list[float], list[float], list[list[float]]]:
    """(A_m, B, A_rᵀ) of one token's streams: SPEC §2.2."""
    spec, n, b = made.spec, made.spec.n, {k: v.detach() for k, v in made.b.items()}
    assert isinstance(spec, c.HC)
    A_m, B, A_r = [], [], []
    for s in range(n):
        x: list[float] | None = None
        if spec.dynamic:
            x = [float(v) for v in X[s]]
            mean = sum(x) / len(x) if spec.norm == "layer" else 0.0
            x = rms([v - mean for v in x], made.norm_weight)
        A_m.append(dynamic(made, "pre", x, "pre", 1)[0] + float(b["pre"][s]))
        B.append(dynamic(made, "post", x, "post", 1)[0] + float(b["post"][s]))
        if spec.freeze_res:
            A_r.append([float(i == s) for i in range(n)])
        else:
            A_r.append([d + float(v) for d, v in zip(dynamic(made, "res", x, "pre", n), b["res"][s], strict=True)])
    return A_m, B, [[A_r[j][i] for j in range(n)] for i in range(n)]


def branch(h: Tensor) -> Tensor:
    return h.roll(1, -1).tanh() * 1.7 + 0.3


def reference(made: HyperConnection, X: Tensor) -> Tensor:
    """X ← H_res X + H_post ⊗ F(Σ_s H_pre,s X_s) for every token by itself."""
    read = read_hc if isinstance(made.spec, c.HC) else read_stochastic
    out, n = torch.zeros_like(X), made.spec.n
    for at in itertools.product(range(X.shape[0]), range(X.shape[1])):
        pre, post, res = read(made, X[at])
        h = sum(pre[s] * X[at][s] for s in range(n))
        mixed = torch.stack([sum(res[i][j] * X[at][j] for j in range(n)) for i in range(n)])  # type: ignore[misc]
        if made.spec.post_input == "mixed":
            post = read(made, mixed)[1]
        update = branch(h)  # type: ignore[arg-type]
        out[at] = torch.stack([mixed[s] + post[s] * update for s in range(n)])
    return out
