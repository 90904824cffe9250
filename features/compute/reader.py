"""Features of documents: one forward pass, attention reduced layer by layer, one unembedding per layer (PLS App. B, C).

L layers, H heads, n rows: the positions within the context that have a next token (two with `logits_row` next).
`rows_of` counts them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.features.compute import formulas
from streamscope.features.extract import Extract
from streamscope.instruments.contract import readable
from streamscope.models.hooks import attached, match, pad, time_axes
from streamscope.models.readout import top_two


class Rows(NamedTuple):
    """Features of n positions."""

    X: np.ndarray
    """[n, d] float32, in the order of `formulas.columns`."""
    prediction: np.ndarray
    """[n] argmax of the final layer."""
    raw: dict[str, np.ndarray]
    """Hook name -> [n, F] float32, all axes but the position flattened."""


class FeatureReader:
    """Reads the features of a tier and raw activations at the hooks `raw`, from a model in evaluation mode."""

    def __init__(self, model: Any, options: Extract, raw: Sequence[str] = ()) -> None:
        """Raises `InputError` for a model in training mode, heads that the model lacks, and hooks that do not have
        one vector per position."""
        model = readable(model)
        if model.training:
            raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
        self.model, self.how = model, options
        self.n_layers, self.n_heads = model.config.n_layers, model.config.n_heads
        self.columns = formulas.columns(self.n_layers, self.n_heads, options)
        self.raw = match(model, list(raw))
        for name in self.raw:
            if time_axes(name, 3) != (0,):
                raise InputError(f"--raw {name}: it has no vector per position; name a stream, hook_z or hook_post")
        self.offset = 1 if options.logits_row == "next" else 0
        geometry = options.tier in ("structural+position", "topk")
        self._wanted: dict[str, Any] = {
            "k": options.k if options.tier == "topk" else None,
            "window": options.window if geometry else None,
            "distance": geometry or options.tier == "core",
        }

    def rows_of(self, length: Any) -> Any:
        """The number of rows of a document of `length` tokens (scalar or array)."""
        return np.maximum(np.minimum(np.asarray(length) - 1, self.model.config.n_ctx) - self.offset, 0)

    @torch.no_grad()
    def read(self, documents: Sequence[Sequence[int]], without: Sequence[int] | None = None) -> Rows:
        """Features of every row of `documents`, cut at the context, except the first `without` rows of each. Raises
        `InputError` for documents without a row, tokens outside the vocabulary and non-finite activations."""
        model, n_ctx = self.model, self.model.config.n_ctx
        device = model.cfg.device
        stops = self.rows_of([len(ids) for ids in documents]).tolist()
        skipped = [0] * len(documents) if without is None else list(without)
        if not any(stop > skip for skip, stop in zip(skipped, stops, strict=True)):
            beyond = " after those left out" if any(skipped) else ""
            raise InputError(f"no document has the {2 + self.offset} tokens that a row needs{beyond}; give longer ones")
        inputs = pad([list(ids[: min(len(ids) - 1, n_ctx)]) for ids in documents]).to(device)
        model.check_tokens(inputs)
        places = torch.arange(inputs.shape[1])
        mask = (places < torch.tensor(stops)[:, None]) & (places >= torch.tensor(skipped)[:, None])
        where = zip(documents, skipped, stops, strict=True)
        following = [i for ids, skip, stop in where for i in ids[1 + self.offset :][skip:stop]]
        truth = torch.tensor(following, device=device)
        model.check_tokens(truth[None])  # the last token of a document is no input
        streams, stats, raw = self._forward(inputs, mask.to(device))
        trajectory = self._trajectory(streams, truth)
        shape = formulas.Shape(self.n_layers, self.n_heads, self.how)
        X = formulas.compute(formulas.ForwardRecord(shape, trajectory, truth, stats), self.columns)
        if not X.isfinite().all():
            raise InputError("features are not finite: the weights of this run are damaged")
        return Rows(X.float().cpu().numpy(), trajectory.predicted[-1].cpu().numpy(), raw)

    def _forward(
        self, inputs: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> tuple[list[Tensor], list[formulas.AttentionStats], dict[str, np.ndarray]]:
        """Per layer the normed stream at the logits rows [n, D] and the gated statistics at the queries; raw hooks."""
        model = self.model
        logits_at = mask.roll(self.offset, 1)
        outputs: dict[str, Any] = {}
        hooks: list[tuple[str, Callable[..., Any]]] = []
        for layer in range(self.n_layers):
            pattern, gate = (f"blocks.{layer}.attn.hook_{name}" for name in ("pattern", "gate"))
            hooks.append((pattern, lambda a, hook: outputs.update(stats=formulas.attention_stats(a, **self._wanted))))
            if gate in model.hook_dict:
                hooks.append((gate, lambda g, hook: outputs.update(gate=g[mask])))
        raw, streams, stats = dict[str, np.ndarray](), [], []
        for name in self.raw:
            hooks.append((name, lambda x, hook: raw.update({hook.name: x[mask].flatten(1).float().cpu().numpy()})))
        with attached(model, hooks):
            state = model.embed_tokens(inputs)
            for layer in range(self.n_layers):
                outputs.clear()
                state = model.segment(state, layer, layer + 1)
                streams.append(model.layer_norm(layer)(model.readout(state))[logits_at])  # hooks see all positions
                stats.append(formulas.apply_gate(outputs["stats"].at(mask), outputs.get("gate"), self.how))
        if silent := [name for name in self.raw if name not in raw]:
            raise InputError(f"hooks that did not fire: {', '.join(silent[:5])}")
        if damaged := [name for name, x in raw.items() if not np.isfinite(x).all()]:
            raise InputError(f"{damaged[0]} is not finite: the weights of this run are damaged")
        return streams, stats, raw

    def _trajectory(self, streams: list[Tensor], truth: Tensor) -> formulas.Trajectory:
        """The predictions of every layer (PLS B.5.1)."""
        target, head = truth, self.model.head
        top_tokens = []
        for layer in reversed(range(self.n_layers)):  # last layer first, because its prediction may be the target
            top_tokens.append(top_two(streams[layer], head, target))
            if layer == self.n_layers - 1 and self.how.target == "final":
                target = top_tokens[0].ids
                top_tokens[0] = top_tokens[0]._replace(target=top_tokens[0].first)
        ids, first, second, p = (torch.stack(x[::-1]) for x in zip(*top_tokens, strict=True))
        hit = ids == target
        if self.how.traj_prob == "zeroed":
            p = torch.where(hit, p, 0.0)
            return formulas.Trajectory(ids, p, p - second, first[-1])
        return formulas.Trajectory(ids, p, p - torch.where(hit, second, first), first[-1])
