"""What the live page asks of a model, computed by the model's own forward pass under ordinary hooks.

`Watched` is a module of tokens and controls (`models.hooks.controls`). Exported, it is the graph that runs in the page;
called in torch, it answers the local server and the notebook. No forward pass is written a second time.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from streamscope.cli.errors import InputError
from streamscope.models.dictionaries import subtracting
from streamscope.models.hooks.controls import Control, control_hooks, controls, stream_names
from streamscope.models.layers.head import unembed
from streamscope.viewer.shown import MOST, PageDictionary, PageLens, lens_streams

CANDIDATES = 5  # number of tokens that the lens names
READ = ("W_enc", "b_enc", "W_dec", "threshold")  # what a dictionary's latents and their removal need of it


class Watched(nn.Module):
    """One of our models as a function of tokens [1, T] and the arrays of its controls, without a batch axis in results:

    logits     [T, V]
    patterns   [L, H, T, T]     attention weights
    gates      [L, H, T]        mean over channels of the head gate; only with gates
    latent_ids, latent_values [T, 5]    the largest latents of a dictionary, before any is removed; only with one
    lens_ids   [N, 5]           most probable tokens of the streams at the rows `lens_at` [N] of [L + 1, S, T]
    lens_p     [N, 5]           their probabilities: the stream alone through the layer's norm and the head; with a
                                fitted lens a stream after a layer goes through its map, the final norm and the head

    The L + 1 states are those before layer 0 and after every layer. Without rows the lens costs nothing.
    """

    def __init__(self, model: Any, lens: PageLens | None = None, latents: PageDictionary | None = None) -> None:
        """A fitted lens takes the place of the logit lens; the latents of a dictionary are a control."""
        super().__init__()
        self.model = model.eval()
        dictionary = latents.dictionary if latents else None
        self.maps, self.dictionary = _frozen(lens.maps if lens else {}), dictionary
        self.latents = _frozen({name: getattr(dictionary, name) for name in READ} if dictionary else {})
        self.controls = {
            name: control for name, control in controls(model.config).items() if isinstance(control, Control)
        }
        if dictionary is not None:
            self.controls["latents"] = Control((tuple(map(str, range(len(dictionary.b_enc)))),))
        largest = ["latent_ids", "latent_values"] if dictionary is not None else []
        gates = ["gates"] if "gate_keep" in self.controls else []
        self.outputs = ["logits", "patterns", *gates, *largest, "lens_ids", "lens_p"]

    def rows_of(self, stream: int, length: int) -> Int[Tensor, " N"]:
        """The rows of one stream of the lens, by state and position, of a text of `length` tokens. Raises `InputError`
        for a stream that the model lacks."""
        streams = len(lens_streams(self.model.config))
        if type(stream) is not int or not 0 <= stream < streams:
            raise InputError(f"the lens reads streams 0 to {streams - 1}, not {stream!r:.40}")
        states = torch.arange(self.model.config.n_layers + 1)[:, None]
        return ((states * streams + stream) * length + torch.arange(length)).flatten()

    def forward(self, tokens: Int[Tensor, "1 T"], lens_at: Int[Tensor, " N"], *values: Tensor) -> tuple[Tensor, ...]:
        m, activations = self.model, dict[str, list[Tensor]]()
        control_inputs = dict(zip(self.controls, values, strict=True))

        def keep(x: Tensor, hook: Any) -> None:
            activations.setdefault(hook.name.rpartition(".")[2], []).append(x)

        points = ["hook_pattern", *(["hook_gate"] if "gates" in self.outputs else [])]
        hooks: list[Any] = list(control_hooks(m.config, control_inputs).items())
        hooks += [(f"blocks.{layer}.attn.{p}", keep) for p in points for layer in range(m.config.n_layers)]
        if self.dictionary is not None:
            dictionary = replace(self.dictionary, **dict(self.latents.items()))

            def removed(z: Tensor) -> Tensor:
                activations["latents"] = [z[0]]
                return (z * (1 - control_inputs["latents"].to(z))) @ dictionary.W_dec.to(z)

            hooks += subtracting(dictionary, removed).items()
        with m.hooks(fwd_hooks=hooks):
            states = [m.embed_tokens(tokens)]
            for layer in range(m.config.n_layers):
                states.append(m.segment(states[-1], layer, layer + 1))
            logits = m.logits(states[-1])
        outputs = [logits[0], torch.cat(activations["hook_pattern"])]
        if "gates" in self.outputs:
            outputs.append(torch.cat(activations["hook_gate"]).mean(-1).transpose(1, 2))
        if self.dictionary is not None:
            z = activations["latents"][0]
            latent_values, latent_ids = z.topk(min(MOST, z.shape[-1]))
            outputs += [latent_ids.int(), latent_values]
        return (*outputs, *self._lens(states, lens_at, control_inputs.get("stream_all")))

    def _lens(self, states: list[Any], places: Tensor, stream_all: Tensor | None) -> tuple[Tensor, Tensor]:
        m, last = self.model, len(states) - 1
        readings = []
        for i, state in enumerate(states):
            if stream_names(m.config):
                streams = torch.cat(list(state)) if isinstance(state, tuple) else state[0].transpose(0, 1)
                if stream_all is not None and i < last:  # as the next layer reads them
                    streams = streams * stream_all[:, None, None]
                total = streams.sum(0, keepdim=True)
                mean = getattr(m.config.residual, "reduce", "sum") == "mean"
                streams = torch.cat([streams, total / len(streams) if mean else total])
            else:
                streams = m.readout(state)
            norm = m.layer_norm(max(i - 1, 0))
            if i and self.maps:
                A, b = (self.maps[name][i - 1].to(streams) for name in ("A", "b"))
                streams, norm = streams @ A + b[:, None], m.ln_final
            readings.append(norm(streams))
        rows = torch.cat(readings).flatten(0, 1)[places]
        p, ids = unembed(rows, m.head).softmax(-1).topk(CANDIDATES)
        return ids.int(), p


def _frozen(weights: Mapping[str, Tensor]) -> nn.ParameterDict:
    """Weights that a graph is filled with, as it is with the model's."""
    return nn.ParameterDict({name: nn.Parameter(x, requires_grad=False) for name, x in weights.items()})
