"""A forward pass in which every reader has its own input, so that single edges carry another run's output.

    clean, corrupt = run(model, graph, tokens), run(model, graph, corrupted)
    run(model, graph, tokens, patched=M, other=corrupt.out).logits(at)

The state X [B, T, N, D] holds the outputs of this run. A reader's input is what it reads of X, minus the difference
between the two runs on its patched edges:

    in_v = Σ_s pre_v[s] X_s − Σ_{u patched for v} c_{u→v} (out_u − out_u of the other run)

So kept edges carry the recomputed output, and coefficients are those of this run. With no edge patched this is the
model's own forward pass; with all, the other run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.interventions.circuits.graph import Graph, n_streams, read_vector, sends_by_head, write_vector
from streamscope.models.config import Hyper
from streamscope.models.decoder import gather_positions
from streamscope.models.layers.attention import Attention
from streamscope.models.layers.head import unembed
from streamscope.models.layers.hyper_mixing import mix, spread
from streamscope.models.layers.projections import DenseProjection
from streamscope.models.layers.residual import Block


@dataclass
class Run:
    """A forward pass, stage by stage: 2ℓ is attention of layer ℓ, 2ℓ + 1 its FFN.

    `step` does the next one. `patched` is [senders, readers] or one such matrix per row [B, senders, readers]; `other`
    are the other run's outputs. `split` gives every reader an input of its own and keeps them in `inputs`, for
    gradients. `replaced` are outputs [B, senders of the stage, T, D] to use instead of a stage's own. `shifted` is a
    reader and what is added to its input [B, T, D] (of a mixing module [B, T, N, D]).
    """

    model: Any
    graph: Graph
    X: Float[Tensor, "B T N D"]
    out: Float[Tensor, "B S T D"]
    """Outputs of the senders so far; S is 0 where they are not kept. Senders come before tokens, so that those of all
    stages before one are next to each other."""
    patched: Bool[Tensor, "*B S R"] | None = None
    other: Float[Tensor, "B S T D"] | None = None
    split: bool = False
    replaced: Mapping[int, Tensor] = field(default_factory=dict)
    shifted: tuple[int, Tensor] | None = None
    stage: int = 0
    A: Tensor | None = None
    """[S, N], or with hyper-connections [B, T, S, N]: how much of every sender is in every stream."""
    inputs: dict[int, list[Tensor]] = field(default_factory=dict)
    """Stage -> what its readers read, in parts [B, readers, T, D]; with `split`."""
    mixed_inputs: dict[int, Tensor] = field(default_factory=dict)
    """Stage -> what its mixing module reads [B, T, N, D]; with `split`."""
    coefficients: dict[int, Tensor] = field(default_factory=dict)
    """Stage -> c of its readers: [senders before it], or with hyper-connections [B, T, senders before it]."""
    shares: dict[int, Tensor] = field(default_factory=dict)
    """Stage -> A before its mixing module [B, T, senders before it, N]."""
    entering: Tensor | None = None
    """X before attention of the layer, which a parallel FFN reads."""
    excess: Float[Tensor, "B S T D"] | None = None
    """out − other of the senders so far, where there is another run."""

    def __post_init__(self) -> None:
        if self.other is not None and self.excess is None:
            self.excess = self.out - self.other

    def finish(self) -> "Run":
        while self.stage < 2 * self.model.config.n_layers:
            self.step()
        return self

    def step(self) -> None:
        block, residual = self.model.blocks[self.stage // 2], self.model.config.residual
        attention = self.stage % 2 == 0
        if attention:
            self.entering = self.X
        prior_senders = self.graph.written_before(self.stage)
        post: Tensor | None = None
        if isinstance(residual, Hyper):
            hc = block.attn_hc if attention else block.mlp_hc
            if self.A is not None:
                self.shares[self.stage] = self.A[:, :, prior_senders]
            pre, res, post, mixed = hc.coefficients(self._mixing_input(prior_senders))
            mixed = mix(res, self.X) if self._own_inputs() else mixed
            if self.A is not None:
                self.coefficients[self.stage] = (self.A[:, :, prior_senders] @ pre[..., None])[..., 0]
                self.A = self.A @ res.mT
                self.A[:, :, self.graph.written_at(self.stage)] = post[:, :, None]
            h = mix(pre.unsqueeze(-2), self.X).squeeze(-2)
            reads = dict.fromkeys(("q", "k", "v", "g", "mlp"), h)
        else:
            mixed = self.X
            X = self.entering if getattr(residual, "order", "") == "parallel" else self.X
            assert X is not None
            total = X[..., 0, :] if X.shape[-2] == 1 else X.sum(-2)
            reads = dict.fromkeys(("q", "k", "v", "g", "mlp"), total)
            if read_vector(residual, "v").sum() < X.shape[-2]:
                gate = self.model.config.attention.gate
                reads |= dict.fromkeys("vg" if gate is not None and gate.source == "value" else "v", X[..., 0, :])
        update, out = (
            self._attention(block, reads, prior_senders) if attention else self._mlp(block, reads["mlp"], prior_senders)
        )
        if self.stage in self.replaced:
            update = self.replaced[self.stage].sum(1)
        if post is not None:
            self.X = spread(mixed, post, update)
        else:
            w = write_vector(residual, "head" if attention else "mlp")
            self.X = torch.stack([x + update if s else x for x, s in zip(mixed.unbind(-2), w, strict=True)], -2)
        if self.out.shape[1]:
            slots = self.graph.written_at(self.stage)
            self.out[:, slots] = out
            if self.excess is not None and self.other is not None:
                torch.sub(out, self.other[:, slots], out=self.excess[:, slots])
        self.stage += 1

    def logits_input(self) -> Float[Tensor, "B T D"]:
        """What the unembedding reads, before the final norm."""
        residual, stage = self.model.config.residual, self.stage
        pre = torch.as_tensor(read_vector(residual, "logits"), dtype=self.X.dtype, device=self.X.device)
        prior_senders = self.graph.written_before(stage)
        if self.A is not None:
            self.coefficients[stage] = self.A[:, :, prior_senders] @ pre
        x = (self.X * pre[:, None]).sum(-2) if self.X.shape[-2] > 1 else self.X[..., 0, :]
        return self._read(x, prior_senders, self.graph.read_at(stage))[:, 0]

    def logits(self, positions: Int[Tensor, "B P"]) -> Float[Tensor, "B P V"]:
        """Logits at these positions, after `finish`."""
        return unembed(self.model.ln_final(gather_positions(self.logits_input(), positions)), self.model.head)

    def _own_inputs(self) -> bool:
        shifted = self.shifted is not None and self.graph.readers[self.shifted[0]].stage == self.stage
        return self.split or self.patched is not None or shifted

    def _read(self, x: Float[Tensor, "B T D"], prior_senders: slice, readers: slice) -> Float[Tensor, "B readers T D"]:
        base = x[:, None]
        if self.split:
            inputs = base.expand(-1, readers.stop - readers.start, -1, -1).clone()
            self.inputs.setdefault(self.stage, []).append(inputs)
            return inputs
        if self.shifted is not None and readers.start <= self.shifted[0] < readers.stop:
            inputs = base.repeat(1, readers.stop - readers.start, 1, 1)
            inputs[:, self.shifted[0] - readers.start] += self.shifted[1]
            return inputs
        if self.patched is None:
            return base
        assert self.excess is not None
        M, E = self.patched[..., prior_senders, readers].mT.to(x.dtype), self.excess[:, prior_senders]
        if self.stage not in self.coefficients:
            return base - (M @ E.flatten(2)).unflatten(2, x.shape[1:])
        M = (M if M.ndim == 2 else M[:, None]) * self.coefficients[self.stage][:, :, None]
        return base - (M @ E.transpose(1, 2)).transpose(1, 2)

    def _mixing_input(self, prior_senders: slice) -> Float[Tensor, "B T N D"]:
        if self.split:
            self.mixed_inputs[self.stage] = self.X.clone()
            return self.mixed_inputs[self.stage]
        reader = self.graph.mixing_at(self.stage)
        if self.shifted is not None and self.shifted[0] == reader:
            return self.X + self.shifted[1]
        if self.patched is None or self.excess is None:
            return self.X
        M = self.patched[..., prior_senders, reader].to(self.X.dtype)
        M = M if M.ndim == 1 else M[:, None]
        return self.X - (self.shares[self.stage] * M[..., None]).mT @ self.excess[:, prior_senders].transpose(1, 2)

    def _mlp(self, block: Block, x: Tensor, prior_senders: slice) -> tuple[Tensor, Tensor]:
        x = self._read(x, prior_senders, self.graph.read_at(self.stage))[:, 0]
        update, latents = block.feed_forward(x), self.graph.latents.get(self.stage // 2)
        return update, update[:, None] if latents is None else latents.parts(x, update)

    def _attention(self, block: Block, reads: Mapping[str, Tensor], prior_senders: slice) -> tuple[Tensor, Tensor]:
        attn, readers = block.attn, self.graph.read_at(self.stage)
        if not self._own_inputs():
            z = attn.hook_z(block.heads(reads["q"], reads["v"]))
        else:
            parts: dict[str, list[int]] = {}
            for i in range(readers.start, readers.stop):
                parts.setdefault(self.graph.readers[i].part, []).append(i)
            x = {
                part: self._read(reads[part], prior_senders, slice(indices[0], indices[-1] + 1))
                for part, indices in parts.items()
            }
            z = attn.hook_z(attn.attend(*heads_of(block, x)))
        update = block.write(z)
        by_head = sends_by_head(self.model) and self.out.shape[1] > 0
        return update, head_outputs(block, z) if by_head else update[:, None]


def start(model: Any, graph: Graph, tokens: Int[Tensor, "B T"], embedding: Tensor | None = None, **fields: Any) -> Run:
    """A run before layer 0; `embedding` [B, T, D] replaces that of the tokens. `fields` are those of `Run`."""
    residual = model.config.residual
    if embedding is None:
        state = model.embed_tokens(tokens)
        embedding = state[..., 0, :] if isinstance(residual, Hyper) else state[0] if residual.streams else state
    B, T, D = embedding.shape
    w = torch.as_tensor(write_vector(residual, "input"), dtype=embedding.dtype, device=embedding.device)
    S = 0 if fields.get("split") else len(graph.senders)
    out = embedding.new_zeros(B, S, T, D)
    if S:
        out[:, 0] = embedding
    A = None
    if S and isinstance(residual, Hyper):
        A = embedding.new_zeros(B, T, len(graph.senders), n_streams(residual))
        A[:, :, 0] = 1.0
    return Run(model, graph, embedding[:, :, None] * w[:, None], out, A=A, **fields)


@torch.no_grad()
def run(model: Any, graph: Graph, tokens: Int[Tensor, "B T"], **fields: Any) -> Run:
    """A finished run, with the outputs of all senders. `fields` as in `start`."""
    return start(model, graph, tokens, **fields).finish()


def head_outputs(block: Block, z: Float[Tensor, "B T H K"]) -> Float[Tensor, "B senders T D"]:
    """Every head's part of the attention update, then the output bias."""
    attn = block.attn
    outputs = torch.einsum("bthk,hkd->bhtd", z, attn.W_O)
    return torch.cat([outputs, attn.b_O.expand(len(outputs), 1, outputs.shape[2], -1)], 1)


def heads_of(block: Block, x: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values and gate from one input per head: x["q"] [B, H, T, D], x["k"] and x["v"] [B, G, T, D]. An
    input with one head [B, 1, T, D] is that of all."""
    attn: Attention = block.attn
    normed = {name: _normed(block, name, value) for name, value in x.items()}
    q, k, v = (_project(attn, name, normed[name]) for name in "qkv")
    if (canon_b := block._modules.get("canon_b")) is not None:
        q, k, v = canon_b(torch.cat([q, k, v], -1)).split(attn.widths, -1)
    if _wide_norm(attn):  # applied to queries and keys already
        q, k = (y.unflatten(-1, (-1, attn.d_head)) for y in (q, k))
        q, k = attn.hook_q(q), attn.hook_k(k)
    else:
        q, k = attn.split_heads("q", q), attn.split_heads("k", k)
    v, gate, x_g = attn.split_heads("v", v), attn.gate, normed.get("g", normed["q"])
    if gate is None or gate.spec.source == "query":
        return q, k, v, None if gate is None else gate(q, x_g[:, 0], x_g[:, 0])
    flat = x_g.flatten(0, 1)
    g = gate(q, flat, flat).unflatten(0, x_g.shape[:2])  # [B, heads, T, H, O]
    return q, k, v, g[:, 0] if x_g.shape[1] == 1 else g.diagonal(dim1=1, dim2=3).movedim(-1, 2)


def _normed(block: Block, name: str, x: Float[Tensor, "B heads T D"]) -> Float[Tensor, "B heads T D"]:
    """The input of a projection: after the norm and Canon-A of queries and keys, or as values have it."""
    B, n = x.shape[:2]
    flat = x.flatten(0, 1)
    by_value = name == "v" or (name == "g" and block.attn.gate is not None and block.attn.gate.spec.source == "value")
    if by_value and block.value_path != "shared":
        y = block.ln1_v(flat) if block.value_path == "own" else flat
    else:
        y = block._part("canon_a", block._part("ln1", flat))
    return y.unflatten(0, (B, n))


def _wide_norm(attn: Attention) -> bool:
    norm = attn._modules.get("q_norm")
    return norm is not None and bool(norm.d_model != attn.d_head)


def _project(attn: Attention, name: str, x: Float[Tensor, "B heads T D"]) -> Float[Tensor, "B T width"]:
    """Head by head the projection of its own input, with a norm over all heads if there is one."""
    n, projection, norm = x.shape[1], attn._modules[name], attn._modules.get(f"{name}_norm")
    wide = _wide_norm(attn) and norm is not None
    if n > 1 and isinstance(projection, DenseProjection) and not wide:
        B, T = x.shape[0], x.shape[2]  # of a product over [B, heads], torch copies the weights for every row
        y = x.transpose(0, 1).flatten(1, 2) @ projection.weight.unflatten(0, (n, -1)).mT
        y = y.unflatten(1, (B, T)).movedim(0, 2).flatten(2)
        return y if projection.bias is None else y + projection.bias
    y = attn.project(name, x.flatten(0, 1))
    y = norm(y) if wide and norm is not None else y
    if n == 1:
        return y
    y = y.unflatten(-1, (n, -1)).unflatten(0, (-1, n))  # [B, heads, T, heads, K]
    return y.diagonal(dim1=1, dim2=3).movedim(-1, 2).flatten(2)
