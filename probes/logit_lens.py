"""The logit lens: what every layer would predict if it were the last.

    python -m probes.logit_lens runs/lfa --text "The hammer was in the box, so he used the"
    python -m probes.logit_lens runs/lfa --text "Once upon a time" "She ran" --k 10 --out lens.parquet

z^(l) = head(norm_l(x^(l))), p = softmax z (nostalgebraist 2020; PLS App. A.5.1): x^(l) is the residual stream that
leaves layer l (of several streams their readout), norm_l the final norm or, where a model has them, the layer's own.
For every position and layer: the k most probable next tokens, and probability and rank of the token that does follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from streamscope.models.bounds import Count, Whole
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import RunOptions, open_run, write_results

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 8
"""Characters of a token in the picture: what a cell holds."""
STREAM = "blocks.{}.hook_resid_post"
UNITS = {"position": "tokens from BOS", "rank": "1 is the most probable", "probability": "share", "layer": "from 0"}


@dataclass(frozen=True)
class Lens:
    """How a model turns the stream after a layer into logits, and ids into text: what the probe needs of it."""

    n_layers: int
    d_vocab: int
    logits: Callable[[int, Any], Any]
    """(layer, stream [P, D]) -> logits [P, V]."""
    pieces: Callable[[Any], list[str]]
    """Ids -> their texts."""


def lens_of(model: Any, tokenizer: Any = None) -> Lens:
    """The lens of our models (norms of the layers, shared head) or of a TransformerLens bridge (ln_final, unembed).

    Without a tokenizer, here or in the model, tokens are written as numbers.
    """
    import torch
    import torch.nn.functional as F

    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    device = model.cfg.device

    @torch.no_grad()
    def logits(layer: int, x: Any) -> Any:
        x = x.to(device)[None]
        if hasattr(model, "layer_norm"):
            return F.linear(model.layer_norm(layer)(x), model.head)[0]
        return model.unembed(model.ln_final(x))[0]

    def pieces(ids: Any) -> list[str]:
        if hasattr(tokenizer, "pieces"):
            return tokenizer.pieces(ids)
        return [tokenizer.decode([int(i)]) if tokenizer is not None else str(int(i)) for i in ids]

    return Lens(model.cfg.n_layers, model.cfg.d_vocab, logits, pieces)


@dataclass(frozen=True, kw_only=True)
class LogitLens:
    """Per-layer predictions. Prompts are texts, or token ids with BOS first. Logits are formed for a few positions at
    a time (`readout.chunk_rows`) and dropped. Works under edits: the streams are those of the edited pass."""

    lens: Lens
    """Of the model to be measured: `lens_of(model)`."""
    k: int = 5
    """Predictions to keep for each position and layer."""
    layers: tuple[int, ...] | None = None
    """Layers to read; None for all."""
    max_tokens: int | None = None
    """Cut prompts to this many tokens, BOS included; None leaves them whole."""

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.lens.d_vocab:
            raise InputError(f"k = {self.k}: between 1 and the vocabulary's {self.lens.d_vocab}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens = {self.max_tokens}: a prompt needs at least 1")
        for layer in self.layers or ():
            if not 0 <= layer < self.lens.n_layers:
                raise InputError(f"layer {layer} does not exist: the model has layers 0 to {self.lens.n_layers - 1}")

    def plan(self, prompts: Any, tokenizer: Any) -> Any:
        """The streams after the chosen layers, at every position."""
        from streamscope.models.capture import Query

        prompts = [prompts] if isinstance(prompts, str) else prompts
        rows = [tokenizer.encode(p) if isinstance(p, str) else [int(t) for t in p] for p in prompts]
        chosen = range(self.lens.n_layers) if self.layers is None else sorted(set(self.layers))
        return Query(tokens=[row[: self.max_tokens] for row in rows], hooks=tuple(STREAM.format(n) for n in chosen))

    def read(self, captures: Any, query: Any) -> "pd.DataFrame":
        """One row per prompt, position, layer and candidate next token: the k most probable ones and the actual one.

        Columns: `read`, the token at the position; `id` and `token`, the candidate; `probability`; `rank`, 1 + the
        number of tokens with a larger logit (equal logits share a rank); `top`, its place among the k, or 0;
        `actual`, whether it is the next token of the prompt (the last position has none).
        """
        import numpy as np
        import pandas as pd
        import torch

        from streamscope.models.readout import chunk_rows

        size, tables = chunk_rows(self.lens.d_vocab), []
        for prompt, ids in enumerate(query.tokens):
            read, following = np.array(self.lens.pieces(ids), dtype=object), torch.tensor([*ids[1:], -1])
            for name in query.hooks:
                stream = captures.hooks[name][prompt]
                for start in range(0, len(ids), size):
                    rows = slice(start, start + size)
                    frame = self._candidates(self.lens.logits(int(name.split(".")[1]), stream[rows]), following[rows])
                    frame["position"] += start
                    place = {"prompt": prompt, "read": read[frame["position"]], "layer": int(name.split(".")[1])}
                    tables.append(frame.assign(**place))
        table = pd.concat(tables, ignore_index=True)
        table["token"] = self.lens.pieces(table["id"])
        order = ["prompt", "position", "read", "layer", "top", "rank", "id", "token", "probability", "actual"]
        return table.sort_values(["prompt", "position", "layer", "rank"], kind="stable")[order].reset_index(drop=True)

    def _candidates(self, logits: Any, following: Any) -> "pd.DataFrame":
        """Top k of every row of logits [P, V], then the token `following` [P] (−1: none) where it is not among them."""
        import pandas as pd
        import torch

        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        following = following.to(z.device)[:, None]
        values, ids = z.topk(self.k, dim=-1)
        hit = z.gather(-1, following.clamp(min=0))
        place = torch.arange(self.k, device=z.device).expand_as(ids)
        first_equal = torch.where(values == values.roll(1, -1), 0, place).cummax(-1).values
        new = (following >= 0) & ~(ids == following).any(-1, keepdim=True)
        ids = torch.cat([ids, following], -1)
        columns = {
            "position": torch.arange(len(z), device=z.device)[:, None].expand_as(ids),
            "top": torch.cat([place + 1, torch.zeros_like(following)], -1),
            "rank": torch.cat([first_equal, (z > hit).sum(-1, keepdim=True)], -1) + 1,
            "id": ids,
            "probability": (torch.cat([values, hit], -1) - z.logsumexp(-1, keepdim=True)).double().exp(),
            "actual": ids == following,
        }
        keep = torch.cat([torch.ones_like(place, dtype=torch.bool), new], -1)
        return pd.DataFrame({name: x[keep].cpu().numpy() for name, x in columns.items()})

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per layer, over the positions that have a next token.

        `loss`: mean −ln p(next) in nats; sd between prompts, and a 95 % interval with prompts as units (undefined with
        one); `accuracy`: share of positions whose next token ranks first; `median_rank`; n positions, prompts.
        """
        import numpy as np
        import pandas as pd

        from streamscope.probes.statistics import mean
        from streamscope.probes.undefined import note

        actual = table[table["actual"]]
        if actual.empty:
            raise InputError("no position has a next token: prompts of two tokens at least, please")
        rows = []
        for layer, one in actual.groupby("layer"):
            loss = -np.log(one["probability"].clip(lower=np.finfo(float).tiny))
            row = {"layer": layer, "loss": float(loss.mean()), "sd": float("nan"), "ci_low": float("nan")}
            row |= {"ci_high": float("nan"), "accuracy": float((one["rank"] == 1).mean())}
            row |= {"median_rank": float(one["rank"].median()), "n": len(one), "prompts": one["prompt"].nunique()}
            several = row["prompts"] > 1
            if several:
                estimate = mean(loss, one["prompt"])
                row |= {"sd": estimate.sd, "ci_low": estimate.ci_low, "ci_high": estimate.ci_high}
            why = () if several else ("sd", "ci_low", "ci_high")
            rows.append(row | {"undefined": note(dict.fromkeys(why, "one prompt"))})
        return pd.DataFrame(rows)

    def plot(self, table: "pd.DataFrame", prompt: int = 0, title: str = "") -> Any:
        """One prompt as a picture: text on x, layers on y, the most probable next token in the cell, its probability as
        colour; a prediction that comes true is underlined. Raises `InputError` for a prompt that is not there."""
        import plotly.graph_objects as go

        one = table[(table["prompt"] == prompt) & (table["top"] == 1)]
        if one.empty:
            raise InputError(f"prompt {prompt} is not in the table, which has {table['prompt'].nunique()}")
        grid = one.pivot(index="layer", columns="position", values="probability")
        short = [visible(t.strip(" ") or t, LONGEST) for t in one["token"]]
        shown = [f"<u>{t}</u>" if actual else t for t, actual in zip(short, one["actual"], strict=True)]
        cells = one.assign(shown=shown).pivot(index="layer", columns="position", values="shown")
        text = one.drop_duplicates("position").set_index("position")["read"]
        figure = go.Figure(
            go.Heatmap(
                z=grid.to_numpy(),
                x=list(grid.columns),
                y=[f"L{layer}" for layer in grid.index],
                text=cells.to_numpy(),
                texttemplate="%{text}",
                textfont={"size": 11 if len(grid.columns) <= 20 else 9},
                xgap=1,
                ygap=1,
                hovertemplate="%{y}, position %{x}: %{text} %{z:.3f}<extra></extra>",
                colorscale="Blues",
                zmin=0,
                zmax=1,
                colorbar={"title": "probability", "thickness": 14},
            )
        )
        cell = 58 if len(grid.columns) <= 20 else 44
        width, height = max(620, 230 + cell * len(grid.columns)), 230 + 34 * len(grid)
        figure.update_layout(title=title, width=width, height=height, margin={"r": 140, "b": 110})
        figure.update_layout(xaxis_title="token read; in the cells the likeliest next one", yaxis_title="layer")
        labels = ["BOS" if p == 0 else visible(text[p], LONGEST) for p in grid.columns]
        figure.update_xaxes(tickvals=list(grid.columns), ticktext=labels, tickangle=-40)
        return figure


def visible(piece: str, longest: int | None = None) -> str:
    """A token's text for a picture: cut to `longest` characters, line breaks shown, characters of HTML escaped."""
    if longest is not None and len(piece) > longest:
        piece = piece[: longest - 1] + "…"
    return escape(piece.replace("\n", "⏎").replace("\t", "⇥"), quote=False)


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m probes.logit_lens`."""

    text: tuple[str, ...] = ()
    """Texts to read; default: the beginning of a story the built-in corpus keeps for validation."""
    k: Count = 5
    """Predictions to keep for each position and layer."""
    layers: tuple[Whole, ...] = ()
    """Layers to read; default: all."""
    max_tokens: Count = 40
    """Cut each text to this many tokens, BOS included."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    name, model = open_run(options)

    from rich.markup import escape as markup

    from streamscope.models.text.stories import story
    from streamscope.probes.command import show
    from streamscope.probes.probe import measure

    length = min(options.max_tokens, model.config.n_ctx)
    probe = LogitLens(lens=lens_of(model), k=options.k, layers=options.layers or None, max_tokens=length)
    table = measure(model, probe, options.text or [story(1, 0).text])
    best = table[(table["top"] == 1) & (table["prompt"] == 0)]
    told = [markup(f"{token!r} {p:.2f}") for token, p in zip(best["token"], best["probability"], strict=True)]
    cells = best.assign(told=told, read=[markup(repr(token)) for token in best["read"]])
    wide = cells.pivot(index=["position", "read"], columns="layer", values="told").rename(columns="L{}".format)
    show(wide.reset_index(), f"{name}: the most probable next token after each layer, with its probability")
    if table["actual"].any():
        summary = probe.summarize(table)
        several = summary["prompts"].max() > 1
        shown = summary if several else summary.drop(columns=["sd", "ci_low", "ci_high", "undefined"])
        show(shown, "loss (nats), accuracy and rank of the actual next token")
    figure = probe.plot(table, title=f"{name}: logit lens; underlined: the token that follows")
    write_results(options, {"": (table, UNITS)}, figure, texts=list(options.text), k=options.k)


if __name__ == "__main__":
    command(main)
