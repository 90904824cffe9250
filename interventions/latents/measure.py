"""Edits of latents: losses of documents, KL at every position of texts, and their next tokens.

An HDPL projection adds a detail path and a latent path, which encodes the input into a small vector z and decodes it.
Hook: `blocks.L.attn.q.hook_latent` [B, T, R], z; at evaluation z is its mean μ (HDPL §2.1.2). Places are written like
heads: `L2.q` is one projection, `L2.*` a layer, `L0-2.up` a range, `*.v` one in every layer, `all` every one.

Every edit acts on the dimensions `dims` and the `positions` (None: all; negative positions count from the end of the
padded row) and leaves the rest unchanged, bit for bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Progress, need_parts, title_of
from streamscope.instruments.data import Documents, Opened, Text
from streamscope.instruments.observations import Estimates, Measure
from streamscope.instruments.open_texts import OpenText, open_text
from streamscope.instruments.table import Table, counts, key, number
from streamscope.interventions import changes
from streamscope.interventions.latents import Latents
from streamscope.interventions.observe import NATS
from streamscope.models.config import ModelConfig
from streamscope.models.head_spec import parse_parts
from streamscope.models.hooks import Edit, Edits, Query, run
from streamscope.models.layers.hdpl import latent_widths
from streamscope.models.readout import divergences

KEYS = ("latents", "place", "layer", "projection", "dims", "edit", "amount")
DIVERGENCE = "nats, KL(unedited ‖ edited) of the next token"
NOTHING = {"latents": "none", "place": "", "layer": -1, "projection": "", "dims": "", "edit": "none", "amount": 0.0}
"""The keys of the unedited model."""


class Place(NamedTuple):
    """An HDPL projection: its layer, and its path inside the block (attn.q, mlp.up)."""

    layer: int
    path: str

    @property
    def label(self) -> str:
        return f"L{self.layer}.{self.path.split('.')[1]}"

    @property
    def hook(self) -> str:
        return f"blocks.{self.layer}.{self.path}.hook_latent"


def parse_places(specs: str | Sequence[str], config: ModelConfig) -> list[Place]:
    """Places in order of layer and use, each once. Raises `InputError` for places that the model lacks."""
    names = {path.split(".")[1]: path for path in latent_widths(config)}
    parts = parse_parts(specs, config.n_layers, list(names), "HDPL projection")
    return [Place(layer, names[name]) for layer, name in parts]


Indices = Sequence[int] | None


def clamp_latents(
    places: Iterable[Place], value: float, dims: Indices = None, positions: Indices = None
) -> dict[str, Edit]:
    """z ← value. The prior is N(0, 1); 0 in every dimension switches the latent path off, because SiLU(0) = 0."""
    return {place.hook: _edit(lambda z: torch.full_like(z, value), dims, positions) for place in places}


def scale_latents(
    places: Iterable[Place], g: float, dims: Indices = None, positions: Indices = None
) -> dict[str, Edit]:
    """z ← g z. g = 1 changes nothing, g = 0 switches the latent path off."""
    return {place.hook: _edit(lambda z: g * z, dims, positions) for place in places}


def blend_latents(
    latents: Mapping[Place, Float[Tensor, "P R"]], share: float, dims: Indices = None, positions: Indices = None
) -> dict[str, Edit]:
    """z ← (1 − s) z + s z', between two prompts: s = 1 swaps, s = 0 changes nothing. z' [P, R] goes to the P
    `positions`, in order, of every row of the batch."""

    def blended(z: Tensor, donor: Tensor) -> Tensor:
        new, rows = z.clone(), slice(None) if positions is None else list(positions)
        new[:, rows] = (1 - share) * z[:, rows] + share * donor.to(z)
        return new

    return {place.hook: _edit(partial(blended, donor=donor), dims, positions) for place, donor in latents.items()}


def _edit(change: Callable[[Tensor], Tensor], dims: Indices, positions: Indices) -> Edit:
    def apply(z: Tensor, hook: Any) -> Tensor:
        chosen = zip(z.shape[1:], (positions, dims), strict=True)
        rows, columns = (torch.arange(n)[slice(None) if indices is None else list(indices)] for n, indices in chosen)
        mask = torch.zeros(z.shape[1:], dtype=torch.bool, device=z.device)
        mask[rows[:, None], columns] = True
        return torch.where(mask, change(z), z)

    return apply


@dataclass(frozen=True)
class Cell:
    """One edit of one place or of several at once; `dims` None means all latent dimensions."""

    places: tuple[Place, ...]
    dims: tuple[int, ...] | None
    kind: Literal["scale", "clamp", "blend"]
    amount: float

    @property
    def labels(self) -> dict[str, Any]:
        names, single = [place.label for place in self.places], len(self.places) == 1
        place = "+".join(names) if len(names) < 4 else f"{names[0]}+…+{names[-1]} ({len(names)})"
        dims = "all" if self.dims is None else " ".join(map(str, self.dims))
        return {
            "latents": place if self.dims is None else f"{place} [{dims}]", "place": place,
            "layer": self.places[0].layer if single else -1,
            "projection": self.places[0].path.split(".")[1] if single else "",
            "dims": dims, "edit": self.kind, "amount": float(self.amount),
        }  # fmt: skip

    def edits(self, positions: Sequence[int] | None = None, donor: Mapping[Place, Tensor] | None = None) -> Edits:
        """The edits at the `positions`; `donor` is the other prompt's z to blend with."""
        if self.kind == "blend":
            assert donor is not None
            return blend_latents({place: donor[place] for place in self.places}, self.amount, self.dims, positions)
        make = scale_latents if self.kind == "scale" else clamp_latents
        return make(self.places, self.amount, self.dims, positions)


def check(options: Latents, model: Any) -> None:
    need_parts(model, options.name)
    cells_of(options, model.config)


def cells_of(options: Latents, config: ModelConfig) -> list[Cell]:
    """Every change of every place (or of all together), and with `each` of every dimension. Raises `InputError` for a
    projection or dimension that the model lacks."""
    places, widths = parse_places(options.at, config), latent_widths(config)
    for place, d in product(places, options.dims):
        if not 0 <= d < widths[place.path]:
            raise InputError(f"{place.label} has latent dimensions 0 to {widths[place.path] - 1}, not {d}")
    blends = options.blend or ((1.0,) if options.source else ())
    scales = options.scale or (() if options.clamp or blends else (0.0,))
    specs: list[tuple[Literal["scale", "clamp", "blend"], float]] = [("scale", v) for v in scales]
    specs += [("clamp", v) for v in options.clamp] + [("blend", v) for v in blends]
    cells = []
    for kind, value in dict.fromkeys(specs):
        for group in [tuple(places)] if options.together else [(place,) for place in places]:
            every = options.dims or tuple(range(widths[group[0].path]))
            for dims in [(d,) for d in every] if options.each else [options.dims or None]:
                cells.append(Cell(group, dims, kind, value))
    return cells


def observe(options: Latents, model: Any, data: Opened, progress: Progress) -> changes.Effects:
    """Cells: the unedited model and every edit. Units: documents, and positions of texts. Texts come first because they
    take seconds: a bad position is reported before the documents run for minutes."""
    cells, name = cells_of(options, model.config), title_of(model)
    opened = data[Text]
    if options.source and len(options.source) != len(opened.rows):
        raise InputError(f"{len(opened.rows)} --text and {len(options.source)} --source: give one source for each text")
    text_spec = data.specs[Text]  # the sources are cut as the texts are
    cut_at = text_spec if isinstance(text_spec, Text) else Text(max_tokens=model.config.n_ctx)
    sources = open_text(replace(cut_at, text=options.source), model) if options.source else None
    texts = texts_of(options, model, cells, opened, sources.rows if sources else [], progress)
    cut = opened.title() + (f"; of the sources{sources.title()}" if sources and sources.cut else "")
    effects = changes.Effects({}, {}, {"title": {}})
    if document_cells := [cell for cell in cells if cell.kind != "blend"]:
        change_list = [
            changes.Change(c.labels, [c.edits()], family=f"delta of {c.kind} {c.amount!r}") for c in document_cells
        ]
        documents, measures = data[Documents], {"loss": NATS} | changes.OF_CHANGE
        effects = changes.measure_changes(
            model, documents, change_list, measures=measures, kl="forward", progress=progress
        )
        effects.about["title"] = {"latents": f"{name}: {effects.loss}; {effects.documents}"}
    effects.about["title"]["texts"] = f"{name} under changed latents{cut}"
    effects.extra, positions = texts, texts[0]
    # cells are edits of a text, units its positions
    cell, unit = (positions.groupby(keys, sort=False).ngroup() for keys in (["prompt", *KEYS], ["prompt", "position"]))
    of_cells = positions.loc[~cell.duplicated(), ["prompt", *KEYS]].reset_index(drop=True)
    units = positions.loc[~unit.duplicated(), ["prompt", "position"]].reset_index(drop=True)
    total, size = np.zeros((2, len(of_cells), len(units)))
    total[cell, unit], size[cell, unit] = positions["kl"], 1.0
    names = [opened.names[i] for i in units["prompt"]]
    units["cluster"] = [name.split(":")[-1] for name in names]  # copies of a text are not independent
    units["unit"] = [f"{name}:{position}" for name, position in zip(names, units["position"], strict=True)]
    measure = Measure(name="kl", unit=DIVERGENCE, resolution=NATS.resolution, limits=(0.0, np.inf))
    effects.add(measure, of_cells, units, total, size, block="texts", quantity="kl", null=None)
    return effects


def with_resolved_heads(options: Latents, data: Opened) -> Latents:
    return replace(options, at=tuple(place.label for place in parse_places(options.at, data.model.config)))


def aligned_positions(n: int, n_source: int | None, positions: Sequence[int]) -> tuple[list[int], list[int]]:
    """(positions of a text of n tokens, the same positions of its source), from 0; all if `positions` is empty.
    Negative positions count from the end of each. Raises `InputError` for positions outside, and for texts of different
    lengths without positions."""
    m = n if n_source is None else n_source
    if not positions and n != m:
        raise InputError(f"the texts have {n} and {m} tokens: give --position for the tokens to pair (−1: the last)")
    chosen = list(positions) or list(range(n))
    for p in chosen:
        if not -min(n, m) <= p < min(n, m):
            raise InputError(f"position {p} is outside a text of {min(n, m)} tokens including BOS")
    return [p % n for p in chosen], [p % m for p in chosen]


def texts_of(
    options: Latents, model: Any, cells: Sequence[Cell], texts: OpenText, sources: Sequence[Sequence[int]],
    progress: Progress = iter,
) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """(KL at every position, the k most probable next tokens after the last one) for every text and edit. A blend takes
    z from an unedited pass of `sources[i]` at aligned positions. `before` is the unedited probability; rows with the
    edit "none" are the unedited predictions."""
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    positions, following = list[dict[str, Any]](), list[dict[str, Any]]()
    places = list(dict.fromkeys(place for cell in cells for place in cell.places))
    for prompt, ids in enumerate(progress(texts.rows)):
        source = sources[prompt] if sources else None
        n_source = len(source) if source else None
        text_positions, source_positions = aligned_positions(len(ids), n_source, options.position)
        donor = None
        if source:
            hooks = tuple(place.hook for place in places)
            captures = run(model, Query(tokens=[list(source)], hooks=hooks, positions=[source_positions])).hooks
            donor = {place: captures[place.hook][0] for place in places}
        query = Query(tokens=[list(ids)], hooks=(last,), logits=[[len(ids) - 1]])

        def predict(edits: Edits, query: Query = query) -> tuple[Float[Tensor, "T D"], Float[Tensor, " V"]]:
            output = run(model, query, edits)
            assert output.logits is not None
            x = model.ln_final(output.hooks[last][0][None])[0]
            return x.detach(), output.logits[0][0].float().softmax(-1).cpu()

        plain, base_p = predict({})
        following += _top(texts.tokenizer, base_p, base_p, options.k, {"prompt": prompt, **NOTHING, "change": "none"})
        pieces = texts.tokenizer.pieces(list(ids))
        for cell in cells:
            labels = cell.labels
            labels |= {"prompt": prompt, "change": f"{labels['latents']} {cell.kind} {cell.amount:g}"}
            x, new_p = predict(cell.edits(text_positions, donor))
            kl = divergences(plain, x, model.head).double().cpu().tolist()
            rows = enumerate(zip(pieces, kl, strict=True))
            positions += [{**labels, "position": i, "token": piece, "kl": value} for i, (piece, value) in rows]
            following += _top(texts.tokenizer, new_p, base_p, options.k, labels)
    return pd.DataFrame(positions), pd.DataFrame(following)


def _top(tokenizer: Any, p: Tensor, base_p: Tensor, k: int, labels: Mapping[str, Any]) -> list[dict[str, Any]]:
    best = p.topk(min(k, len(p))).indices.tolist()
    return [
        {**labels, "rank": rank, "token": piece, "probability": float(p[i]), "before": float(base_p[i])}
        for rank, (i, piece) in enumerate(zip(best, tokenizer.pieces(best), strict=True), 1)
    ]


def tables(options: Latents, effects: changes.Effects, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """latents: a row per edit over documents; texts: per text and edit; next: next tokens; positions: KL."""
    out, titles, (positions, following) = {}, effects.about["title"], effects.extra
    if "loss" in estimates:
        out["latents"] = changes.effect_table(effects, estimates, COLUMNS, titles["latents"])
    text_keys = ["prompt", *KEYS]
    frame = estimates["texts"].wide(text_keys)[0].drop(columns="clusters")
    frame["kl_max"] = positions.groupby(text_keys, sort=False)["kl"].max().to_numpy()
    plain = following["edit"] == "none"
    frame["following"] = [_probabilities(rows) for _, rows in following[~plain].groupby(text_keys, sort=False)]
    unedited = "; ".join(_probabilities(rows, with_base=False) for _, rows in following[plain].groupby("prompt"))
    heading = titles["texts"]
    out["texts"] = Table(frame, TEXTS, {}, f"{heading}; next tokens of the unedited model: {unedited}", "kl", 40)
    for name, source, columns, description, by in (
        ("next", following, NEXT, "most probable next tokens", "probability"),
        ("positions", positions, POSITIONS, "KL at every position", "kl"),
    ):
        out[name] = Table(source[[column.name for column in columns]], columns, {}, f"{heading}: {description}", by, 10)
    return out


def _probabilities(rows: pd.DataFrame, *, with_base: bool = True) -> str:
    parts = zip(rows["token"], rows["probability"], rows["before"], strict=True)
    return ", ".join(f"{token!r} {p:.2f}" + f" ({b:.2f})" * with_base for token, p, b in parts)


WHICH = (
    key("latents", "latents", "the projection, with the changed latent dimensions in brackets if not all"),
    key("place", "projection", "the changed projections", shown=False),
    number("layer", "layer", "layer", "from 0; −1 for several projections", "d", False),
    key("projection", "projection", "q, k, v, gate or up; empty for several", shown=False),
    key("dims", "dimensions", "changed dimensions, from 0", "latent dimensions", shown=False),
    key("edit", "edit", "scale, clamp, or blend with another text's z"),
    key("amount", "amount", "factor on z, value of z, or share of the other text's z", "scale, z or share", "g"),
)  # fmt: skip
COLUMNS = (*WHICH, *changes.LOSS, *changes.DELTA, *changes.FORWARD_KL, *changes.TOKENS)
PROMPT = key("prompt", "text", "number of the text, from 0", "text", "d")
CHANGE = key("change", "change", "latents, edit and amount", shown=False)
TEXTS = (
    PROMPT, *WHICH,
    number("kl", "mean KL", DIVERGENCE, "mean over the text's positions", ".4f"),
    number("kl_max", "largest KL", DIVERGENCE, "largest KL at a position of the text", ".4f"),
    key("following", "next tokens (unedited)",
        "most probable next tokens with their probability, and the unedited one in brackets", "probability"),
    counts("positions", "texts")[0],
)  # fmt: skip
NEXT = (
    PROMPT, *WHICH, CHANGE, key("rank", "rank", "1 is the most probable", "rank", "d"),
    key("token", "next token", "a likely next token"),
    number("probability", "probability", "probability", "probability under the edit", ".3f"),
    number("before", "unedited probability", "probability", "probability of this token in the unedited model", ".3f"),
)  # fmt: skip
POSITIONS = (
    PROMPT, *WHICH, CHANGE, key("position", "position", "position in the text, from BOS = 0", "tokens from BOS", "d"),
    key("token", "token", "the token at the position"),
    number("kl", "KL", DIVERGENCE, "change of the prediction at the position", ".4f"),
)  # fmt: skip
