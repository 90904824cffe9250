"""TransformerLens' names for the weights of a whole model, and quantities computed from them."""

from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError, Undefined, unknown
from streamscope.models.config import FrozenToken, Hyper, ModelConfig
from streamscope.models.interop.transformer_lens_core import FactoredMatrix

if TYPE_CHECKING:
    from transformer_lens.model_bridge.composition_scores import CompositionScores


def _stacked(part: str, name: str) -> property:
    """A property that stacks an attribute of every block's attention or FFN; an undefined one raises `Undefined`."""

    def read(self: Any) -> Tensor:
        try:
            return torch.stack([getattr(getattr(block, part), name) for block in self.blocks])
        except InputError as error:
            raise Undefined(str(error)) from None

    return property(read)


class WeightsMixin:
    """The weights of a `StreamTransformer` as in TransformerLens: stacked over layers, as maps x W + b.

    Keys and values of grouped queries are repeated for every head; missing biases are zeros. Weights exclude the norms
    before them. An HDPL projection is not a matrix and raises `Undefined`.
    """

    config: ModelConfig

    @property
    def W_E(self) -> Float[Tensor, "V D"]:
        """Token embedding, times its scale."""
        return self.embed.W_E  # type: ignore[attr-defined]

    @property
    def W_U(self) -> Float[Tensor, "D V"]:
        """Unembedding."""
        return self.unembed.W_U  # type: ignore[attr-defined]

    @property
    def b_U(self) -> Float[Tensor, " V"]:
        """Zeros; our unembeddings have no bias."""
        return self.W_U.new_zeros(self.config.d_vocab)

    @property
    def logit_bias(self) -> Float[Tensor, " V"]:
        """β W_U + b_U, the part of the logits from the final norm's bias β (zeros after an RMSNorm); in TransformerLens
        it is b_U after folding the norm into the head. Raises `InputError` for capped logits."""
        self.no_cap()
        bias = self.ln_final.bias  # type: ignore[attr-defined]
        return self.b_U if bias is None else bias @ self.W_U + self.b_U

    @property
    def W_pos(self) -> Float[Tensor, "C D"]:
        """Position embedding. Raises `Undefined`, an `AttributeError`, if positions are not a table."""
        if not self.config.positions.table:
            kind = self.config.positions.kind
            raise Undefined(f"W_pos is a table of learned positions, but this model has positions of kind {kind}")
        return self.pos_embed.W_pos  # type: ignore[attr-defined]

    @property
    def W_E_pos(self) -> Float[Tensor, "rows D"]:
        """Token embedding and position embedding, concatenated."""
        return torch.cat([self.W_E, self.W_pos])

    W_Q, W_K, W_V, W_O = (_stacked("attn", name) for name in ("W_Q", "W_K", "W_V", "W_O"))
    """Weights of queries, keys, values [L, H, D, K] and of the output [L, H, K, D]."""
    b_Q, b_K, b_V, b_O = (_stacked("attn", name) for name in ("b_Q", "b_K", "b_V", "b_O"))
    """Biases of queries, keys, values [L, H, K] and of the output [L, D]."""
    W_in, W_out, b_in, b_out = (_stacked("mlp", name) for name in ("W_in", "W_out", "b_in", "b_out"))
    """Weights of the FFN [L, D, M] (in a gated FFN, of the linear half), [L, M, D], and biases [L, M], [L, D]."""
    _W_gate = _stacked("mlp", "W_gate")

    @property
    def W_gate(self) -> Float[Tensor, "L D M"] | None:
        """Gate weights of a gated FFN, else None."""
        return self._W_gate if self.config.mlp.gate is not None else None

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of every head [L, H, D, D]: without biases and a cap, scores are x QK x'^T / sqrt(d_h) of normed
        inputs x, x'; with `attention.scale_width` w they are x QK x'^T / sqrt(w).

        With rotary positions this holds for a query and a key at the same position, as in TransformerLens. Raises
        `Undefined` if something else acts between the weights and the scores.
        """
        if self.config.attention.qk_norm is not None:
            raise Undefined(
                "QK is undefined, because queries and keys are normed before their product: read hook_q and hook_k"
            )
        self._no_canon("QK", "hook_q and hook_k")
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every head [L, H, D, D]: without biases, a head writes the attended mean of x OV.

        x is the input of the values, in some models the token stream. Raises `Undefined` if something else acts between
        the weights.
        """
        if self.config.attention.gate is not None:
            raise Undefined("OV is undefined, because a gate on the input acts between V and O: read hook_result")
        self._no_canon("OV", "hook_result")
        return FactoredMatrix(self.W_V, self.W_O)

    def _no_canon(self, quantity: str, instead: str) -> None:
        if "b" in self.config.canon_widths():
            raise Undefined(
                f"{quantity} is undefined, because Canon-B mixes positions after the projections: read {instead}"
            )

    def all_composition_scores(self, mode: str) -> "CompositionScores":
        """Composition scores of each head with each later head: ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, [L, H, L, H].

        A is OV of the earlier head; B is QK (mode "Q"), QK^T ("K") or OV ("V") of the later one. The score is 0 if the
        second head is not in a later layer (Elhage et al. 2021, A Mathematical Framework). Maps that read the stream
        include γ and the centring of their norm, as in TransformerLens after `fold_ln`. Raises `InputError` if QK or OV
        is undefined, something besides a norm acts between the stream and the heads, or no head writes to the input of
        the values.
        """
        # here, because it imports all bridges, which takes half a second
        from transformer_lens.model_bridge.composition_scores import CompositionScores

        if mode not in ("Q", "K", "V"):
            raise unknown("mode", str(mode), ["Q", "K", "V"])
        residual = self.config.residual
        self.adds_up()
        self.no_norm_after()
        if "a" in self.config.canon_widths():
            raise Undefined(
                "composition scores are undefined, because Canon-A mixes positions between the norm and the heads"
            )
        if mode == "V" and isinstance(residual, FrozenToken) and residual.values == "token":
            raise Undefined(
                "V-composition is undefined, because the values read the frozen token stream, to which no head writes"
            )
        left_maps = right_maps = FactoredMatrix(self._reading("v", self.OV.A), self.OV.B)
        if mode != "V":
            right_maps = FactoredMatrix(self._reading("q", self.QK.A), self._reading("k", self.QK.B.mT).mT)
        # a product of all heads with all at once would expand both sides: 10.7 GB for 270 heads of width 576
        A, B = left_maps.collapse_l(), (right_maps.T if mode == "K" else right_maps).collapse_r()
        a, b = (x.norm(dim=(-2, -1)) for x in (A, B))
        n, heads = self.config.n_layers, self.config.n_heads
        scores = A.new_zeros(n, heads, n, heads)
        for i, j in combinations(range(n), 2):
            products = torch.einsum("akd,bdm->abkm", A[i], B[j])
            scores[i, :, j] = products.norm(dim=(-2, -1)) / a[i, :, None] / b[j]
        return CompositionScores(scores, list(range(n)), self.all_head_labels)

    def _reading(self, name: str, weights: Float[Tensor, "L H D K"]) -> Float[Tensor, "L H D K"]:
        """Weights of queries, keys or values including their norm: (x − mean) γ W as a map of x."""
        path = self.config.residual.value_path if name == "v" else "shared"
        if path == "raw" or self.config.norm_place == "after":
            return weights
        maps = []
        for block, w in zip(self.blocks, weights, strict=True):  # type: ignore[attr-defined]
            norm = block.ln1_v if path == "own" else block.ln1
            w = (norm.weight[:, None] * w).unflatten(-2, (norm.groups, -1))
            maps.append((w - w.mean(-2, keepdim=True) if norm.centred else w).flatten(-3, -2))
        return torch.stack(maps)

    @property
    def all_head_labels(self) -> list[str]:
        """Head names L0H0, L0H1, … in the order of `stack_head_results`."""
        return [f"L{layer}H{head}" for layer in range(self.config.n_layers) for head in range(self.config.n_heads)]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " D"]:
        """Sum of the output biases before a layer; with `mlp_input` including its attention's. Raises `InputError` for
        a layer beyond the last, and if updates do not add up to the stream."""
        self.adds_up()
        self.no_norm_after()
        n = self.config.n_layers
        if not 0 <= layer <= n - mlp_input:
            raise InputError(f"accumulated_bias needs a layer from 0 to {n - mlp_input}, got {layer}")
        total = self.W_U.new_zeros(self.config.d_model)
        for block in self.blocks[:layer]:  # type: ignore[attr-defined]
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases else 0.0)
        return total + self.blocks[layer].attn.b_O if mlp_input else total  # type: ignore[attr-defined]

    @property
    def logit_scale(self) -> float:
        """1. Raises `InputError` for capped logits, which are not linear in the input of the head."""
        self.no_cap()
        return 1.0

    def check_sums(self, name: str) -> None:
        """Raise `InputError` if "parts", "heads", "neurons" or the "remainder" of these do not add up to the stream."""
        if name in ("heads", "neurons"):
            self.no_norm_after()
        else:
            self.adds_up()

    def no_norm_after(self) -> None:
        """Raise `InputError` if a norm acts between heads, neurons or biases and the stream (OLMo 2, Gemma 2)."""
        if self.config.norm_place != "before":
            raise InputError(
                f"{self.config.name} norms what a layer writes (ln1_post, ln2_post), so its heads, neurons and biases "
                "are no parts of the residual stream: use the layer's updates (decompose_resid, L2.attn)"
            )

    def no_cap(self) -> None:
        """Raise `InputError` if the logits have a cap (Gemma 2)."""
        if self.config.readout.softcap:
            raise InputError(
                f"{self.config.name} caps its logits, so they are not linear in the input of the head, as attribution "
                "needs: measure the effect of an edit instead (ablate, patch)"
            )

    def adds_up(self) -> None:
        """Raise `InputError` unless embeddings and updates add up to the residual stream."""
        if isinstance(self.config.residual, Hyper):
            raise InputError(
                "updates do not add up to the residual stream of hyper-connections, which hook_post scales and "
                "hook_res mixes: use accumulated_resid, or the streams in hook_streams_post"
            )
