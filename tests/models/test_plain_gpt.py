"""The models against a plain implementation that shares no code with them: equal in float64.

`algorithm` is DST Algorithm 1 with one loop per layer, position and head, written from the papers' equations; it knows
the models only through their `state_dict`. A plain GPT is the library's (`test_huggingface`).
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from streamscope.models.make import build
from tests.tiny import randomise

LAYERS, H, D, V = 2, 4, 32, 256
K = D // H
EPS = 1e-5
TOKENS = torch.randint(V, (2, 7), generator=torch.Generator().manual_seed(5))


def normed(kind: str, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """LN over D, or DST Eq. 13 head by head. x [D]."""
    parts = [x] if kind == "layer" else [x[h * K : (h + 1) * K] for h in range(H)]
    flat = torch.cat([(p - p.mean()) / torch.sqrt(((p - p.mean()) ** 2).mean() + EPS) for p in parts])
    return gamma * flat + beta


def mixed(kind: str, x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    """One projection of one vector (DST Eq. 4–6)."""
    if kind == "id":
        y = x
    elif kind == "dns":
        y = w @ x  # type: ignore[operator]
    elif kind == "ind":
        y = torch.cat([x.view(H, -1)[h] @ w[h] for h in range(H)])  # type: ignore[index]
    else:
        heads = x.view(H, -1)
        y = torch.cat([sum(w[k, h] * heads[h] for h in range(H)) for k in range(H)])  # type: ignore
    return y if b is None else y + b


def algorithm(
    p: dict[str, Tensor], mixing: tuple, *, mode: str, values: str, order: str = "sequential", norm: str = "channel"
) -> tuple[Tensor, list[Tensor]]:
    """(logits [B, T, V], the combined stream after each layer). `values`: normed token, token, combined."""
    out, streams = [], [[] for _ in range(LAYERS)]  # type: ignore[var-annotated]
    for row in TOKENS:
        x_t = [p["embed.weight"][token] for token in row]  # 1
        x_e = [torch.zeros(D, dtype=torch.float64) for _ in row]  # 2
        for layer in range(LAYERS):  # 3

            def w(name: str, layer: int = layer) -> Tensor | None:
                return p.get(f"blocks.{layer}.{name}")

            def ln(name: str, x: Tensor, w: Callable[[str], Any] = w) -> Tensor:
                return normed(norm, x, w(f"{name}.weight"), w(f"{name}.bias"))

            x = [a + b for a, b in zip(x_t, x_e, strict=True)]  # 4
            n = [ln("ln1", v) for v in x]  # 6
            read = x_t if values == "token" else n  # 7
            read = [ln("ln1_v", v) for v in x_t] if values == "normed token" else read
            q, k = ([mixed("dns", v, w(f"attn.{m}.weight"), None).view(H, K) for v in n] for m in "qk")  # 8
            v_ = [mixed(mixing[0], v, w("attn.v.weight"), None).view(H, K) for v in read]  # 9
            update = []
            for t in range(len(row)):
                heads = []
                for h in range(H):
                    scores = torch.stack([q[t][h] @ k[s][h] for s in range(t + 1)])
                    a = torch.softmax(scores / math.sqrt(K), 0)  # 10
                    z = sum(a[s] * v_[s][h] for s in range(t + 1))
                    gate = w("attn.gate.weight")
                    if gate is not None:  # PLS A.4.2
                        z = torch.sigmoid(q[t][h] @ gate[h] + w("attn.gate.bias")[h]) * z  # type: ignore
                    heads.append(z)
                update.append(mixed(mixing[1], torch.cat(heads), w("attn.o.weight"), None))  # 11
            if mode == "token_factor":
                x_t = [a + b for a, b in zip(x_t, update, strict=True)]  # 12
            else:  # LFA Eq. 18–20
                x_e = [a + b for a, b in zip(x_e, update, strict=True)]
            if order == "sequential":
                x = [a + b for a, b in zip(x_t, x_e, strict=True)]  # 14; in DST Eq. 3 x stays
            for t in range(len(row)):
                hidden = mixed(mixing[2], ln("ln2", x[t]), w("mlp.up.weight"), w("mlp.up.bias"))  # 15, 16
                hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
                x_e[t] = x_e[t] + mixed(mixing[3], hidden, w("mlp.down.weight"), w("mlp.down.bias"))  # 17, 18
            streams[layer].append(torch.stack([a + b for a, b in zip(x_t, x_e, strict=True)]))
        final = [
            normed("layer", a + b, p["ln_final.weight"], p["ln_final.bias"]) for a, b in zip(x_t, x_e, strict=True)
        ]
        out.append(torch.stack([p.get("unembed.weight", p["embed.weight"]) @ x for x in final]))  # 20, 21
    return torch.stack(out), [torch.stack(s) for s in streams]


DENSE, INDEPENDENT, KRONECKER = ("dns",) * 4, ("ind",) * 4, ("kron", "kron", "dns", "dns")
DST = dict(mode="token_factor", values="normed token")
RAW = dict(mode="frozen", values="token")
PARALLEL = {"residual.order": "parallel"}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "DST Algorithm 1, dense": ("dst-dense", {}, DENSE, DST),
    "DST Algorithm 1, kronecker": ("dst-kron", {}, KRONECKER, DST),
    "DST Algorithm 1, independent": ("dst-full-ind", {}, INDEPENDENT, DST),
    "DST Eq. 2-3": ("dst-kron", {**PARALLEL, "residual.value_norm": False}, KRONECKER,
                    dict(mode="token_factor", values="token", order="parallel")),
    "LFA, D-Cas": ("d-cas", {}, DENSE, RAW),
    "LFA, independent": ("lfa", {}, ("ind", "ind", "dns", "dns"), RAW),
    "LFA Eq. 16, 18-21, identity V and O": ("lfa", {**PARALLEL, "mixing": "id-id/dns-dns"}, ("id", "id", "dns", "dns"),
                                            dict(RAW, order="parallel")),
    "LFA, CFM": ("cfm", {}, INDEPENDENT, RAW),
    "PLS": ("pls", {}, DENSE, dict(mode="frozen", values="combined", norm="layer")),
    "PLS Eq. 1-2": ("pls", {**PARALLEL, "residual": "token_factor", "residual.values": "combined"}, DENSE,
                    dict(mode="token_factor", values="combined", norm="layer", order="parallel")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_equal_to_the_papers_equations(case: str) -> None:
    name, overrides, mixing, how = CASES[case]
    model = randomise(build(name, "tiny", positions="none", **overrides).double())
    want, streams = algorithm(model.state_dict(), mixing, **how)
    torch.testing.assert_close(model(TOKENS), want, rtol=0, atol=1e-10)
    everywhere = torch.arange(TOKENS.shape[1]).expand(len(TOKENS), -1)
    lens = model.layer_logits(TOKENS, everywhere)
    for layer, x in enumerate(streams):  # PLS A.5.1: the shared head on every layer's combined stream
        z = F.layer_norm(x, (D,), model.ln_final.weight, model.ln_final.bias, EPS)
        torch.testing.assert_close(lens[:, :, layer], z @ model.head.T, rtol=0, atol=1e-10)
