"""Scores by position: patterns as (score, head) × prompts, with one row each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Documents, Opened
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.prompts.alignment import check_tokenizer
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
    counts = np.zeros(tokenizer.d_vocab, int)
    for ids in documents:
        np.add.at(counts, np.asarray(ids, int), 1)
    candidates = words(tokenizer)
    return candidates[counts[candidates] >= FREQUENT]


def plan(options: Heads, prompts: Any, tokenizer: Any, pool: np.ndarray | None = None) -> Query:
    """The random sequences, then the texts (strings, or token ids with BOS first; possibly none).

    `pool` has the ids that r is drawn from; default: as `options.pool` says. Raises `InputError` for fewer ids than r
    needs, and for a text of fewer than three tokens.
    """
    rng = np.random.default_rng(options.seed)
    if pool is None:
        pool = (
            words(tokenizer) if options.pool == "words" else np.delete(np.arange(tokenizer.d_vocab), tokenizer.bos_id)
        )
    if len(pool) < options.length:
        shortage = f"the documents have {len(pool)} of them {FREQUENT} times: give more"
        kind, has = (
            ("words", shortage)
            if options.pool == "trained"
            else (options.pool, f"the vocabulary has {len(pool)} besides BOS")
        )
        raise InputError(f"--length {options.length} needs as many different {kind}, {has}")
    tokens = []
    for _ in range(options.sequences):
        r = rng.choice(pool, options.length, replace=False).tolist()
        tokens.append([*[tokenizer.bos_id] * tokenizer.adds_bos, *r, *r])
    for i, prompt in enumerate(prompts or ()):
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        if len(ids) < 3:
            raise InputError(
                f"text {i} has {counted(len(ids), 'token')} with BOS; previous-token scores need at least 3"
            )
        tokens.append(ids[: options.text_tokens])
    return Query(tokens=tokens, hooks=(PATTERN,))


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
    offset = {"previous": 1, "duplicate": n, "induction": n - 1}[score]
    start = {"previous": 1 + bos, "duplicate": n + bos, "induction": n + bos}[score]
    return a.diagonal(-offset, -2, -1)[..., start - offset :].mean(-1)  # entry j is A[j + back, j]


def observe(options: Heads, model: Any, data: Opened, progress: Any = iter) -> InstrumentData:
    """Cells: kind of prompt × score × head, and uniform attention. Units: random sequences and texts."""
    n_ctx, tokenizer = model.cfg.n_ctx, check_tokenizer(model)
    options = replace(options, text_tokens=min(options.text_tokens, n_ctx))
    if 2 * options.length + 1 > n_ctx:
        raise InputError(f"--length {options.length}: BOS + r + r must fit {n_ctx} tokens; use {(n_ctx - 1) // 2}")
    names, texts = [f"random {i}" for i in range(options.sequences)], []
    clusters = list(names)
    if options.texts:
        documents = data[Documents]
        units = documents.units()
        document_rows = zip(units["unit"], units["cluster"], documents.rows(), strict=True)
        usable = [row for row in document_rows if len(row[-1]) > 2]
        names, texts = names + [name for name, *_ in usable], [ids for *_, ids in usable]
        clusters += [cluster for _, cluster, _ in usable]
    pool = trained_words(tokenizer, data[Documents].rows()) if options.pool == "trained" else None
    query = plan(options, texts, tokenizer, pool)
    measurements = observed(read(options, run(model, query, progress=progress), query), names, clusters)
    measurements.about["title"] = (
        f"{title_of(model)}: scores by position, {counted(options.sequences, 'random sequence')}, "
        + counted(len(texts), "text")
    )
    if texts:
        measurements.about["title"] += f" ({data[Documents].title()})"
    return measurements


def observed(rows: pd.DataFrame, names: list[str] | None = None, clusters: list[str] | None = None) -> InstrumentData:
    """Observations and contrasts of the rows of `read`; `names` and `clusters` of the prompts default to their
    numbers."""
    rows = rows.assign(head=[f"L{a}.H{b}" for a, b in zip(rows["layer"], rows["index"], strict=True)])
    prompts = sorted(rows["prompt"].unique())
    cells, uniform_cells = (rows[list(k)].drop_duplicates(ignore_index=True) for k in (KEYS, KEYS[:2]))
    wide = rows.pivot(index=list(KEYS), columns="prompt", values="value").loc[pd.MultiIndex.from_frame(cells), prompts]
    of_one = rows.drop_duplicates([*KEYS[:2], "prompt"])  # the same for every head
    even = of_one.pivot(index=list(KEYS[:2]), columns="prompt", values="uniform")
    even = even.loc[pd.MultiIndex.from_frame(uniform_cells), prompts]
    kinds = rows.drop_duplicates("prompt").set_index("prompt").loc[prompts, "kind"].to_numpy()
    all_cells = pd.concat([cells, uniform_cells.assign(head="even", layer=-1, index=-1)], ignore_index=True)
    uniform_index = {(kind, score): len(cells) + i for i, (kind, score) in enumerate(even.index)}
    units = [str(i) for i in prompts] if names is None else names
    block = Observations(
        measure=Measure(name="score", unit=UNIT, resolution=0.0, limits=(0.0, 1.0)), cells=all_cells,
        size=all_cells["kind"].to_numpy()[:, None] == kinds,
        units=pd.DataFrame({"unit": units, "cluster": units if clusters is None else clusters}),
        total=np.concatenate([wide.to_numpy(float), even.to_numpy(float)]),
    )  # fmt: skip
    contrasts = []
    for i, labels in enumerate(cells.to_dict("records")):
        contrasts.append(Contrast(quantity="mean", weights={i: 1.0}, labels=labels, null=None))
        even_at = uniform_index[labels["kind"], labels["score"]]
        contrasts.append(Contrast(quantity="uniform", weights={even_at: 1.0}, labels=labels, null=None))
    return InstrumentData({"scores": block}, {"scores": contrasts}, {"title": "scores by position"})


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
