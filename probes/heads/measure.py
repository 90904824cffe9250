"""Scores by position: patterns as (score, head) × prompts, with one row each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Documents, Opened, check_tokenizer
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, each, joined
from streamscope.instruments.table import HEAD, Table, counts, described, key, number
from streamscope.models.hooks import Captures, Query, run
from streamscope.probes.heads import Heads
from streamscope.probes.roles import PATTERN, by_layer

SCORES = ("previous", "first", "duplicate", "induction")
KEYS = ("kind", "score", "head", "layer", "index")
UNIT = "share of attention"
FREQUENT = 5
"""A word is trained if the documents have it this many times."""


def words(tokenizer: Any) -> np.ndarray:
    """Ids of the tokens that are a whole word: a space and two or more letters."""
    ids = np.delete(np.arange(tokenizer.d_vocab), tokenizer.bos_id)
    pieces = zip(ids, tokenizer.pieces(ids.tolist()), strict=True)
    return np.array([i for i, text in pieces if text[:1] == " " and len(text) > 2 and text[1:].isalpha()], int)


def trained_words(tokenizer: Any, documents: Iterable[Sequence[int]]) -> np.ndarray:
    """Ids of the words that the documents have at least `FREQUENT` times."""
    counts, candidates = Counter(chain.from_iterable(documents)), words(tokenizer)
    return candidates[[counts[i] >= FREQUENT for i in candidates.tolist()]]


def plan(options: Heads, prompts: Any, tokenizer: Any, pool: np.ndarray | None = None) -> Query:
    """The random sequences, of the ids in `pool` (default: `options.pool`), then the texts, token ids with BOS first,
    of three or more tokens. Raises `InputError` for fewer ids than r needs."""
    rng = np.random.default_rng(options.seed)
    if pool is None:
        every = np.delete(np.arange(tokenizer.d_vocab), tokenizer.bos_id)
        pool = words(tokenizer) if options.pool == "words" else every
    if len(pool) < options.length:
        kind, has = options.pool, f"the vocabulary has {len(pool)} besides BOS"
        if kind == "trained":
            kind, has = "words", f"the documents have {len(pool)} of them {FREQUENT} times: give more"
        raise InputError(f"--length {options.length} needs as many different {kind}, {has}")
    tokens = []
    for _ in range(options.sequences):
        r = rng.choice(pool, options.length, replace=False).tolist()
        tokens.append([*[tokenizer.bos_id] * tokenizer.adds_bos, *r, *r])
    texts = [list(ids[: options.text_tokens]) for ids in prompts or ()]
    return Query(tokens=[*tokens, *texts], hooks=(PATTERN,))


def read(options: Heads, captures: Captures, query: Query) -> pd.DataFrame:
    """One row per prompt, score and head; the random sequences come first."""
    patterns, tables = by_layer(captures, "hook_pattern").values(), []
    bos = len(query.tokens[0]) - 2 * options.length  # 1, or 0 where texts begin without BOS
    for i, ids in enumerate(query.tokens):
        a = torch.stack([layer[i].detach().float().cpu() for layer in patterns])
        even = torch.ones(len(ids), len(ids)).tril() / torch.arange(1, len(ids) + 1)[:, None]
        repeated = i < options.sequences
        for score in SCORES if repeated else SCORES[:2]:
            value = _score(a, score, options.length, bos)
            layers, heads = np.indices(value.shape).reshape(2, -1)
            values = {"layer": layers, "index": heads, "value": value.double().flatten().numpy()}
            about = {"prompt": i, "kind": "random" if repeated else "text", "score": score}
            tables.append(pd.DataFrame({**about, **values, "uniform": float(_score(even, score, options.length, bos))}))
    return pd.concat(tables, ignore_index=True)


def _score(a: Tensor, score: str, n: int, bos: int) -> Tensor:
    """One score for patterns a [..., T, T] -> [...]; `bos` is the number of tokens before r."""
    if score == "first":
        return a[..., 2:, 0].mean(-1)
    offset, start = {"previous": (1, 1), "duplicate": (n, n), "induction": (n - 1, n)}[score]
    return a.diagonal(-offset, -2, -1)[..., start + bos - offset :].mean(-1)  # entry j is A[j + offset, j]


def observe(options: Heads, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: kind of prompt × score × head, and uniform attention. Units: random sequences and texts."""
    n_ctx, tokenizer = model.cfg.n_ctx, check_tokenizer(model)
    if 2 * options.length + 1 > n_ctx:
        raise InputError(f"--length {options.length}: BOS + r + r must fit {n_ctx} tokens; use {(n_ctx - 1) // 2}")
    names = [f"random {i}" for i in range(options.sequences)]
    units, texts = pd.DataFrame({"unit": names, "cluster": names}), []
    if options.texts:
        documents = list(data[Documents].rows())
        long = [len(ids) > 2 for ids in documents]
        texts = [ids[:n_ctx] for ids in documents if len(ids) > 2]
        units = pd.concat([units, data[Documents].units()[["unit", "cluster"]][long]], ignore_index=True)
    pool = trained_words(tokenizer, data[Documents].rows()) if options.pool == "trained" else None
    query = plan(options, texts, tokenizer, pool)
    measurements = observed(read(options, run(model, query, progress=progress), query), units)
    title = f"{title_of(model)}: scores by position, {counted(options.sequences, 'random sequence')}, "
    title += counted(len(texts), "text") + (f" ({data[Documents].title()})" if texts else "")
    measurements.about["title"] = title
    return measurements


def observed(rows: pd.DataFrame, units: pd.DataFrame) -> InstrumentData:
    """Observations and contrasts of the rows of `read`, with the prompts as units."""
    rows = rows.assign(head=[f"L{a}.H{b}" for a, b in zip(rows["layer"], rows["index"], strict=True)])
    even = rows.drop_duplicates([*KEYS[:2], "prompt"])  # the same for every head
    rows = pd.concat([rows, even.assign(head="even", layer=-1, index=-1, value=even["uniform"])])
    cells = rows[list(KEYS)].drop_duplicates(ignore_index=True)
    wide = rows.pivot(index=list(KEYS), columns="prompt", values="value").loc[pd.MultiIndex.from_frame(cells)]
    total = wide.to_numpy(float)
    block = Observations(
        measure=Measure(name="score", unit=UNIT, resolution=0.0, limits=(0.0, 1.0)), cells=cells, units=units,
        total=total, size=~np.isnan(total),
    )  # fmt: skip
    is_even = cells["head"] == "even"
    even_at = {(kind, score): i for i, kind, score in cells.loc[is_even, ["kind", "score"]].itertuples()}
    contrasts = each("mean", cells[~is_even], null=None)
    for labels in cells[~is_even].to_dict("records"):
        weights = {even_at[labels["kind"], labels["score"]]: 1.0}
        contrasts.append(Contrast(quantity="uniform", weights=weights, labels=labels, null=None))
    return InstrumentData({"scores": block}, {"scores": contrasts})


def tables(options: Heads, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """scores: one row per kind of prompt, score and head."""
    frame, missing = joined([estimates["scores"]], KEYS, COLUMNS)
    return {"scores": Table(frame, COLUMNS, missing, data.about["title"], "mean", options.top, ("kind", "score"))}


COLUMNS = (
    key("kind", "kind", "repeated random sequences, or text"),
    key("score", "score", "previous, first, duplicate or induction"),
    *HEAD,
    *described("mean", "mean score", UNIT, "mean over prompts", format=".3f", sd="prompts"),
    number("uniform", "uniform", UNIT, "score of uniform attention", ".3f"),
    *counts("prompts", "independent prompts"),
)  # fmt: skip
