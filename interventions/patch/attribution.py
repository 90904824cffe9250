"""Attribution patching: a first-order approximation of every patch from one gradient (Nanda 2023; Syed et al. 2023).

    guessed = attribute_pairs(model, pairs, cells, "denoise")
    guessed - patch_pairs(model, pairs, cells, "denoise").effect          its error
    attribute_heads(model, document_batches(shards, ...))                 ∂loss/∂g of every head, g a factor on its z

The effect of a patch is approximated by Σ (a_source − a_run) · ∂m/∂a at the run's own activations, with
m = ln p(answers) − ln p(foils). This is exact if m is linear between the two runs; the error is reported.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from streamscope.cli.errors import InputError
from streamscope.interventions.patch.activations import Cell, Direction, both_runs
from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models.hooks import capture
from streamscope.models.readout import IGNORE


def attribute_pairs(
    model: Any, pairs: Sequence[PatchPair], cells: Sequence[Cell], direction: Direction = "denoise", *,
    progress: Callable[[Iterable], Iterable] = iter,
) -> np.ndarray:  # fmt: skip
    """First-order guesses of `PatchResults.effect` [cells, pairs] in nats: Σ (a_source − a_run) · ∂m/∂a per cell.

    One forward and one backward pass per pair. Raises `InputError` as `patch_pairs` does.
    """
    if not pairs or not cells:
        raise InputError("nothing to attribute: give at least one pair, one hook and one layer")
    names = list(dict.fromkeys(cell.hook for cell in cells))
    found = np.full((len(cells), len(pairs)), np.nan)
    for i, pair in enumerate(progress(pairs)):
        own, source = both_runs(model, pair, names, direction)
        ids = pair.corrupt if direction == "denoise" else pair.clean
        tokens = torch.tensor([ids], device=model.cfg.device)
        with torch.enable_grad(), capture(model, names, grad=True) as live:
            logits = model(tokens, logits_at=torch.tensor([[pair.last]], device=tokens.device))[0, 0]
        metric = pair.log_odds(logits)
        gradients = torch.autograd.grad(metric, [live[name] for name in names], allow_unused=True)
        products = {}
        for name, g in zip(names, gradients, strict=True):
            equal = source[name] == own[name]  # masked scores are −inf in both
            change = (source[name] - own[name]).masked_fill(equal, 0.0)[None].double()
            products[name] = torch.zeros_like(change) if g is None else change * g.detach().double()
        for c, cell in enumerate(cells):
            index = cell.index(pair, products[cell.hook].ndim)
            if index is not None:
                found[c, i] = float(products[cell.hook][index].sum())
                if not np.isfinite(found[c, i]):
                    raise InputError(f"the gradient of the pair {pair.id} at {cell.hook} is not finite")
    return found


LOGITS = 2**24
"""Logits of a backward pass, 64 MiB in fp32; a part has at least one document."""


def attribute_heads(
    model: Any, batches: Iterable[tuple[Any, Int[Tensor, "B T"], Int[Tensor, "B T"]]]
) -> Float[np.ndarray, "layers heads"]:
    """d loss / d g of every head, g a factor on its output z, in nats per token: Σ z · ∂loss/∂z over all documents.

    To first order, scaling a head by g changes the loss by (g − 1) times this. `batches` are those of
    `text.shards.document_batches`. Raises `InputError` for a gradient that is not finite.
    """
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.config.n_layers)]
    found, n = np.zeros((model.config.n_layers, model.config.n_heads)), 0
    for _, tokens, targets in batches:
        rows = max(1, LOGITS // (tokens.shape[1] * model.config.d_vocab))
        for ids, wanted in zip(tokens.split(rows), targets.to(model.cfg.device).split(rows), strict=True):
            with torch.enable_grad(), capture(model, names, grad=True) as live:
                logits = model(ids.to(model.cfg.device))
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
            z = [live[name] for name in names]
            for layer, (x, g) in enumerate(zip(z, torch.autograd.grad(loss, z), strict=True)):
                found[layer] += (x.detach().double() * g.double()).sum((0, 1, 3)).cpu().numpy()
            n += int((wanted != IGNORE).sum())
    if not np.isfinite(found).all():
        raise InputError("the gradient of the loss is not finite, so heads cannot be screened by it")
    return found / n
