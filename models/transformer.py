"""StreamTransformer: one forward pass (embed, L blocks, readout) for training and analysis.

model(tokens)                          logits [B, T, V]
model(tokens, logits_at=positions)     logits at those positions only
model.segment(state, start, stop)      layers start … stop−1 on a cached state
model.loss(tokens, targets)            training loss, with per-layer supervision if configured
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError, UnknownOption, unknown
from streamscope.models import config as c
from streamscope.models import readout
from streamscope.models.config.serialization import to_dict
from streamscope.models.decoder import BlockCall, Decoder, gather_positions
from streamscope.models.generate import generate
from streamscope.models.hooks import CleanCopies, eager_when_hooked
from streamscope.models.interop.transformer_lens_api import LensMixin, check_padding
from streamscope.models.interop.transformer_lens_core import HookedRootModule
from streamscope.models.layers.head import unembed
from streamscope.models.layers.norms import Norm
from streamscope.models.layers.residual import State
from streamscope.models.tensors import save
from streamscope.text.tokenizer import Tokenizer

INSTEAD = {
    "return_type": "it returns a list of ids for each prompt, whose text is model.to_string(ids)",
    "prepend_bos": "give ids, model.to_tokens(text, prepend_bos=False)",
    "padding_side": "prompts of different lengths need no padding",
    "eos_token_id": "set model.eos_ids",
    "freq_penalty": "give repetition_penalty",
    "use_past_kv_cache": "keys and values are kept where nobody edits by position",
}
"""What serves in place of an option of TransformerLens' `generate`."""


class StreamTransformer(LensMixin, Decoder, CleanCopies, HookedRootModule):
    """A causal language model built from the parts of a `ModelConfig`.

    `models.hooks` lists the hooks. `tokenizer` is None for a model without text. `eos_ids` are the tokens that end a
    generated text: BOS, which starts the next document, or those of a Hugging Face folder.
    """

    def __init__(self, config: c.ModelConfig, tokenizer: Tokenizer | None = None, *, seed: int | None = 0) -> None:
        """Draw the weights by `seed`; None leaves them unset, to be loaded."""
        super().__init__(config)
        self.tokenizer = None if tokenizer is None else tokenizer.padded_to(config.d_vocab)
        self.eos_ids: tuple[int, ...] = () if tokenizer is None else (tokenizer.bos_id,)
        self.run: Path | None = None  # the folder it was loaded from
        self.digests: tuple[str, str] | None = None  # of the weights in its file, and of those as they were loaded
        self.changed = False  # whether an instrument found other weights than those
        self.origin: dict[str, Any] = {}  # of a model trained elsewhere: source, quantisation, BOS
        self.sampling: dict[str, Any] = {}  # options of `generate` that its makers use
        self._hdpl: list[Any] = [m for m in self.modules() if hasattr(m, "penalty")]
        if seed is not None:
            self.init_weights(seed)
        HookedRootModule.setup(self)

    @eager_when_hooked
    def forward(
        self,
        tokens: Any = None,
        logits_at: Int[Tensor, "B P"] | Int[Tensor, " B"] | str | None = None,
        *,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = True,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        input: Any = None,
        attention_mask: Tensor | None = None,
        padding_side: str | None = None,
    ) -> Any:
        """Logits [B, T, V] of tokens or texts, or [B, P, V] at `logits_at`; "loss", "both", or None (hooks only).

        The loss is the mean next-token loss in nats, or [B, T − 1] with `loss_per_token`. `mask` (from `to_batch`)
        excludes padding, as target and as the token before one; texts are padded on the right and have their own mask.
        `stop_at_layer` k returns the residual stream [B, T, D] that enters layer k (with several streams, their
        readout); negative k counts from the end. `start_at_layer` takes that stream instead of tokens. `input` and
        `attention_mask` are TransformerLens' names of tokens and mask. Padding must be on the right.

        Raises `InputError` for tokens outside the vocabulary, sequences longer than the context, padding on the left,
        unknown return types, layers that do not exist, and `start_at_layer` with several streams.
        """
        tokens = input if tokens is None else tokens
        attention_mask = None if attention_mask is None else attention_mask.bool()
        check_padding(padding_side, attention_mask)
        mask = attention_mask if mask is None else mask
        if isinstance(logits_at, str):
            raise InputError(f"name the return type: model(tokens, return_type={logits_at!r})")
        if return_type not in ("logits", "loss", "both", None):
            raise unknown("return_type", str(return_type), ["logits", "loss", "both"])
        if start_at_layer is not None:
            start, state = self._layer("start_at_layer", start_at_layer), self._as_state(tokens, return_type)
        else:
            if is_text(tokens):
                tokens, real = self.to_batch(tokens, prepend_bos is not False)
                mask = real if mask is None else mask
            self.check_tokens(tokens)
            start, state = 0, self.embed_tokens(tokens)
        if stop_at_layer is not None:
            return self.readout(self.segment(state, start, self._layer("stop_at_layer", stop_at_layer)))
        state = self.segment(state, start)
        if return_type == "logits":
            return self.logits(state, logits_at)
        if return_type is None:
            self.ln_final(self.readout(state))
            return None
        if tokens.shape[1] < 2:
            raise InputError("a next-token loss needs sequences of at least two tokens")
        x = self.ln_final(self.readout(state))
        logits = unembed(x, self.head) if loss_per_token or return_type == "both" else None
        if loss_per_token and logits is not None:
            loss = self.loss_fn(logits, tokens, mask, per_token=True)
        else:
            targets = tokens[:, 1:]
            if mask is not None:
                targets = targets.masked_fill(~(mask[:, :-1] & mask[:, 1:]), readout.IGNORE)
            loss = readout.cross_entropy(x[:, :-1], self.head, targets)
        return loss if return_type == "loss" else (logits, loss)

    def _layer(self, option: str, layer: int) -> int:
        n = self.config.n_layers
        if not -n <= layer <= n:
            raise InputError(f"{option} must be from {-n} to {n}, got {layer}")
        return layer + n if layer < 0 else layer

    def _as_state(self, x: Any, return_type: str | None) -> State:
        if streams := " and ".join(self.config.residual.streams):
            remedy = "use model.segment(state, start)"
            raise InputError(f"start_at_layer needs one stream, but this model has {streams}: {remedy}")
        if return_type in ("loss", "both"):
            raise InputError("a loss needs the tokens: use the logits and model.loss_fn(logits, tokens)")
        d = self.config.d_model
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != d or not x.is_floating_point():
            raise InputError(f"start_at_layer takes the stream that enters the layer, [batch, position, {d}]")
        return x

    def check_tokens(self, tokens: Any) -> None:
        """Raise `InputError` unless tokens are [B, T] with ids inside the vocabulary."""
        if not isinstance(tokens, Tensor):
            kind = type(tokens).__name__
            raise InputError(f"the model reads texts or a tensor of token ids, not {kind}: pass torch.tensor(ids)")
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            shape = f"{list(tokens.shape)} {tokens.dtype}"
            raise InputError(f"tokens must be integers of shape [batch, position], got {shape}")
        if (outside := tokens[(tokens < 0) | (tokens >= self.config.d_vocab)]).numel():
            raise InputError(f"token id {int(outside[0])} is outside the vocabulary of {self.config.d_vocab}")

    def generate(
        self, prompts: Any = None, *, input: Any = None, do_sample: bool = True, verbose: bool = False, **options: Any
    ) -> list[list[int]]:
        """Sample continuations of texts or lists of ids: max_new_tokens, temperature, top_k, top_p,
        min_p, repetition_penalty, suppress_tokens, seed, edits.

        Defaults and errors are those of `models.generate.generate`; the same seed gives the same text. `input` is
        TransformerLens' name of the prompts; with `do_sample` False the temperature is 0; `verbose` changes nothing.
        Raises `UnknownOption` for TransformerLens' other options.
        """
        if missing := options.keys() - inspect.signature(generate).parameters.keys():
            name = min(missing)
            raise UnknownOption(f"generate has no option {name!r}: {INSTEAD.get(name, 'leave it out')}")
        greedy = {} if do_sample else {"temperature": 0}
        return generate(self, input if prompts is None else prompts, **options | greedy)

    def loss(
        self, tokens: Int[Tensor, "B T"], targets: Int[Tensor, "B T"], *, blocks: Sequence[BlockCall] | None = None
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """(training loss, its parts), in nats per target.

        L = L_final + λ Σ_ℓ w_ℓ L^(ℓ) (DST Eq. 15, PLS A.5.2); without supervision L = L_final, the part `ce`. In
        training, HDPL projections add the part `kl` (HDPL §2.3); `kl_nats` and `kl_clamped` are only reported
        (`models.layers.hdpl.take_penalties`).
        """
        state = self.embed_tokens(tokens)
        supervision, n = self.config.readout.supervision, self.config.n_layers
        weights = supervision.layer_weights(n) if supervision is not None else []
        readouts: list[Tensor] = []
        for layer in range(n):
            state = self.segment(state, layer, layer + 1, blocks=blocks)
            if layer < len(weights):
                readouts.append(self.layer_norm(layer)(self.readout(state)))
        readouts.append(self.ln_final(self.readout(state)))
        total, ces = readout.cross_entropies(readouts, self.head, targets, [*weights, 1.0])
        parts = {f"ce_L{layer}": ces[layer] for layer in range(len(weights))}
        if self._hdpl:
            from streamscope.models.layers.hdpl import take_penalties

            parts |= take_penalties(self._hdpl)
        return total + parts.get("kl", 0.0), {"ce": ces[-1], **parts}

    @torch.no_grad()
    def token_losses(self, tokens: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """−log p(target) per position in nats, 0 if the target is −100."""
        return self.losses_from(self.segment(self.embed_tokens(tokens)), targets)

    @torch.no_grad()
    def losses_from(self, state: State, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """`token_losses` of a final state."""
        return readout.token_losses(self.ln_final(self.readout(state)), self.head, targets)

    def layer_norm(self, layer: int) -> Norm:
        """The norm of a layer's readout: the final norm unless `readout.layer_norms` is own."""
        has_own = layer < len(self.layer_norms)
        return self.layer_norms[layer] if has_own else self.ln_final  # type: ignore[return-value]

    @torch.no_grad()
    def layer_logits(
        self,
        tokens: Int[Tensor, "B T"],
        positions: Int[Tensor, "B P"] | Int[Tensor, " B"] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Float[Tensor, "B P l V"]:
        """Logits of the chosen layers' outputs through the shared head (PLS A.5.1; else the logit lens).

        Without `positions` at all positions; memory then grows with T · layers · V.
        """
        self.check_tokens(tokens)
        chosen_layers = list(range(self.config.n_layers) if layers is None else layers)
        if not chosen_layers:
            raise InputError("layer_logits needs at least one layer")
        if beyond := [layer for layer in chosen_layers if not 0 <= layer < self.config.n_layers]:
            raise InputError(f"layer {beyond[0]} does not exist: the model has layers 0 to {self.config.n_layers - 1}")
        logits, state = dict[int, Tensor](), self.embed_tokens(tokens)
        for layer in range(max(chosen_layers) + 1):
            state = self.segment(state, layer, layer + 1)
            if layer in chosen_layers:
                x = self.readout(state)
                x = x if positions is None else gather_positions(x, positions)
                logits[layer] = unembed(self.layer_norm(layer)(x), self.head)
        return torch.stack([logits[layer] for layer in chosen_layers], dim=2)

    def n_params(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def save(self, folder: str | Path) -> None:
        """Write config.json, model.safetensors and tokenizer.json, for `models.load`."""
        save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self.config)


def is_text(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, list | tuple) and bool(x) and all(isinstance(item, str) for item in x))
