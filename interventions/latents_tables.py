"""What edits of latents change: losses and predictions over documents, predictions on prompts; the figures.

KL is KL(p ‖ p') in nats, p the unedited and p' the edited distribution of the next token.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamscope.models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from streamscope.interventions.edits.latents import Latents, Place
    from streamscope.models.hooks import Edits
    from streamscope.models.text.shards import TokenShards
    from streamscope.models.transformer import StreamTransformer

Kind = Literal["scale", "clamp", "share"]
UNITS = {
    "value": "scale: factor on z; clamp: z; share: part of the other prompt's z",
    "loss": "nats/token",
    "baseline": "nats/token",
    "delta": "nats/token",
    "sd": "nats/token, between documents",
    "ci_low": "nats/token",
    "ci_high": "nats/token",
    "kl": "nats/token, KL(unedited ‖ edited) of the next token",
    "kl_low": "nats/token",
    "kl_high": "nats/token",
    "n": "documents",
    "tokens": "targets",
}
PROMPT_UNITS = {"position": "tokens from BOS", "kl": UNITS["kl"], "value": UNITS["value"]}
NEXT_UNITS = {"probability": "share", "before": "share, unedited", "rank": "1 is the most probable"}


@dataclass(frozen=True)
class Cell:
    """One edit of one place, or of several together: what is done to which latent dimensions."""

    places: "tuple[Place, ...]"
    dims: tuple[int, ...] | None
    """None: all."""
    kind: Kind
    value: float

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that name it; layer −1 and no projection for several places."""
        names = [place.label for place in self.places]
        single = self.places[0] if len(self.places) == 1 else None
        return {
            "place": "+".join(names) if len(names) < 4 else f"{names[0]}+…+{names[-1]} ({len(names)})",
            "layer": single.layer if single else -1,
            "projection": single.path.split(".")[1] if single else "",
            "dims": "all" if self.dims is None else " ".join(map(str, self.dims)),
            "edit": self.kind,
            "value": float(self.value),
        }

    def edits(self, at: Sequence[int] | None = None, latents: "Latents | None" = None) -> "Edits":
        """The edits, at the positions `at`; `latents` are the other prompt's, for a share of them."""
        from streamscope.interventions.edits.latents import blend_latents, clamp_latents, scale_latents

        if self.kind == "share":
            assert latents is not None
            return blend_latents({place: latents[place] for place in self.places}, self.value, self.dims, at)
        make = scale_latents if self.kind == "scale" else clamp_latents
        return make(self.places, self.value, self.dims, at)


# ---- over documents ----------------------------------------------------------------------------


def latents_on_documents(
    model: "StreamTransformer",
    shards: "TokenShards",
    cells: Sequence[Cell],
    *,
    max_documents: int | None = None,
    batch_size: int = 32,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "pd.DataFrame":
    """One row per cell: the loss under the edit, its change `delta` with a 95 % interval, and the mean `kl`.

    Both are ratio estimates per target, documents as clusters (`probes.stats.estimators.ratio_of_sums`); p is delta's,
    `p_holm` corrected over the cells of one edit and value.
    """
    import pandas as pd

    from streamscope.interventions.effects import holm
    from streamscope.interventions.observe.documents import document_losses
    from streamscope.probes.stats.estimators import ratio_of_sums
    from streamscope.probes.stats.t_tests import clustered_t
    from streamscope.probes.undefined import note

    losses = document_losses(
        model, shards, [cell.edits() for cell in cells], kl="forward",
        max_documents=max_documents, batch_size=batch_size, progress=progress,
    )  # fmt: skip
    tokens, change = losses.tokens.astype(float), losses.edited - losses.baseline
    rows = []
    for i, cell in enumerate(cells):
        effect, kl = ratio_of_sums(change[i], tokens), ratio_of_sums(losses.kl[i], tokens)
        p = float(clustered_t(change[i], tokens).p)
        why = {} if p == p else {"p": "the loss changes by the same amount per token in every document"}
        row = {"loss": losses.edited[i].sum() / tokens.sum(), "baseline": losses.baseline.sum() / tokens.sum()}
        row |= {"delta": effect.mean, "sd": effect.sd, "ci_low": effect.ci_low, "ci_high": effect.ci_high, "p": p}
        row |= {"kl": kl.mean, "kl_low": kl.ci_low, "kl_high": kl.ci_high}
        rows.append({**cell.labels, **row, "n": effect.n, "tokens": int(tokens.sum()), "undefined": note(why)})
    return holm(pd.DataFrame(rows), ("edit", "value"))


# ---- on prompts --------------------------------------------------------------------------------


def aligned_positions(n: int, n_source: int | None, at: Sequence[int]) -> tuple[list[int], list[int]]:
    """(positions of a text of n tokens, the same positions of its source), from 0; all where `at` is empty.

    Negative positions count from the end of either. Raises `InputError` for positions outside, and for texts of
    different lengths without positions.
    """
    m = n if n_source is None else n_source
    if not at and n != m:
        raise InputError(
            f"the texts have {n} and {m} tokens: say with --position which stand for each other (−1: last)"
        )
    chosen = list(at) or list(range(n))
    for p in chosen:
        if not -min(n, m) <= p < min(n, m):
            raise InputError(f"position {p} is outside a text of {min(n, m)} tokens, BOS included")
    return [p % n for p in chosen], [p % m for p in chosen]


def latents_on_prompts(
    model: "StreamTransformer",
    texts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]],
    cells: Sequence[Cell],
    *,
    at: Sequence[int] = (),
    k: int = 5,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """(KL at every position, the k most probable next tokens after the last position), one block of rows per cell.

    `texts` and `sources` are token ids, BOS first; a share takes z of `sources[i]`, at aligned positions, from an
    unedited pass. `before` is the unedited probability; rows of the edit "none" are the unedited predictions.
    """
    import pandas as pd

    from streamscope.models.hooks import Query, run
    from streamscope.models.readout import divergences

    tokenizer, last = model._text(), f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    by_position, following = [], []
    for prompt, ids in enumerate(progress(texts)):
        source = sources[prompt] if sources else None
        here, there = aligned_positions(len(ids), len(source) if source else None, at)
        latents = _latents(model, source, there, cells) if source else None
        query = Query(tokens=[list(ids)], hooks=(last,), logits=[[len(ids) - 1]])

        def predict(edits: "Edits", query: Query = query) -> "tuple[Tensor, Tensor]":
            found = run(model, query, edits)
            assert found.logits is not None
            x = model.ln_final(found.hooks[last][0][None])[0]
            return x.detach(), found.logits[0][0].float().softmax(-1).cpu()

        plain, before = predict({})
        following += _top(tokenizer, before, before, k, {"prompt": prompt, **_NOTHING})
        for cell in cells:
            x, after = predict(cell.edits(here, latents))
            kl = divergences(plain, x, model.head).double().cpu()
            for position, (piece, value) in enumerate(zip(tokenizer.pieces(list(ids)), kl.tolist(), strict=True)):
                where = {"prompt": prompt, "position": position, "token": piece}
                by_position.append({**where, **cell.labels, "kl": value})
            following += _top(tokenizer, after, before, k, {"prompt": prompt, **cell.labels})
    return pd.DataFrame(by_position), pd.DataFrame(following)


_NOTHING = {"place": "", "layer": -1, "projection": "", "dims": "", "edit": "none", "value": 0.0}


def _latents(model: Any, ids: Sequence[int], at: Sequence[int], cells: Sequence[Cell]) -> "Latents":
    """z of a prompt at the positions `at`, at every place of the cells."""
    from streamscope.models.hooks import Query, run

    places = list(dict.fromkeys(place for cell in cells for place in cell.places))
    query = Query(tokens=[list(ids)], hooks=tuple(place.hook for place in places), positions=[list(at)])
    found = run(model, query)
    return {place: found.hooks[place.hook][0] for place in places}


def _top(tokenizer: Any, p: Any, before: Any, k: int, labels: dict[str, Any]) -> list[dict[str, Any]]:
    best = p.topk(min(k, len(p))).indices.tolist()
    pieces = tokenizer.pieces(best)
    rows = zip(best, pieces, strict=True)
    return [
        {**labels, "rank": rank, "token": piece, "probability": float(p[i]), "before": float(before[i])}
        for rank, (i, piece) in enumerate(rows, 1)
    ]


# ---- figures -----------------------------------------------------------------------------------


def plot_documents(table: "pd.DataFrame", title: str = "") -> Any:
    """Change of the loss: a line per place over the values of an edit, or for one value a heat map layer × projection.

    With one dimension at a time the heat map is place × dimension.
    """
    import plotly.graph_objects as go

    one = table[table["edit"] == table["edit"].iloc[0]]
    figure = go.Figure()
    if one["dims"].nunique() > 1:
        one = one[one["value"] == one["value"].iloc[0]]
        figure.add_trace(_heat(one, "place", "dims", "delta", "Δ loss<br>nats/token"))
        figure.update_layout(xaxis_title="latent dimension", yaxis_title="projection")
    elif one["value"].nunique() == 1 and (one["layer"] >= 0).all():
        figure.add_trace(_heat(one.assign(row="L" + one["layer"].astype(str)), "row", "projection", "delta", "Δ loss"))
        figure.update_layout(xaxis_title="projection", yaxis_title="layer")
    else:
        for place, rows in one.groupby("place", sort=False):
            rows = rows.sort_values("value")
            bars = {"array": rows["ci_high"] - rows["delta"], "arrayminus": rows["delta"] - rows["ci_low"]}
            figure.add_trace(go.Scatter(x=rows["value"], y=rows["delta"], error_y=bars, name=place))
        figure.update_layout(xaxis_title=one["edit"].iloc[0], yaxis_title="Δ loss, nats/token")
    figure.update_layout(title=title, width=820, height=560)
    return figure


def plot_prompt(table: "pd.DataFrame", title: str = "", prompt: int = 0) -> Any:
    """KL at every position of one prompt, a row per edit."""
    import plotly.graph_objects as go

    one = table[table["prompt"] == prompt]
    names = one["place"] + " " + one["edit"] + " " + one["value"].map("{:g}".format) + " dims " + one["dims"]
    read = one.drop_duplicates("position").sort_values("position")
    figure = go.Figure(_heat(one.assign(row=names), "row", "position", "kl", "KL, nats", diverging=False))
    figure.update_xaxes(tickvals=read["position"], ticktext=[repr(t) for t in read["token"]], title="token read")
    figure.update_layout(title=title, width=1000, height=300 + 18 * names.nunique())
    return figure


def _heat(table: "pd.DataFrame", rows: str, columns: str, value: str, unit: str, *, diverging: bool = True) -> Any:
    import plotly.graph_objects as go

    order = {name: list(dict.fromkeys(table[name])) for name in (rows, columns)}
    grid = table.pivot(index=rows, columns=columns, values=value).loc[order[rows][::-1], order[columns]]
    limit = float(table[value].abs().max()) or 1.0
    return go.Heatmap(
        z=grid.to_numpy(), x=list(grid.columns), y=list(grid.index), colorbar={"title": unit},
        colorscale="RdBu_r" if diverging else "Blues", zmin=-limit if diverging else 0.0, zmax=limit,
    )  # fmt: skip
