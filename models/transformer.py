"""StreamTransformer: embed, L blocks, readout. The same forward pass serves training and analysis.

model(tokens)                          logits [B, T, V]
model(tokens, logits_at=positions)     logits at those positions only
model.segment(state, start, stop)      layers start … stop−1 on a cached state
model.loss(tokens, targets)            training loss, with per-layer supervision where configured
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from streamscope.models import config as c
from streamscope.models import readout
from streamscope.models.config.serialization import to_dict
from streamscope.models.errors import InputError, unknown
from streamscope.models.generate import generate
from streamscope.models.hooks import tap
from streamscope.models.layers import hyper  # noqa: F401  (registers its topologies)
from streamscope.models.layers.hdpl import HdplProjection, take_penalties
from streamscope.models.layers.initialisation import fill
from streamscope.models.layers.norms import Norm
from streamscope.models.layers.positions import PositionTable
from streamscope.models.layers.registry import module_for
from streamscope.models.layers.residual import State, Topology
from streamscope.models.lens import LensMixin
from streamscope.models.tensors import save
from streamscope.models.text.tokenizer import Tokenizer

BlockCall = Callable[[State], State]


class Embedding(nn.Module):
    """A table [rows, D]; `weight` is W_E, or the transposed W_U of an untied head."""

    def __init__(self, rows: int, d_model: int, init: c.Init) -> None:
        super().__init__()
        self.init = init
        self.weight = nn.Parameter(torch.empty(rows, d_model))

    def init_weights(self, std: float, generator: torch.Generator) -> None:
        """By `init`; the fan-in is the width."""
        fill(self.weight, self.init, self.weight.shape[1], std=std, generator=generator)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Rows of the table."""
        return F.embedding(tokens, self.weight)


def check_memory(config: c.ModelConfig) -> None:
    """Raise `InputError` for a model whose tables and dense projections alone are larger than this machine's memory."""
    attention, d = config.attention, config.d_model
    dense = sum(isinstance(one, c.Dense) for one in (attention.q, attention.k, attention.v, attention.o))
    tables = config.d_vocab + (config.n_ctx if config.positions.table else 0)
    size = torch.get_default_dtype().itemsize * d * (tables + config.n_layers * dense * d)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > have:
        raise InputError(
            f"a model of width {d:,}, vocabulary {config.d_vocab:,} and {config.n_layers:,} layers takes more than "
            f"{size / 2**30:,.0f} GiB, this machine has {have / 2**30:,.0f}; choose smaller sizes"
        )


class StreamTransformer(LensMixin, HookedRootModule):
    """A causal language model built from the parts of a `ModelConfig`.

    Hooks are listed in `models.hooks`. `tokenizer` is None for a model without text.
    """

    def __init__(self, config: c.ModelConfig, tokenizer: Tokenizer | None = None, *, seed: int = 0) -> None:
        super().__init__()
        check_memory(config)
        self.config, self.tokenizer = config, tokenizer
        self.run: Path | None = None  # the folder it was loaded from
        self.embed = Embedding(config.d_vocab, config.d_model, config.init.embed)
        self.hook_embed = HookPoint()
        table = config.positions.table
        self.pos_embed = PositionTable(config.n_ctx, config.d_model, config.init.positions) if table else None
        if self.pos_embed is not None:
            self.hook_pos_embed = HookPoint()
        self.dropout = nn.Dropout(config.dropout)
        self.residual: Topology = module_for(config.residual)(config)
        self.blocks = nn.ModuleList([self.residual.block(config, layer) for layer in range(config.n_layers)])
        norm, d, heads = config.readout.norm, config.d_model, config.n_heads
        own = config.readout.layer_norms == "own"
        make = module_for(norm)
        self.layer_norms = nn.ModuleList(
            [make(norm, d, heads, hooks=False) for _ in range(config.n_layers - 1)] if own else []
        )
        self.ln_final = make(norm, d, heads)
        self.unembed = None if config.readout.tied else Embedding(config.d_vocab, d, config.init.embed)
        self._hdpl = [m for m in self.modules() if isinstance(m, HdplProjection)]
        self.init_weights(seed)
        self.setup()

    def init_weights(self, seed: int) -> None:
        """Every module with an `init_weights(std, generator)` sets its own weights, in the model's order.

        Projections by their own rule or by `init.weights`, tables by `init`; norms 1 and 0; gates, Canon layers, HDPL
        projections and hyper-connections by their spec. With `init.head` copy an untied head starts as the embedding.
        """
        generator = torch.Generator().manual_seed(seed)

        def visit(module: nn.Module) -> None:
            for child in module.children():
                own = getattr(child, "init_weights", None)
                if callable(own):
                    own(self.config.init_std, generator)
                else:
                    visit(child)

        visit(self)
        if self.unembed is not None and self.config.init.head == "copy":
            with torch.no_grad():
                self.unembed.weight.copy_(self.embed.weight)

    # ---- the forward pass, in pieces -----------------------------------------------------------

    @property
    def head(self) -> Float[Tensor, "V D"]:
        """The matrix that turns a normed stream into logits: logits = x W^T."""
        return (self.unembed or self.embed).weight

    def embed_tokens(self, tokens: Int[Tensor, "B T"]) -> State:
        """The state before layer 0."""
        if tokens.shape[1] > self.config.n_ctx:
            raise InputError(f"sequence of {tokens.shape[1]} tokens is longer than the context of {self.config.n_ctx}")
        x = self.hook_embed(self.embed(tokens))
        if self.pos_embed is not None:
            x = x + tap(self.hook_pos_embed, self.pos_embed(tokens.shape[1], tokens.shape[0]))
        return self.residual.init(self.dropout(x))

    def segment(
        self, state: State, start: int = 0, stop: int | None = None, *, blocks: Sequence[BlockCall] | None = None
    ) -> State:
        """The state after layers start … stop−1. `blocks` replaces the modules (compiled ones, in training).

        segment(segment(s, 0, l), l, L) equals segment(s, 0, L) bit for bit.
        """
        n = self.config.n_layers
        stop = n if stop is None else stop
        if not 0 <= start <= stop <= n:
            raise InputError(f"segment {start}..{stop} does not lie in the {n} layers")
        for layer in range(start, stop):
            state = (blocks or self.blocks)[layer](state)
        return state

    def readout(self, state: State) -> Float[Tensor, "B T D"]:
        """The stream the head reads, before the final norm."""
        return self.residual.readout(state)

    def logits(
        self, state: State, logits_at: Int[Tensor, "B P"] | Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B P V"]:
        """Final norm and head, at positions [B, P] or [B], or everywhere.

        Negative positions count from the end of the padded row: with right padding, −1 may be a pad.
        """
        x = self.readout(state)
        if logits_at is None:
            x = self.ln_final(x)
        elif self.ln_final.listening:  # its hooks see every position
            x = gather_positions(self.ln_final(x), logits_at)
        else:
            x = self.ln_final(gather_positions(x, logits_at))
        return F.linear(x, self.head)

    def forward(
        self,
        tokens: Any,
        logits_at: Int[Tensor, "B P"] | Int[Tensor, " B"] | None = None,
        *,
        return_type: str | None = "logits",
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Any:
        """Logits [B, T, V], or [B, P, V] at `logits_at`; "loss", "both", or None (hooks only).

        The loss is the mean next-token loss in nats; with `mask` (from `to_batch`) over real targets only: without
        it, the padding of a batch of texts counts. Raises `InputError` for tokens outside the vocabulary, sequences
        longer than the context and unknown return types.
        """
        if return_type not in ("logits", "loss", "both", None):
            raise unknown("return_type", str(return_type), ["logits", "loss", "both"])
        self.check_tokens(tokens)
        state = self.segment(self.embed_tokens(tokens))
        if return_type == "logits":
            return self.logits(state, logits_at)
        if return_type is None:
            self.ln_final(self.readout(state))
            return None
        if tokens.shape[1] < 2:
            raise InputError("a next-token loss needs sequences of at least two tokens")
        targets = tokens[:, 1:]
        if mask is not None:
            targets = targets.masked_fill(~mask[:, 1:], readout.IGNORE)
        x = self.ln_final(self.readout(state))
        loss = readout.cross_entropy(x[:, :-1], self.head, targets)
        return loss if return_type == "loss" else (F.linear(x, self.head), loss)

    def check_tokens(self, tokens: Any) -> None:
        """Raise `InputError` unless tokens are [B, T] with ids of the vocabulary."""
        if not isinstance(tokens, Tensor):
            raise InputError(f"the model reads token ids, not {type(tokens).__name__}: pass model.to_tokens(text)")
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"tokens must be integers of shape [batch, position], got {list(tokens.shape)} {tokens.dtype}"
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.config.d_vocab:
            worst = int(tokens.max()) if int(tokens.min()) >= 0 else int(tokens.min())
            raise InputError(f"token id {worst} is outside the vocabulary of {self.config.d_vocab}")

    def generate(self, prompts: Any, **options: Any) -> list[list[int]]:
        """Sample continuations of texts or lists of ids: max_new_tokens, temperature, top_k, top_p, seed, edits.

        Defaults and errors are those of `models.generate.generate`; the same seed gives the same text.
        """

        return generate(self, prompts, **options)

    # ---- losses --------------------------------------------------------------------------------

    def loss(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        *,
        blocks: Sequence[BlockCall] | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """(training loss, its parts), in nats per target.

        L = L_final + λ Σ_ℓ w_ℓ L^(ℓ) (DST Eq. 15, PLS A.5.2); without supervision L = L_final, the part `ce`.
        In training HDPL projections add the part `kl` (HDPL §2.3); `kl_nats` and `kl_clamped` only report
        (`models.layers.hdpl.take_penalties`).
        """
        state = self.embed_tokens(tokens)
        supervision, n = self.config.readout.supervision, self.config.n_layers
        weights = supervision.layer_weights(n) if supervision is not None else []
        read: list[Tensor] = []
        for layer in range(n):
            state = self.segment(state, layer, layer + 1, blocks=blocks)
            if layer < len(weights):
                read.append(self.layer_norm(layer)(self.readout(state)))
        read.append(self.ln_final(self.readout(state)))
        total, ces = readout.cross_entropies(read, self.head, targets, [*weights, 1.0])
        parts = {f"ce_L{layer}": ces[layer] for layer in range(len(weights))} | take_penalties(self._hdpl)
        return total + parts.get("kl", 0.0), {"ce": ces[-1], **parts}

    @torch.no_grad()
    def token_losses(self, tokens: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """−log p(target) per position, in nats; 0 where the target is −100."""
        return self.losses_from(self.segment(self.embed_tokens(tokens)), targets)

    @torch.no_grad()
    def losses_from(self, state: State, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """`token_losses` of a final state."""
        return readout.token_losses(self.ln_final(self.readout(state)), self.head, targets)

    # ---- every layer ---------------------------------------------------------------------------

    def layer_norm(self, layer: int) -> Norm:
        """The norm of layer `layer`'s readout: the final one unless `readout.layer_norms` is own."""
        own = layer < len(self.layer_norms)
        return self.layer_norms[layer] if own else self.ln_final  # type: ignore[return-value]

    @torch.no_grad()
    def layer_logits(
        self,
        tokens: Int[Tensor, "B T"],
        positions: Int[Tensor, "B P"] | Int[Tensor, " B"] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Float[Tensor, "B P l V"]:
        """Logits of the chosen layers' outputs through the shared head (PLS A.5.1; logit lens otherwise).

        Without `positions` everywhere: memory then grows with T · layers · V.
        """
        self.check_tokens(tokens)
        wanted = list(range(self.config.n_layers) if layers is None else layers)
        if not wanted:
            raise InputError("layer_logits needs at least one layer")
        for layer in wanted:
            if not 0 <= layer < self.config.n_layers:
                raise InputError(f"layer {layer} does not exist: the model has layers 0 to {self.config.n_layers - 1}")
        found: dict[int, Tensor] = {}
        state = self.embed_tokens(tokens)
        for layer in range(max(wanted) + 1):
            state = self.segment(state, layer, layer + 1)
            if layer in wanted:
                x = self.readout(state)
                x = x if positions is None else gather_positions(x, positions)
                found[layer] = F.linear(self.layer_norm(layer)(x), self.head)
        return torch.stack([found[layer] for layer in wanted], dim=2)

    def n_params(self) -> int:
        """Parameters, a tied head counted once."""
        return sum(p.numel() for p in self.parameters())

    def save(self, folder: str | Path) -> None:
        """Write config.json, model.safetensors and tokenizer.json, for `models.load`."""

        save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON data."""

        return to_dict(self.config)


def gather_positions(
    x: Float[Tensor, "B T D"], positions: Int[Tensor, "B P"] | Int[Tensor, " B"]
) -> Float[Tensor, "B P D"]:
    """Rows of x at each sequence's own positions; negative positions count from the end."""
    p = torch.as_tensor(positions, device=x.device)
    p = p[:, None] if p.ndim == 1 else p
    n = x.shape[1]
    if p.shape[0] != x.shape[0]:
        raise InputError(f"positions for {p.shape[0]} sequences given, the batch has {x.shape[0]}")
    if p.numel() and not -n <= int(p.min()) <= int(p.max()) < n:
        worst = int(p.max()) if int(p.max()) >= n else int(p.min())
        raise InputError(f"position {worst} is outside a sequence of {n} tokens")
    return x.gather(1, (p % n)[..., None].expand(-1, -1, x.shape[2]))
