"""TransformerLens' names for the weights of a whole model, and what is read from them: QK, OV, labels, biases."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.utilities.matrix import composition_scores

from streamscope.cli.errors import InputError, Undefined, unknown
from streamscope.models.config import FrozenToken, Hyper, ModelConfig

if TYPE_CHECKING:
    from transformer_lens.model_bridge.composition_scores import CompositionScores


class WeightsMixin:
    """The weights of a `StreamTransformer` as TransformerLens has them: stacked over the layers, as maps x W + b.

    Keys and values of grouped queries are repeated for every head, biases that are not there are zeros. Weights are
    those of the projections, without the norms before them; an HDPL projection is no matrix and raises `Undefined`.
    """

    config: ModelConfig

    @property
    def W_E(self) -> Float[Tensor, "V D"]:
        """Token embedding."""
        return self.embed.weight  # type: ignore[attr-defined]

    @property
    def W_U(self) -> Float[Tensor, "D V"]:
        """Unembedding."""
        return self.head.T  # type: ignore[attr-defined]

    @property
    def b_U(self) -> Float[Tensor, " V"]:
        """Zeros: no head here has a bias."""
        return self.W_U.new_zeros(self.config.d_vocab)

    @property
    def logit_bias(self) -> Float[Tensor, " V"]:
        """β W_U + b_U, β the final norm's bias: the share of the logits that no part of the residual stream writes.

        It is b_U in TransformerLens once it has folded the norm into the head. Zeros after an RMSNorm.
        """
        bias = self.ln_final.bias  # type: ignore[attr-defined]
        return self.b_U if bias is None else bias @ self.W_U + self.b_U

    @property
    def W_pos(self) -> Float[Tensor, "C D"]:
        """Position embedding. Raises `Undefined`, an `AttributeError`, where positions are no table."""
        if not self.config.positions.table:
            raise Undefined(
                f"W_pos is a table of learned positions; this model's are of kind {self.config.positions.kind}"
            )
        return self.pos_embed.weight  # type: ignore[attr-defined]

    @property
    def W_E_pos(self) -> Float[Tensor, "rows D"]:
        """Token embedding above position embedding."""
        return torch.cat([self.W_E, self.W_pos])

    @property
    def W_Q(self) -> Float[Tensor, "L H D K"]:
        """Query weights."""
        return self._stacked("attn", "W_Q")

    @property
    def W_K(self) -> Float[Tensor, "L H D K"]:
        """Key weights."""
        return self._stacked("attn", "W_K")

    @property
    def W_V(self) -> Float[Tensor, "L H D K"]:
        """Value weights."""
        return self._stacked("attn", "W_V")

    @property
    def W_O(self) -> Float[Tensor, "L H K D"]:
        """Output weights."""
        return self._stacked("attn", "W_O")

    @property
    def b_Q(self) -> Float[Tensor, "L H K"]:
        """Query biases."""
        return self._stacked("attn", "b_Q")

    @property
    def b_K(self) -> Float[Tensor, "L H K"]:
        """Key biases."""
        return self._stacked("attn", "b_K")

    @property
    def b_V(self) -> Float[Tensor, "L H K"]:
        """Value biases."""
        return self._stacked("attn", "b_V")

    @property
    def b_O(self) -> Float[Tensor, "L D"]:
        """Output biases of attention."""
        return self._stacked("attn", "b_O")

    @property
    def W_in(self) -> Float[Tensor, "L D M"]:
        """Input weights of the FFN; of the linear half, in a gated one."""
        return self._stacked("mlp", "W_in")

    @property
    def W_gate(self) -> Float[Tensor, "L D M"] | None:
        """Gate weights of a gated FFN; None otherwise."""
        return self._stacked("mlp", "W_gate") if self.config.mlp.gate is not None else None

    @property
    def W_out(self) -> Float[Tensor, "L M D"]:
        """Output weights of the FFN."""
        return self._stacked("mlp", "W_out")

    @property
    def b_in(self) -> Float[Tensor, "L M"]:
        """Input biases of the FFN."""
        return self._stacked("mlp", "b_in")

    @property
    def b_out(self) -> Float[Tensor, "L D"]:
        """Output biases of the FFN."""
        return self._stacked("mlp", "b_out")

    def _stacked(self, part: str, name: str) -> Tensor:
        blocks: Any = self.blocks  # type: ignore[attr-defined]
        try:
            return torch.stack([getattr(getattr(block, part), name) for block in blocks])
        except InputError as error:
            raise Undefined(str(error)) from None

    # ---- circuits ------------------------------------------------------------------------------

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of every head, [L, H, D, D]: scores are x QK x'^T / sqrt(d_h) of the normed inputs, without biases.

        With rotary positions that holds for a query and a key at one position, as in TransformerLens. Raises
        `Undefined` where something else stands between the weights and the scores.
        """
        if self.config.attention.qk_norm is not None:
            raise Undefined(
                "QK is not defined: queries and keys are normed before their product; read hook_q and hook_k"
            )
        self._no_canon("QK", "hook_q and hook_k")
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every head, [L, H, D, D]: what a head writes is the attended mean of x OV, without biases.

        x is what the values read, the token stream of some models. Raises `Undefined` where something else stands
        between the weights.
        """
        if self.config.attention.gate is not None:
            raise Undefined("OV is not defined: a gate that reads the input stands between V and O; read hook_result")
        self._no_canon("OV", "hook_result")
        return FactoredMatrix(self.W_V, self.W_O)

    def _no_canon(self, what: str, instead: str) -> None:
        if "b" in self.config.canon_widths():
            raise Undefined(f"{what} is not defined: Canon-B mixes positions after the projections; read {instead}")

    def all_composition_scores(self, mode: str) -> "CompositionScores":
        """How much each head's output weights meet what each later head reads: ‖A B‖ / (‖A‖ ‖B‖), [L, H, L, H].

        A is OV of the earlier head, B is QK (mode "Q"), QK^T ("K") or OV ("V") of the later one; Frobenius norms, 0
        where the second head is not in a later layer (Elhage et al. 2021, A Mathematical Framework). Every map that
        reads the stream counts with its norm, that is with γ and, where the norm takes the mean off, without it: as in
        TransformerLens after `fold_ln`. Raises `InputError` where QK or OV is not defined, where something besides a
        norm stands between the stream and the heads, and for values that read what no head writes.
        """
        from transformer_lens.model_bridge.composition_scores import (
            CompositionScores,
        )  # half a second, with all bridges

        if mode not in ("Q", "K", "V"):
            raise unknown("mode", str(mode), ["Q", "K", "V"])
        residual = self.config.residual
        self.adds_up()
        if "a" in self.config.canon_widths():
            raise Undefined("no composition scores: Canon-A mixes positions between the norm and the heads")
        if mode == "V" and isinstance(residual, FrozenToken) and residual.values == "token":
            raise Undefined("no V-composition: the values read the frozen token stream, which no head writes")
        left = FactoredMatrix(self._reading("v", self.OV.A), self.OV.B)
        if mode == "V":
            right = left
        else:
            right = FactoredMatrix(self._reading("q", self.QK.A), self._reading("k", self.QK.B.mT).mT)
        scores = composition_scores(left, right.T if mode == "K" else right, broadcast_dims=True)
        layers = torch.arange(self.config.n_layers, device=scores.device)
        later = layers[:, None, None, None] < layers[:, None]
        return CompositionScores(scores.where(later, 0.0), layers.tolist(), self.all_head_labels)

    def _reading(self, name: str, weights: Float[Tensor, "L H D K"]) -> Float[Tensor, "L H D K"]:
        """Weights of queries, keys or values behind their norm: (x − mean) γ W as a map of x."""
        path = self.config.residual.value_path if name == "v" else "shared"
        if path == "raw":
            return weights
        found = []
        for block, w in zip(self.blocks, weights, strict=True):  # type: ignore[attr-defined]
            norm = block.ln1_v if path == "own" else block.ln1
            w = (norm.weight[:, None] * w).unflatten(-2, (norm.groups, -1))
            found.append((w - w.mean(-2, keepdim=True) if norm.centred else w).flatten(-3, -2))
        return torch.stack(found)

    @property
    def all_head_labels(self) -> list[str]:
        """L0H0, L0H1, … in the order of `stack_head_results`."""
        return [f"L{layer}H{head}" for layer in range(self.config.n_layers) for head in range(self.config.n_heads)]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " D"]:
        """Sum of the output biases written before layer `layer` (its attention's as well with `mlp_input`).

        Raises `InputError` for a layer beyond the last, and where updates do not add up.
        """
        self.adds_up()
        n = self.config.n_layers
        if not 0 <= layer <= n - mlp_input:
            raise InputError(f"accumulated_bias needs a layer from 0 to {n - mlp_input}, got {layer}")
        total = self.W_U.new_zeros(self.config.d_model)
        for block in self.blocks[:layer]:  # type: ignore[attr-defined]
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases else 0.0)
        return total + self.blocks[layer].attn.b_O if mlp_input else total  # type: ignore[attr-defined]

    def adds_up(self) -> None:
        """Raise `InputError` unless embeddings and updates add up to the residual stream."""
        if isinstance(self.config.residual, Hyper):
            raise InputError(
                "updates do not add up to the residual stream of hyper-connections: they are scaled by hook_post and "
                "mixed by hook_res; use accumulated_resid, or the streams in hook_streams_post"
            )
