"""Hyper-connections from SPEC's formulas, one token at a time, in NumPy's float64."""

import itertools
from functools import reduce

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor

from streamscope.models import config as c
from streamscope.models.layers.hyper_mixing import HyperConnection


def sinkhorn(z: np.ndarray, iterations: int) -> np.ndarray:
    m = np.exp(z)
    for _ in range(iterations):
        m = m / m.sum(0)
        m = m / m.sum(1, keepdims=True)
    return m


def dynamic(made: HyperConnection, name: str, x: np.ndarray, scale: str) -> np.ndarray | float:
    """α · act(x W); 0 in a static module."""
    if not made.spec.dynamic:
        return 0.0
    y = made.W[name].detach().numpy() @ x
    return float(made.alpha[scale]) * (np.tanh(y) if made.spec.dyn_act == "tanh" else y)


def rms(made: HyperConnection, x: np.ndarray) -> np.ndarray:
    if not made.spec.dynamic:
        return x
    return x / np.sqrt((x**2).mean() + 1e-5) * made.norm_weight.detach().numpy()


def read_stochastic(made: HyperConnection, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(H_pre, H_post, H_res) of one token's streams X [N, D]: SPEC §1.4, §2.1, §2.3, §2.4."""
    spec, n, b = made.spec, made.spec.n, {k: v.detach().numpy() for k, v in made.b.items()}
    x = rms(made, X.ravel())
    pre, post = (expit(dynamic(made, name, x, name) + b[name]) for name in ("pre", "post"))
    if spec.freeze_res:
        return pre, 2 * post, np.eye(n)
    z = dynamic(made, "res", x, "res") + b["res"].ravel()
    if isinstance(spec, c.KromHC):
        swaps = [softmax(pair) for pair in z.reshape(spec.factors, 2)]
        res = reduce(np.kron, [np.array([[p, q], [q, p]]) for p, q in swaps], np.eye(1))
    elif isinstance(spec, c.MHC):
        res = sinkhorn(z.reshape(n, n), spec.iterations)
    else:
        orders = itertools.permutations(range(n))
        res = sum(weight * np.eye(n)[list(order)] for weight, order in zip(softmax(z), orders, strict=True))
    return pre, 2 * post, res


def read_hc(made: HyperConnection, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A_m, B, A_rᵀ) of one token's streams: SPEC §2.2."""
    spec, b = made.spec, {k: v.detach().numpy() for k, v in made.b.items()}
    assert isinstance(spec, c.HC)
    A_m, B, A_r = np.zeros(spec.n), np.zeros(spec.n), np.eye(spec.n)
    for s, x in enumerate(X):
        x = rms(made, x - x.mean() if spec.norm == "layer" else x)
        A_m[s], B[s] = (np.sum(dynamic(made, name, x, name)) + b[name][s] for name in ("pre", "post"))
        if not spec.freeze_res:
            A_r[s] = dynamic(made, "res", x, "pre") + b["res"][s]
    return A_m, B, A_r.T


def branch(h: Tensor) -> Tensor:
    return h.roll(1, -1).tanh() * 1.7 + 0.3


def reference(made: HyperConnection, X: Tensor) -> Tensor:
    """X ← H_res X + H_post ⊗ F(Σ_s H_pre,s X_s) for every token by itself."""
    read, out = read_hc if isinstance(made.spec, c.HC) else read_stochastic, torch.zeros_like(X)
    for at in itertools.product(range(X.shape[0]), range(X.shape[1])):
        x = X[at].numpy()
        pre, post, res = read(made, x)
        mixed = res @ x
        if made.spec.post_input == "mixed":
            post = read(made, mixed)[1]
        out[at] = torch.tensor(mixed + np.outer(post, branch(torch.tensor(pre @ x))))
    return out
