"""The forward pass of a `StreamTransformer`: embed, L blocks, readout.

`models.transformer` adds hooks, text and losses, `models.interop.export` the interface of transformers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from streamscope.cli.errors import InputError
from streamscope.models import config as c
from streamscope.models.hooks.points import ReadPoint, see_nnsight
from streamscope.models.interop.transformer_lens_core import HookPoint
from streamscope.models.layers.head import Embedding, TiedUnembedding, UntiedUnembedding, unembed
from streamscope.models.layers.noise import Dropout
from streamscope.models.layers.norms import Norm
from streamscope.models.layers.positions import PositionTable
from streamscope.models.layers.residual import Block, State

BlockCall = Callable[[State], State]


class Decoder(nn.Module):
    """Computes logits from token ids. Weights are unset until `init_weights`, or until they are loaded."""

    ln_final: Norm

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.d_vocab, config.d_model, config.init.embed, config.embed_scale)
        self.hook_embed = HookPoint()
        table = config.positions.table
        self.pos_embed = PositionTable(config.n_ctx, config.d_model, config.init.positions) if table else None
        if self.pos_embed is not None:
            self.hook_pos_embed = ReadPoint()
        self.dropout = Dropout(config.dropout) if config.dropout else nn.Identity()
        if isinstance(config.residual, c.Hyper):  # these files register their modules with the parts of a few models
            import streamscope.models.layers.hyper_mixing
        for _, spec, _, _ in config.projections():
            if isinstance(spec, c.Hdpl):
                import streamscope.models.layers.hdpl  # noqa: F401
        self.blocks = nn.ModuleList(map(partial(config.residual.module, config), range(config.n_layers)))
        norm, has_own = config.readout.norm, config.readout.layer_norms == "own"
        make = partial(norm.module, norm, config.d_model, config.n_heads)
        self.layer_norms = nn.ModuleList([make(hooks=False) for _ in range(config.n_layers - 1)] if has_own else [])
        self.ln_final = make()
        self.unembed = TiedUnembedding(config, self.embed) if config.readout.tied else UntiedUnembedding(config)

    def __getattr__(self, name: str) -> Any:
        """As in torch; a property that raised `Undefined` is called again, for its own message."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            attribute = getattr(type(self), name, None)
            if isinstance(attribute, property) and attribute.fget is not None:
                return attribute.fget(self)
            raise

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draw all weights from one generator, children before their module, in the model's order.

        Each module sets its parameters in `init_weights(std, generator)`, and may overwrite those of its children:
        projections and tables by `init` or their own rule, others by their spec. With `init.head` copy, an untied head
        starts as a copy of the embedding. Raises `InputError` for a parameter that no `init_weights` sets.
        """
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.is_floating_point():
                parameter.fill_(torch.nan)

        def visit(module: nn.Module) -> None:
            for child in module.children():
                visit(child)
                init = getattr(child, "init_weights", None)
                if callable(init):
                    init(self.config.init_std, generator)

        visit(self)
        unset = [name for name, p in self.named_parameters() if not p.is_meta and bool(p.isnan().any())]
        if unset:
            others = f" (nor have {len(unset) - 1} others)" if unset[1:] else ""
            remedy = "give its module a method init_weights(std, generator) that sets it"
            raise InputError(f"{unset[0]} has no initial value{others}: {remedy}")
        if not self.config.readout.tied and self.config.init.head == "copy":
            self.unembed.weight.copy_(self.embed.weight)

    @property
    def head(self) -> Any:
        """The unembedding W [V, D] of a normed stream x, logits = x Wᵀ; `Capped` if they have a cap."""
        return self.unembed.head

    def embed_tokens(self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B T"] | None = None) -> State:
        """The state before layer 0; `positions` are those of the tokens, if they are not the first ones."""
        if (n := tokens.shape[1]) > self.config.n_ctx:
            raise InputError(f"a sequence of {n} tokens is longer than the context of {self.config.n_ctx}")
        if "forward" in self.__dict__ and not torch.compiler.is_compiling():  # also a pass that is no `forward`
            see_nnsight(self)
        x = self.hook_embed(self.embed(tokens))
        if self.pos_embed is not None:
            x = x + self.hook_pos_embed(self.pos_embed(tokens.shape[1], tokens.shape[0], positions))
        return cast(Block, self.blocks[0]).init(self.dropout(x))

    def segment(
        self, state: State, start: int = 0, stop: int | None = None, *, blocks: Sequence[BlockCall] | None = None
    ) -> State:
        """The state after layers start … stop−1. `blocks` replaces the modules, for example by compiled ones.

        segment(segment(s, 0, l), l, L) equals segment(s, 0, L) bit for bit.
        """
        stop = self.config.n_layers if stop is None else stop
        if not 0 <= start <= stop <= self.config.n_layers:
            raise InputError(f"segment {start}..{stop} is outside the {self.config.n_layers} layers")
        for layer in range(start, stop):
            state = (blocks or self.blocks)[layer](state)
        return state

    def readout(self, state: State) -> Float[Tensor, "B T D"]:
        return cast(Block, self.blocks[-1]).readout(state)

    def logits(
        self, state: State, logits_at: Int[Tensor, "B P"] | Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B P V"]:
        """Apply final norm and head, at positions [B, P] or [B], or everywhere.

        Negative positions count from the end of the padded row: with right padding, −1 may be padding.
        """
        x = self.readout(state)
        if logits_at is None:
            x = self.ln_final(x)
        elif self.ln_final.listening or self.ln_final._forward_hooks:  # its hooks see every position
            x = gather_positions(self.ln_final(x), logits_at)
        else:
            x = self.ln_final(gather_positions(x, logits_at))
        return unembed(x, self.head)


def gather_positions(
    x: Float[Tensor, "B T D"], positions: Int[Tensor, "B P"] | Int[Tensor, " B"]
) -> Float[Tensor, "B P D"]:
    """Select from each sequence of x its own positions; negative positions count from the end."""
    p, n = torch.as_tensor(positions, device=x.device), x.shape[1]
    p = p[:, None] if p.ndim == 1 else p
    if p.shape[0] != x.shape[0]:
        raise InputError(f"positions are given for {p.shape[0]} sequences, but the batch has {x.shape[0]}")
    if (outside := p[(p < -n) | (p >= n)]).numel():
        raise InputError(f"position {int(outside[0])} is outside a sequence of {n} tokens")
    return x.gather(1, (p % n)[..., None].expand(-1, -1, x.shape[2]))
