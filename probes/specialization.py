"""How differently the heads attend: the head specialization score of paper DST, and the entropy of attention.

    python -m probes.specialization runs/lfa
    python -m probes.specialization runs/lfa --samples 500 --length 96 --data valid.txt --out heads.parquet

With a_h the attention pattern of head h, averaged over samples of equal length T and flattened (DST Eq. 16, 18):

    HSS = 1 / (H (H − 1)) · Σ_{i≠j} (1 − a_i·a_j / (|a_i| |a_j|))        0: the same patterns; 1: orthogonal ones

within every layer (`L0`, …), their mean (`layers`, DST Table 3), and over all pairs of heads of the model (`all`).
Entropy is −Σ_k A[q, k] ln A[q, k] in nats, the mean over queries q and samples (DST Table 3); a head that attends
evenly has the mean of ln(q + 1).

In a causal model the first row of every pattern is 1 on itself, so HSS stays below 1: two heads that never share
another key reach at most 1 − 1/T. HSS and entropy depend on T: compare models at one length.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.models.bounds import Bounds, Count, check
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.command import RunOptions, documents, open_run, write_results
from streamscope.probes.heads import PATTERNS, by_layer

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    **dict.fromkeys(("value", "ci_low", "ci_high"), "HSS: 1 − cosine; entropy: nats"),
    "se": "as value, delete-a-block jackknife",
    "n": "samples",
    "blocks": "blocks of samples",
}
CHUNK_NUMBERS = 2**24
"""Attention weights held at once when streaming (64 MiB in float32, twice while they are captured)."""


@dataclass(frozen=True, kw_only=True)
class Specialization:
    """HSS and entropy of every head; see this module's docstring.

    Samples fall into `blocks` in turn; all that is kept is the sum of patterns of each block, [blocks, heads, T, T],
    whatever their number. Prompts are texts, or token ids with BOS first.
    """

    length: Annotated[int, Bounds(low=2)] = 64
    """T: samples are cut to this many tokens, BOS included; shorter ones are left out."""
    blocks: Annotated[int, Bounds(low=2)] = 10
    """Blocks of samples for the jackknife's interval."""

    def __post_init__(self) -> None:
        check(self)

    def plan(self, prompts: Any, tokenizer: Any) -> Any:
        """Samples of exactly `length` tokens. Raises `InputError` when no prompt is that long."""
        from streamscope.models.capture import Query

        tokens = list(self.samples(prompts, tokenizer))
        if not tokens:
            raise InputError(f"no sample has {self.length} tokens; give longer texts or a smaller length")
        return Query(tokens=tokens, hooks=(PATTERNS,))

    def samples(self, prompts: Iterable[Any], tokenizer: Any) -> Iterable[list[int]]:
        """The prompts that are long enough, cut."""
        for prompt in prompts:
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
            if len(ids) >= self.length:
                yield ids[: self.length]

    def read(self, captures: Any, query: Any) -> "pd.DataFrame":
        """The table of `Sums.table`. Patterns of all samples are in memory; `stream` holds a few at a time."""
        sums = Sums(self.blocks)
        sums.add(captures)
        return sums.table()

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per measure and scope: value, and a 95 % interval from the delete-a-block jackknife.

        With G blocks of samples and θ_g the value without block g, se² = (G − 1)/G · Σ (θ_g − θ̄)² and the interval is
        value ± t_{G−1} se; for a mean this is the t interval over block means (Efron & Tibshirani 1993, §11).
        Scopes of HSS: L0, … (a layer), layers (their mean), all (every pair of heads); of entropy: L0H1, L0, all.
        Layers of one head have no HSS: undefined by construction; so is the interval with one sample.
        """
        import numpy as np
        import pandas as pd

        from streamscope.probes.statistics import t_quantile
        from streamscope.probes.undefined import note

        n, nan, rows = int(table["samples"].max()), float("nan"), []
        for measure, scope, one in _scopes(table):
            values = one.groupby("left_out")["value"].mean()
            left = values.drop(-1, errors="ignore").to_numpy()
            g = len(left)
            value, why = float(values.get(-1, nan)), {}
            row = {"measure": measure, "scope": scope, "value": value, "se": nan, "ci_low": nan, "ci_high": nan}
            if one.empty:
                why = dict.fromkeys(("value", "se", "ci_low", "ci_high"), "one head has no other to differ from")
            elif g < 2:
                why = dict.fromkeys(("se", "ci_low", "ci_high"), "one sample")
            else:
                se = float(np.sqrt((g - 1) / g * np.square(left - left.mean()).sum()))
                half = t_quantile(0.95, g - 1) * se
                row |= {"se": se, "ci_low": value - half, "ci_high": value + half}
            rows.append(row | {"n": n, "blocks": max(g, 1), "undefined": note(why)})
        return pd.DataFrame(rows)

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Left: 1 − cosine for every pair of heads. Right: entropy, layer × head. Takes the table of observations."""
        import numpy as np
        import plotly.graph_objects as go

        from streamscope.probes.report import heat_map, side_by_side

        entropy, pairs = (table[(table["left_out"] == -1) & (table["measure"] == m)] for m in ("entropy", "HSS"))
        names = [f"L{a}H{b}" for a, b in zip(entropy["layer"], entropy["index"], strict=True)]
        grid, upper = np.zeros((len(names), len(names))), np.triu_indices(len(names), 1)
        grid[upper] = grid[upper[::-1]] = pairs["value"]
        look = {"zmin": 0, "zmax": 1, "colorscale": "Blues", "colorbar": {"title": "1 − cos"}}
        heat = go.Heatmap(z=grid, x=names, y=names, hovertemplate="%{y} and %{x}: %{z:.4f}<extra></extra>", **look)
        titles, right = ("1 − cosine of two heads", "entropy"), heat_map(entropy, "value", unit="nats", digits=2)
        figure = side_by_side(titles, heat, right, title)
        axis = {"title": "head", "dtick": 1, "tickfont": {"size": 8}, "row": 1, "col": 1}
        return figure.update_xaxes(**axis).update_yaxes(**axis)


def hss(patterns: Any) -> float:
    """HSS of patterns [H, ...], one per head (DST Eq. 18): the mean of 1 − cosine over pairs of different heads.

    NaN for one head. Raises `InputError` for a pattern that is zero everywhere or not finite.
    """
    import torch

    a = torch.as_tensor(patterns).double().flatten(1)
    i, j = torch.triu_indices(len(a), len(a), 1)
    return float(_distances(a)[i, j].mean())


def _distances(a: Any) -> Any:
    """1 − cosine of every two rows of a [heads, numbers]."""
    norms = a.norm(dim=1, keepdim=True)
    if not (norms.isfinite() & (norms > 0)).all():
        raise InputError("an attention pattern is not finite, or zero everywhere: it has no direction to compare")
    unit = a / norms
    return 1 - unit @ unit.T


class Sums:
    """Sums of patterns and entropies by block of samples; its size does not depend on the number of samples."""

    def __init__(self, blocks: int) -> None:
        self.counts = [0] * blocks
        self.patterns: Any = None  # [blocks, L, H, T, T]
        self.entropies: Any = None  # [blocks, L, H]

    def add(self, captures: Any) -> None:
        """Add every sample of `captures`. Raises `InputError` for samples of another length."""
        import torch

        for sample in zip(*by_layer(captures), strict=True):
            a = torch.stack([layer.detach().float().cpu() for layer in sample])
            if self.patterns is None:
                self.patterns = torch.zeros(len(self.counts), *a.shape)
                self.entropies = torch.zeros(len(self.counts), *a.shape[:2], dtype=torch.float64)
            if a.shape != self.patterns.shape[1:]:
                raise InputError(
                    f"samples must have one length, got {a.shape[-1]} and {self.patterns.shape[-1]} tokens"
                )
            block = sum(self.counts) % len(self.counts)
            self.counts[block] += 1
            self.patterns[block] += a
            self.entropies[block] += torch.special.entr(a.double()).sum(-1).mean(-1)

    def table(self) -> "pd.DataFrame":
        """One row per left-out block (−1: none) and pair of heads (HSS: 1 − cos) or head (entropy, nats).

        Columns measure, left_out, samples, layer, index, other_layer, other_index (−1 for entropy), value.
        """
        import numpy as np
        import pandas as pd
        import torch

        used = [b for b, count in enumerate(self.counts) if count]
        n_layers, n_heads = self.entropies.shape[1:]
        layer, index = np.divmod(np.arange(n_layers * n_heads), n_heads)
        i, j = np.triu_indices(n_layers * n_heads, 1)
        own = {"layer": layer, "index": index, "other_layer": -1, "other_index": -1}
        pairs = {"layer": layer[i], "index": index[i], "other_layer": layer[j], "other_index": index[j]}
        patterns, entropies, tables = self.patterns.sum(0), self.entropies.sum(0), []
        for left_out in [-1, *(used if len(used) > 1 else [])]:
            n = sum(self.counts) - (self.counts[left_out] if left_out >= 0 else 0)
            a = (patterns - self.patterns[left_out] if left_out >= 0 else patterns) / n
            e = (entropies - self.entropies[left_out] if left_out >= 0 else entropies) / n
            distances = _distances(a.to(torch.float64).flatten(2).flatten(0, 1)).numpy()
            both = {"left_out": left_out, "samples": n}
            tables += [
                pd.DataFrame({"measure": "HSS", **both, **pairs, "value": distances[i, j]}),
                pd.DataFrame({"measure": "entropy", **both, **own, "value": e.flatten().numpy()}),
            ]
        return pd.concat([t for t in tables if len(t)], ignore_index=True)


def stream(
    model: Any,
    probe: Specialization,
    prompts: Iterable[Any],
    *,
    tokenizer: Any = None,
    edits: Any = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> "pd.DataFrame":
    """`probes.probe.measure`, holding the patterns of a few samples at a time (`CHUNK_NUMBERS`).

    Memory does not grow with the number of prompts. Raises `InputError` as `plan` and `Sums`.
    """
    from streamscope.models.capture import run

    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    size = max(1, CHUNK_NUMBERS // (model.cfg.n_layers * model.cfg.n_heads * probe.length**2))
    sums, waiting = Sums(probe.blocks), list[list[int]]()
    for sample in probe.samples(progress(prompts), tokenizer):
        waiting.append(sample)
        if len(waiting) == size:
            sums.add(run(model, probe.plan(waiting, tokenizer), edits))
            waiting = []
    if waiting or sums.patterns is None:  # `plan` says what is wrong with no sample at all
        sums.add(run(model, probe.plan(waiting, tokenizer), edits))
    return sums.table()


def _scopes(table: "pd.DataFrame") -> Iterable[tuple[str, str, "pd.DataFrame"]]:
    """(measure, scope, its rows)."""
    pairs, entropy = table[table["measure"] == "HSS"], table[table["measure"] == "entropy"]
    within = pairs[pairs["layer"] == pairs["other_layer"]]
    layers = list(range(int(entropy["layer"].max()) + 1))
    yield from (("HSS", f"L{layer}", within[within["layer"] == layer]) for layer in layers)
    yield from (("HSS", "layers", within), ("HSS", "all", pairs))
    for layer in layers:
        here = entropy[entropy["layer"] == layer]
        yield "entropy", f"L{layer}", here
        yield from (("entropy", f"L{layer}H{head}", one) for head, one in here.groupby("index"))
    yield "entropy", "all", entropy


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Arguments of `python -m probes.specialization`."""

    data: str | None = None
    """SOURCE of the samples; default: the run's validation data."""
    samples: Count = 200
    """Use at most this many documents that are long enough."""
    heads: bool = False
    """Print the entropy of every head as well."""
    probe: Annotated[Specialization, tyro.conf.arg(name="")] = Specialization()


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    probe = options.probe
    name, model = open_run(options)
    if probe.length > model.config.n_ctx:
        raise InputError(f"--length {probe.length} is longer than the context of {model.config.n_ctx}")

    import math
    import sys
    from itertools import islice

    from rich.console import Console
    from rich.progress import track

    from streamscope.models.checkpoint import run_folder
    from streamscope.models.training.data import evaluation_shards
    from streamscope.probes.command import show

    shards = evaluation_shards(run_folder(options.run), model._text(), options.data)
    found = list(islice(documents(shards, probe.length), options.samples))
    table = stream(model, probe, found, progress=lambda x: track(x, "samples", console=Console(file=sys.stderr)))
    summary = probe.summarize(table)
    title = f"{name}: {len(found)} samples of {probe.length} tokens"
    shown = summary if options.heads else summary[~summary["scope"].str.contains("H")]
    show(shown, f"{title}; even attention has entropy {math.lgamma(probe.length + 1) / probe.length:.4f}")
    figure = probe.plot(table, title)
    write_results(options, {"": (summary, UNITS)}, figure, length=probe.length, samples=len(found))


if __name__ == "__main__":
    command(main)
