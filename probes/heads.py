"""What every head looks at by position: the previous token, the first, the same token before, what followed it.

    python -m probes.heads runs/lfa
    python -m probes.heads runs/lfa --sequences 64 --length 40 --data valid.txt --out heads.parquet

Half of the prompts are BOS + r + r with r random tokens, where meaning and grammar cannot help; the others are text.
With A[i, j] the attention from position i to j (BOS is position 0) and n the length of r:

    previous    mean of A[i, i−1]     over i ≥ 2 (at i = 1 the previous token is BOS)
    first       mean of A[i, 0]       over i ≥ 2
    duplicate   mean of A[i, i−n]     over the second r: the same token, one repetition earlier
    induction   mean of A[i, i−n+1]   over the second r: the token that followed it (Olsson et al. 2022)

All are shares of attention, from 0 to 1. `uniform` is the score of a head that spreads evenly over positions ≤ i.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from streamscope.models.bounds import Bounds, Count, Seed, Whole, check
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import RunOptions, documents, open_run, show, write_results

if TYPE_CHECKING:
    import pandas as pd

PATTERNS = "blocks.*.attn.hook_pattern"
SCORES = ("previous", "first", "duplicate", "induction")
UNITS = {
    "mean": "share of attention",
    "sd": "share of attention, between prompts",
    "ci_low": "share of attention",
    "ci_high": "share of attention",
    "uniform": "share of attention",
    "n": "prompts",
}


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """Scores of every head by relative position; the definitions are those of this module's docstring.

    Prompts are texts, or token ids with BOS first; there may be none. The random sequences come first in the query.
    """

    sequences: Count = 32
    """How many random sequences BOS + r + r."""
    length: Annotated[int, Bounds(low=2)] = 24
    """n, tokens of r; they differ from each other, so that a token's earlier place is unique."""
    text_tokens: Annotated[int, Bounds(low=3)] = 128
    """Texts are cut to this many tokens, BOS included."""
    seed: Seed = 0
    """Of the random sequences."""
    pool: Literal["tokens", "words"] = "tokens"
    """What r is drawn from: all tokens but BOS, or those that are a whole word, a space and two letters or more."""

    def __post_init__(self) -> None:
        check(self)

    def plan(self, prompts: Any, tokenizer: Any) -> Any:
        """The random sequences, then the texts. `tokenizer` needs `d_vocab` and `bos_id`, and `encode` for texts.

        Raises `InputError` for a vocabulary smaller than r and for a text of fewer than three tokens.
        """
        import numpy as np

        from streamscope.models.capture import Query

        rng = np.random.default_rng(self.seed)
        others = np.delete(np.arange(tokenizer.d_vocab), tokenizer.bos_id)
        if self.pool == "words":
            pieces = zip(others, tokenizer.pieces(others.tolist()), strict=True)
            others = np.array([i for i, text in pieces if text[:1] == " " and len(text) > 2 and text[1:].isalpha()])
        if len(others) < self.length:
            raise InputError(
                f"{self.length} different {self.pool} wanted, the vocabulary has {len(others)} besides BOS"
            )
        tokens = []
        for _ in range(self.sequences):
            r = rng.choice(others, self.length, replace=False).tolist()
            tokens.append([tokenizer.bos_id, *r, *r])
        for i, prompt in enumerate(prompts or ()):
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
            if len(ids) < 3:
                raise InputError(f"text {i} has {len(ids)} tokens with BOS; previous-token scores need 3")
            tokens.append(ids[: self.text_tokens])
        return Query(tokens=tokens, hooks=(PATTERNS,))

    def read(self, captures: Any, query: Any) -> "pd.DataFrame":
        """One row per prompt, head and score: `kind` (random or text), `score`, `value`, `uniform`."""
        import numpy as np
        import pandas as pd
        import torch

        found = by_layer(captures)
        n, tables = self.length, []
        for i, ids in enumerate(query.tokens):
            a = torch.stack([layer[i].detach().float().cpu() for layer in found])
            even = torch.ones(len(ids), len(ids)).tril() / torch.arange(1, len(ids) + 1)[:, None]
            repeated = i < self.sequences
            for score in SCORES if repeated else SCORES[:2]:
                value = _score(a, score, n)
                layers, heads = np.indices(value.shape).reshape(2, -1)
                tables.append(
                    pd.DataFrame(
                        {
                            "prompt": i,
                            "kind": "random" if repeated else "text",
                            "score": score,
                            "layer": layers,
                            "index": heads,
                            "value": value.double().flatten().numpy(),
                            "uniform": float(_score(even, score, n)),
                        }
                    )
                )
        return pd.concat(tables, ignore_index=True)

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per kind, score and head: mean, sd between prompts, 95 % t interval over n prompts, `uniform`.

        With one prompt sd and interval are undefined.
        """
        import pandas as pd

        from streamscope.probes.statistics import mean
        from streamscope.probes.undefined import note

        rows = []
        for (kind, score, layer, head), one in table.groupby(["kind", "score", "layer", "index"], sort=False):
            row = {"kind": kind, "score": score, "head": f"L{layer}H{head}", "layer": layer, "index": head}
            found = dict.fromkeys(("mean", "sd", "ci_low", "ci_high"), float("nan")) | {"n": len(one)}
            if len(one) > 1:
                found |= mean(one["value"])._asdict()
            else:
                found["mean"] = float(one["value"].iloc[0])
            why = dict.fromkeys(("sd", "ci_low", "ci_high") if len(one) < 2 else (), "one prompt")
            rows.append(row | found | {"uniform": float(one["uniform"].mean()), "undefined": note(why)})
        return pd.DataFrame(rows)

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """A heat map layer × head for each kind and score, colour from 0 to 1. Takes the table of observations."""
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots

        summary = self.summarize(table)
        panels = list(summary.groupby(["kind", "score"], sort=False))
        rows = -(-len(panels) // 2)
        titles = [f"{score}, {kind} tokens (uniform {one['uniform'].iloc[0]:.2f})" for (kind, score), one in panels]
        figure = make_subplots(rows=rows, cols=2, subplot_titles=titles, horizontal_spacing=0.08)
        for at, (_, one) in enumerate(panels):
            grid = one.pivot(index="layer", columns="index", values="mean")
            heat = go.Heatmap(
                z=grid.to_numpy(),
                x=[f"H{h}" for h in grid.columns],
                y=[f"L{layer}" for layer in grid.index],
                texttemplate="%{z:.2f}",
                hovertemplate="%{y}%{x}: %{z:.4f}<extra></extra>",
                coloraxis="coloraxis",
            )
            figure.add_trace(heat, row=at // 2 + 1, col=at % 2 + 1)
        figure.update_layout(
            title=title,
            width=1000,
            height=120 + rows * 330,
            coloraxis={"colorscale": "Viridis", "cmin": 0, "cmax": 1, "colorbar": {"title": "share of<br>attention"}},
        )
        figure.update_xaxes(title="head")
        figure.update_yaxes(title="layer", autorange="reversed")
        return figure


def by_layer(captures: Any) -> list[Any]:
    """The captured patterns in order of layers: for each layer, a list over prompts of [H, T, T]."""
    return [captures.hooks[name] for name in sorted(captures.hooks, key=lambda name: int(name.split(".")[1]))]


def _score(a: Any, score: str, n: int) -> Any:
    """One score of patterns a [..., T, T] -> [...]."""
    if score == "first":
        return a[..., 2:, 0].mean(-1)
    back = {"previous": 1, "duplicate": n, "induction": n - 1}[score]
    start = {"previous": 2, "duplicate": n + 1, "induction": n + 1}[score]
    return a.diagonal(-back, -2, -1)[..., start - back :].mean(-1)  # entry j is A[j + back, j]


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m probes.heads`."""

    data: str | None = None
    """SOURCE of the texts; default: the run's validation data."""
    texts: Whole = 32
    """How many texts; 0 for random sequences only."""
    top: Count = 3
    """Heads to print for each score; the written table holds all."""
    probe: Annotated[HeadScores, tyro.conf.arg(name="")] = HeadScores()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    name, model = open_run(options)
    n_ctx = model.config.n_ctx
    probe = replace(options.probe, text_tokens=min(options.probe.text_tokens, n_ctx))
    if 2 * probe.length + 1 > n_ctx:
        raise InputError(f"--length {probe.length}: BOS + r + r must fit {n_ctx} tokens; use {(n_ctx - 1) // 2}")

    from itertools import islice

    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.probe import measure

    tokenizer, texts = model._text(), list[list[int]]()
    if options.texts:
        shards = evaluation_shards(run_folder(options.run), tokenizer, options.data)
        texts = list(islice(documents(shards, at_least=3), options.texts))
    table = measure(model, probe, texts)
    summary = probe.summarize(table)
    best = summary.sort_values("mean", ascending=False, kind="stable")
    shown = best.groupby(["kind", "score"], sort=False).head(options.top)
    shown = shown.sort_values(["kind", "score", "mean"], ascending=[True, True, False])
    title = f"{name}: the {options.top} highest heads of each score, {probe.sequences} random, {len(texts)} texts"
    show(shown.drop(columns=["layer", "index"]), title)
    figure = probe.plot(table, f"{name}: scores by position, {probe.sequences} random sequences, {len(texts)} texts")
    write_results(options, {"": (summary, UNITS)}, figure, texts=len(texts), probe=asdict(probe))


if __name__ == "__main__":
    command(main)
