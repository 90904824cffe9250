"""A model that a page shows, and what it is read by besides its logits: a circuit, a fitted lens, a dictionary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.interventions.circuits.formats import CircuitFile
from streamscope.interventions.circuits.graph import graph_of
from streamscope.interventions.circuits.measure import edge_cells
from streamscope.interventions.circuits.worth import SHARES, size_of
from streamscope.models.checkpoint import load
from streamscope.models.dictionaries import Dictionary, read_dictionary, without_latents
from streamscope.models.hooks import resolve
from streamscope.models.hooks.controls import BRIDGED, latents_of, stream_names
from streamscope.models.layers.head import unembed
from streamscope.models.lenses import Map, lenses_of_kind
from streamscope.models.readout import chunk_rows

F = ("f", "f_low", "f_high", "random")
EDGES = 1000  # number of edges that the page draws at most, those with the largest scores by size
SUM = "sum"  # the readout of the residual stream in the lens, next to its parallel streams
MOST = 5  # number of latents that the page names at a position, and of tokens that it names for each


class PageLens(NamedTuple):
    """The maps of the S streams that the page reads after every layer; where the file has none, they are 0."""

    about: dict[str, Any]
    """What the page says of it: the file, the kind, and for each layer and stream whether there is a map."""
    maps: dict[str, Tensor]
    """A [L, S, D, D] and b [L, S, D], by name."""


class PageDictionary(NamedTuple):
    """A dictionary whose latents the page shows; the edits name it by its folder."""

    dictionary: Dictionary
    about: dict[str, Any]
    """What the page says of it: folder, hook and stream, and the tokens `raised` by each latent."""


@dataclass
class Shown:
    """One model of a page; `steps` are its snapshots, of which the last has the final weights."""

    name: str
    """Opens it in Python."""
    identity: str
    """Names it in the page."""
    model: Any
    steps: tuple[int, ...] = ()
    dtype: str = "fp32"
    circuit: dict[str, Any] | None = None
    """The circuit that the page draws over the heads (`circuit_for_page`)."""
    lens: PageLens | None = None
    """The fitted lens that reads the streams; None: the logit lens."""
    latents: PageDictionary | None = None
    at: dict[int, Any] = field(default_factory=dict)
    """Models of snapshots that were asked for."""

    def at_step(self, step: int | None) -> Any:
        """The model with the weights of a snapshot; None: the final ones."""
        if step is None or (self.steps and step == max(self.steps)):
            return self.model
        if step not in self.steps:
            step_names = ", ".join(map(str, self.steps)) or "none"
            raise InputError(f"{self.name} has no snapshot {step!r:.40}; it has {step_names}")
        if step not in self.at:
            self.at[step] = load(f"{self.name}@{step}", device=self.model.cfg.device, dtype=self.dtype)
        return self.at[step]

    @property
    def extras(self) -> tuple[PageLens | None, PageDictionary | None]:
        """What the page reads the model by, for `outputs` and `engine.Watched`."""
        return self.lens, self.latents


def circuit_for_page(model: Any, name: str, path: Path) -> dict[str, Any]:
    """What the page draws of a circuit: edges from the largest score down, and f for each share of the edges. Raises
    `InputError` for a file of another form or of another model, and for a score that is no number."""
    file, graph = CircuitFile.read(path), graph_of(model)
    for key in ("n_layers", "n_heads"):
        if file.cfg[key] != getattr(model.config, key):
            raise InputError(f"{path} has {key} {file.cfg[key]}, and {name} {getattr(model.config, key)}")
    values, total = file.edges.set_index("edge")["score"].astype(float), len(graph.names)
    if (foreign := values.index.difference(graph.names, sort=False)).size:
        raise InputError(f"{path}: {foreign[0]!r} is no edge of {name}: it is of another model, or has latents")
    if (unscored := values.index[~np.isfinite(values)]).size:
        raise InputError(f"{path}: the score of {unscored[0]} is no number")
    if values.empty:
        raise InputError(f"{path} has no edges")
    scores = values.reindex(graph.names, fill_value=0.0).to_numpy()
    order = np.argsort(-np.abs(scores), kind="stable")[: min(EDGES, len(values))]
    cells = edge_cells(model, graph).loc[order, ["sender", "reader", "part", "stream"]]
    curve, n_edges = _curve(file, total), int(file.edges["in_graph"].sum())
    return {
        "file": path.name,
        "edges": total,
        "kv_heads": model.config.kv_heads,
        "rows": [[*row, float(scores[i])] for i, row in zip(order, cells.to_numpy().tolist(), strict=True)],
        "curve": curve,
        "share": min(curve, key=lambda point: abs(point["edges"] - n_edges))["share"],
    }


def _curve(file: CircuitFile, total: int) -> list[dict[str, Any]]:
    """Number of edges and f for each share of edges, from the smallest; f is None where the file has none."""
    table = file.faithfulness[file.faithfulness["share"].between(0, 1, inclusive="right")].sort_values("share")
    shares = table.to_dict("records") or [{"share": k} for k in SHARES]
    return [
        {
            "share": row["share"], "edges": size_of(row["share"], total),
            **{name: x if np.isfinite(x := row.get(name, np.nan)) else None for name in F},
        }
        for row in shares
    ]  # fmt: skip


def lens_streams(config: Any) -> tuple[str, ...]:
    """The streams that the lens reads: the parallel ones, and their readout."""
    return (*stream_names(config), SUM)


def lens_for_page(model: Any, name: str, spec: str) -> PageLens:
    """The maps of FILE:KIND. Raises `InputError` as `models.lenses` does, and for a model in a bridge."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} takes no --lens: {BRIDGED}")
    (lenses, kind), d, streams = lenses_of_kind(spec, model), model.config.d_model, lens_streams(model.config)
    places = [[place_of(layer, stream) for stream in streams] for layer in range(model.config.n_layers)]
    mapped = [[(kind, place) in lenses.maps for place in row] for row in places]
    if not any(map(any, mapped)):
        lenses.at(kind, places[-1][-1])  # says what the file has
    none = Map(torch.zeros(d, d), torch.zeros(d))
    rows = [[lenses.maps.get((kind, place), none) for place in row] for row in places]
    maps = {part: torch.stack([torch.stack([getattr(lens, part) for lens in row]) for row in rows]) for part in "Ab"}
    about = {"file": Path(lenses.where).name, "kind": kind, "mapped": mapped}
    return PageLens(about, {part: x.to(model.cfg.device) for part, x in maps.items()})


def place_of(layer: int, stream: str) -> str:
    """The name of a stream after a layer in a file of lenses."""
    if stream[1:].isdigit():
        return f"blocks.{layer}.hook_streams_post:{stream}"
    return f"blocks.{layer}.hook_{'resid' if stream == SUM else stream}_post"


def dictionary_for_page(model: Any, name: str, folder: str) -> PageDictionary:
    """The dictionary of a folder. Raises `InputError` as `models.dictionaries` does, and for a model in a bridge."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} takes no --dictionary: {BRIDGED}")
    dictionary = read_dictionary(folder, model).to(model.cfg.device)
    resolve(model, without_latents(dictionary, [0], model))  # hooks that the model has, and that can be changed
    about = {"folder": folder, "hook": dictionary.hook, "raised": raised_tokens(model, dictionary.W_dec).tolist()}
    return PageDictionary(dictionary, {**about, "stream": dictionary.stream * dictionary.stream[1:].isdigit()})


@torch.no_grad()
def raised_tokens(model: Any, directions: Float[Tensor, "F D"]) -> Int[Tensor, "F 5"]:
    """The tokens whose logits each direction raises most: centred as the final norm does, times its gain and the head.
    The norm's scale, which no direction has, does not change their order; those of a norm over heads' channels are
    taken as equal."""
    norm, tokens = model.ln_final, []
    for chunk in directions.split(chunk_rows(model.config.d_vocab)):
        groups = chunk.to(norm.weight).unflatten(-1, (norm.groups, -1))
        if norm.centred:
            groups = groups - groups.mean(-1, keepdim=True)
        tokens.append(unembed(groups.flatten(-2) * norm.weight, model.head).topk(MOST).indices)
    return torch.cat(tokens)


def latent_scale(shown: PageDictionary | None, edits: Mapping[str, Any]) -> dict[str, Tensor]:
    """The page's array of latents, 0 where one is removed; {} without a dictionary. Raises `InputError` for a
    dictionary that the page does not show, and for latents that it lacks."""
    scale = torch.ones(len(shown.dictionary.b_enc) if shown else 0)
    for folder, latents in latents_of(edits).items():
        if shown is None or folder != shown.about["folder"]:
            raise InputError(f"latents of {folder}: this page shows no such dictionary (--dictionary)")
        if max(latents) >= len(scale):
            raise InputError(f"latent {max(latents)} does not exist: {folder} has 0 to {len(scale) - 1}")
        scale[latents] = 0
    return {"latents": scale} if shown else {}
