"""TransformerLens' cache of activations, for our norms and architectures."""

import re
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformer_lens import ActivationCache

from streamscope.cli.errors import InputError, unknown
from streamscope.models.config import Hyper
from streamscope.models.interop.transformer_lens_core import Slice

LAYER = re.compile(r"(blocks\.)\d+\.")


def _slice(chosen: Any) -> Slice:
    return chosen if isinstance(chosen, Slice) else Slice(chosen)


class NotCached(InputError, KeyError):
    """A name that a cache does not hold; also a `KeyError`, as TransformerLens' functions expect."""

    __str__ = Exception.__str__  # KeyError would quote the message


def _checked(name: str, quantity: str) -> Any:
    """TransformerLens' method, after a check that `quantity` adds up to the stream (`check_sums` of the model)."""
    original = getattr(ActivationCache, name)

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature(original).bind(self, *args, **kwargs).arguments
        self.model.check_sums(quantity)
        if quantity != "parts" and (arguments.get("apply_ln") or arguments.get("incl_remainder")):
            self.model.check_sums("remainder")
        return original(self, *args, **kwargs)

    return method


class NormedCache(ActivationCache):
    """TransformerLens' cache for our norms, which have weights and perhaps statistics per head.

    A part x of a stack adds γ ⊙ (x − mean) / s · u to a token's logit, where u is the token's column of W_U
    (`logit_attrs`). Parts that add up to the last residual state add up to the logit without `model.logit_bias`:
    `cache.logit_attrs(cache.decompose_resid(), token).sum(0) + model.logit_bias[token]`. Methods that
    decompose the stream raise `InputError` for parts that do not add up to it: with n streams, or with a norm between
    heads or neurons and the stream.
    """

    decompose_resid = _checked("decompose_resid", "parts")
    get_full_resid_decomposition = _checked("get_full_resid_decomposition", "parts")
    stack_head_results = _checked("stack_head_results", "heads")
    stack_neuron_results = _checked("stack_neuron_results", "neurons")

    def logit_attrs(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens, with the norm's weight and the model's logit scale (Granite, Cohere).

        The final norm's bias is nobody's part: parts of a whole stream add up to the logit minus `model.logit_bias`.
        Raises `InputError` for logits that are not linear in the input of the head.
        """
        return self.model.logit_scale * super().logit_attrs(*args, **kwargs)

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> "NormedCache":
        part = super().apply_slice_to_batch_dim(batch_slice)
        return type(self)(part.cache_dict, self.model, has_batch_dim=part.has_batch_dim)

    def apply_ln_to_stack(
        self, residual_stack: Tensor, layer: int | None = None, mlp_input: bool = False, pos_slice: Any = None,
        batch_slice: Any = None, has_batch_dim: bool = True, recompute_ln: bool = False,
    ) -> Tensor:  # fmt: skip
        """Apply the norm before `layer` (None: the final norm) to every part x of a stack: γ ⊙ (x − mean) / s.

        s is the statistic of the whole stream, from the cache, so parts that add up to the stream add up to the norm's
        output without its bias β. TransformerLens omits γ because it folds γ into the weights; our W_U and W_Q are as
        trained. With `recompute_ln`, each part passes the whole final norm, with its own statistics.
        """
        if has_batch_dim:
            residual_stack = _slice(batch_slice).apply(residual_stack, dim=1)
        if recompute_ln and self._is_final(layer):
            return self.model.ln_final(residual_stack)
        scale = self._scale(layer, mlp_input, pos_slice, batch_slice)
        groups, centred, weight, _ = self._norm(layer, mlp_input)
        x = residual_stack.unflatten(-1, (groups, -1))
        x = x - x.mean(-1, keepdim=True) if centred else x
        return (x / scale).flatten(-2) * weight

    def _is_final(self, layer: int | None) -> bool:
        return layer in (None, -1, self.model.cfg.n_layers)

    def _norm(self, layer: int | None, mlp_input: bool) -> tuple[int, bool, Tensor, Tensor | None]:
        """(groups with their own statistics, whether the mean is subtracted, γ, β) of the norm before a layer."""
        norm = self.model.get_submodule(self._norm_name(layer, mlp_input))
        return norm.groups, norm.centred, norm.weight, norm.bias

    def _norm_name(self, layer: int | None, mlp_input: bool) -> str:
        return "ln_final" if self._is_final(layer) else f"blocks.{layer}.ln{2 if mlp_input else 1}"

    def _scale(self, layer: int | None, mlp_input: bool, pos_slice: Any, batch_slice: Any = None) -> Tensor:
        """s of the norm before a layer [*batch and position, groups, 1]."""
        scale = self[f"{self._norm_name(layer, mlp_input)}.hook_scale"]
        groups = self._norm(layer, mlp_input)[0]
        scale = scale if groups > 1 else scale.unsqueeze(-2)
        scale = _slice(pos_slice).apply(scale, dim=-3)
        return _slice(batch_slice).apply(scale) if self.has_batch_dim else scale

    def _stack_neuron_results_apply_ln_projected(
        self, layer: int, pos_slice: Any, neuron_slice: Any, project_2d: Tensor, mlp_input: bool = False
    ) -> Tensor:
        """Neurons through the norm (`apply_ln_to_stack`), times `project_2d` [D, n]: [neurons, …, n].

        A neuron writes a w, so its part is Σ_g a / s_g (γ ⊙ (w − mean))_g · p_g over the groups g of the norm. This
        avoids the product of all neurons with the whole width.
        """
        scale = self._scale(layer, mlp_input, pos_slice)[..., 0]  # [..., G]
        groups, centred, weight, _ = self._norm(layer, mlp_input)
        rows = [scale.new_zeros(0, *scale.shape[:-1], project_2d.shape[-1])]
        for index in range(layer):
            block = self.model.blocks[index]
            w = neuron_slice.apply(block.mlp.W_out, dim=0).unflatten(-1, (groups, -1))
            w = w - w.mean(-1, keepdim=True) if centred else w
            w = w * weight.unflatten(-1, (groups, -1)) * getattr(block, "residual_contribution_scale", 1.0)
            along = torch.einsum("mgd,gdn->mgn", w, project_2d.unflatten(0, (groups, -1)))
            a = neuron_slice.apply(pos_slice.apply(self["post", index, "mlp"], dim=-2), dim=-1)
            rows.append(torch.einsum("...m,...g,mgn->...mn", a, 1 / scale, along).movedim(-2, 0))
        return torch.cat(rows)

    def accumulated_resid(
        self, layer: int | None = None, incl_mid: bool = False, apply_ln: bool = False, pos_slice: Any = None,
        mlp_input: bool = False, return_labels: bool = False,
    ) -> Any:  # fmt: skip
        """As in TransformerLens: the residual states up to a layer; with `apply_ln`, after the norm before it, with β.

        In the final norm each state has its own statistics; before a middle layer all have that layer's. Where the
        readout of every layer has its own norm, it reads the states of that layer, so a state times W_U is
        `model.layer_logits`. The embedding, which no readout reads, goes through the final one.
        """
        n, final = self.model.cfg.n_layers, self._is_final(layer)
        own_norms = apply_ln and final and len(getattr(self.model, "layer_norms", ())) > 0
        normed = apply_ln and not own_norms
        stack, labels = super().accumulated_resid(layer, incl_mid, normed, pos_slice, mlp_input, return_labels=True)
        if own_norms:
            after = (n if name == "final_post" else int(name.split("_")[0]) + name.endswith("mid") for name in labels)
            norms = [self.model.layer_norm(i - 1) if i else self.model.ln_final for i in after]
            stack = torch.stack([norm(x) for norm, x in zip(norms, stack, strict=True)])
        elif apply_ln and not final:
            bias = self._norm(layer, mlp_input)[3]
            stack = stack if bias is None else stack + bias
        return (stack, labels) if return_labels else stack


class Cache(NormedCache):
    """The cache of one of our models: short names, and errors for quantities that its architecture does not define."""

    def __repr__(self) -> str:
        kinds = dict.fromkeys(LAYER.sub(r"\1*.", name) for name in self.keys())
        return f"Cache of {len(self)} activations: {', '.join(kinds)}"

    def __getitem__(self, key: Any) -> Tensor:
        """An activation by its name, or by TransformerLens' short forms such as `cache["pattern", 0]`.

        Raises `NotCached`, with the nearest names, for a name that is not in the cache.
        """
        try:
            return super().__getitem__(key)
        except KeyError as missing:
            raise NotCached(str(unknown("activation", str(missing.args[0]), list(self.keys())))) from None

    def _scale(self, layer: int | None, mlp_input: bool, pos_slice: Any, batch_slice: Any = None) -> Tensor:
        """Raises `InputError` if the norm of a middle layer does not read the sum of all earlier updates."""
        residual = self.model.config.residual
        if not self._is_final(layer):
            if isinstance(residual, Hyper):
                raise InputError("apply_ln only supports the final norm: the blocks norm a mix of streams (hook_pre)")
            if self.model.config.norm_place == "after":
                raise InputError("apply_ln only supports the final norm: this model's layers read the stream itself")
            if mlp_input and getattr(residual, "order", "") == "parallel":
                raise InputError("the branches of this model are parallel, so its FFN reads attention's input: leave "
                                 "out mlp_input")  # fmt: skip
        return super()._scale(layer, mlp_input, pos_slice, batch_slice)

    def logit_lens(self, **kwargs: Any) -> Any:
        use = "cache.accumulated_resid(apply_ln=True) @ model.W_U, or model.layer_logits(tokens)"
        raise InputError(f"TransformerLens' logit_lens only supports bridges: use {use}")
