"""Scores of a GPT-2's edges in plain torch, from its weights alone: the peer of our scores, and their check.

Senders are the embedding, and per layer every head and the FFN; readers are per layer the queries, keys and values of
every head and the FFN, then the unembedding. Biases of the output are no sender.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm


class PlainGpt2:
    """A GPT-2 in which every reader has an input of its own, and the outputs of all senders are kept.

    `weights` have our names: embed.weight, pos_embed.weight, blocks.0.attn.q.weight …, ln_final.weight; biases may be
    left out. The head is the embedding. `approximate` is that of GELU: tanh as in GPT-2, or none.
    """

    def __init__(self, weights: Mapping[str, Tensor], layers: int, heads: int, approximate: str = "tanh") -> None:
        self.w = {name: x.detach() for name, x in weights.items()}
        self.L, self.H, self.approximate = layers, heads, approximate

    def embed(self, ids: Tensor) -> Tensor:
        """[…, T, D] of token ids […, T]."""
        return self.w["embed.weight"][ids] + self.w["pos_embed.weight"][: ids.shape[-1]]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w.get(f"{name}.bias"), 1e-5)

    def linear(self, x: Tensor, name: str, rows: slice = slice(None)) -> Tensor:
        y, bias = x @ self.w[f"{name}.weight"][rows].T, self.w.get(f"{name}.bias")
        return y if bias is None else y + bias[rows]

    def forward(self, x: Tensor, shift: tuple[int, Tensor] | None = None) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """(outputs of the senders, inputs of the readers, logits after the last token) of an embedding […, T, D].

        `shift` is a reader and what is added to its input.
        """
        T, D = x.shape[-2:]
        K, outs, ins = D // self.H, [x], list[Tensor]()

        def read() -> Tensor:
            state = x.clone() if shift is None or shift[0] != len(ins) else x + shift[1]
            ins.append(state)
            return state

        future = torch.ones(T, T).triu(1).bool()
        for layer in range(self.L):
            prefix, parts = f"blocks.{layer}.", {}
            for part in "qkv":
                for h in range(self.H):
                    rows = slice(h * K, (h + 1) * K)
                    parts[part, h] = self.linear(self.norm(read(), prefix + "ln1"), prefix + f"attn.{part}", rows)
            head_outs = []
            for h in range(self.H):
                scores = parts["q", h] @ parts["k", h].mT / K**0.5
                z = scores.masked_fill(future, -torch.inf).softmax(-1) @ parts["v", h]
                head_outs.append(z @ self.w[prefix + "attn.o.weight"][:, h * K : (h + 1) * K].T)
            x = x + torch.stack(head_outs).sum(0) + self.w.get(prefix + "attn.o.bias", 0.0)
            hidden = self.linear(self.norm(read(), prefix + "ln2"), prefix + "mlp.up")
            ffn = self.linear(gelu(hidden, approximate=self.approximate), prefix + "mlp.down")
            x = x + ffn
            outs += [*head_outs, ffn]
        return outs, ins, self.norm(read()[..., -1, :], "ln_final") @ self.w["embed.weight"].T


def log_odds(logits: Tensor, answers: Sequence[Sequence[int]], foils: Sequence[Sequence[int]]) -> Tensor:
    """ln Σ p(answers) − ln Σ p(foils) [B] of logits [B, V]."""
    odds = [x[list(a)].logsumexp(0) - x[list(f)].logsumexp(0) for x, a, f in zip(logits, answers, foils, strict=True)]
    return torch.stack(odds)


def plain_scores(
    model: PlainGpt2, clean: Tensor, corrupt: Tensor, answers: Sequence[Sequence[int]], foils: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]], alphas: Sequence[float] = (),
) -> Tensor:  # fmt: skip
    """Scores [edges, B] of token ids [B, T]: m(clean) − m(one edge patched), or with `alphas` by gradients.

    Gradients are the mean of those at corrupt + α (clean − corrupt) of the embeddings; one α = 1 is EAP.
    """
    a, b = model.embed(clean), model.embed(corrupt)
    with torch.no_grad():
        outs, _, logits = model.forward(a)
        change = [x - y for x, y in zip(outs, model.forward(b)[0], strict=True)]
        if not alphas:
            m = log_odds(logits, answers, foils)
            patched = (model.forward(a, (v, -change[u]))[2] for u, v in edges)
            return torch.stack([m - log_odds(logits, answers, foils) for logits in patched])
    total: list[Tensor] = []
    for alpha in alphas:
        _, ins, logits = model.forward((b + alpha * (a - b)).requires_grad_())
        gradients = torch.autograd.grad(log_odds(logits, answers, foils).sum(), ins)
        total = [x + y for x, y in zip(total, gradients, strict=True)] if total else list(gradients)
    return torch.stack([(change[u] * total[v]).sum((-2, -1)) for u, v in edges]) / len(alphas)
