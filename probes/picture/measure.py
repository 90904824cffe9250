"""Attention in one prompt: one row per head, query and key, with tokens and roles."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, Progress, title_of
from streamscope.instruments.data import Opened, Prompts, Text, check_tokenizer
from streamscope.instruments.observations import Estimates
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.table import HEAD, Table, key, number
from streamscope.models.head_spec import Head, parse_heads, score_names
from streamscope.models.hooks import Edits, Query, run
from streamscope.probes.heads import Heads
from streamscope.probes.logit_lens.measure import visible
from streamscope.probes.pds import Pds
from streamscope.probes.picture import Picture
from streamscope.probes.probe import measure
from streamscope.probes.roles import head_scores
from streamscope.text import is_bos

HOOK = "blocks.{}.attn.hook_pattern"
LONGEST = 14
"""Characters of a token on an axis."""
ROW = ["head", "layer", "index", "query", "query_token"]


def picture(
    model: Any, prompt: str | Aligned, heads: str | Sequence[str] | Sequence[Head] | None = None,
    query: str | int | None = None, *, tokenizer: Any = None, edits: Edits | None = None, most: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Attention in a text, cut to `most` tokens, or in an `Aligned` of one prompt, under `edits` if given.

    heads: `Head`s, or the head grammar without scores (`models.head_spec`); None for all. With a query (a word or a
    position), or without heads, attention from that token; with heads alone, from every token. One row per head, query
    and key ≤ query: head, layer, index; query and key, positions with BOS at 0; their tokens; attention; role of the
    key. Raises `InputError` for an empty text, one beyond the context, several prompts, and as `parse_heads` does.
    """
    tokenizer = check_tokenizer(model, tokenizer)
    head_list: Any = "all" if heads is None else heads
    if isinstance(head_list, str) or not all(isinstance(head, Head) for head in head_list):
        head_list = parse_heads(head_list, model.cfg.n_layers, model.cfg.n_heads)
    if not head_list:
        raise InputError("a picture needs at least one head; write L2.H3, L2.*, all or top3:pds")
    if not isinstance(prompt, str) and len(prompt.prompts) != 1:
        raise InputError(f"a picture shows one prompt, not {len(prompt.prompts)}; choose one (Aligned.only)")
    text, positions = (prompt, {}) if isinstance(prompt, str) else (prompt.prompts[0].text, prompt.positions[0])
    if not text.strip():
        raise InputError("the text is empty; give one with words")
    ids, spans = (row[:most] for row in tokenizer.spans(text))
    if len(ids) > model.cfg.n_ctx:
        raise InputError(f"the text has {counted(len(ids), 'token')}, the context holds {model.cfg.n_ctx}; shorten it")
    role_of = {p: role for role, span in positions.items() for p in span}
    whole = heads is not None and query is None
    queries = range(len(ids)) if whole else [_position(query, text, spans, role_of)]
    hooks = tuple(HOOK.format(layer) for layer in sorted({head.layer for head in head_list}))
    patterns = run(model, Query(tokens=[ids], hooks=hooks, positions=[list(queries)]), edits).hooks
    pieces = np.array(tokenizer.pieces(ids), dtype=object)
    roles = np.array([role_of.get(p, "") for p in range(len(pieces))], dtype=object)
    row, query_at, key_at = np.array([(i, q, k) for i, q in enumerate(queries) for k in range(q + 1)]).T
    tokens = {"query": query_at, "query_token": pieces[query_at], "key": key_at, "key_token": pieces[key_at]}
    parts = []
    for head in head_list:
        weights = patterns[HOOK.format(head.layer)][0][head.head].double().cpu().numpy()
        labels = {"head": head.label, "layer": head.layer, "index": head.head}
        parts.append(pd.DataFrame({**labels, **tokens, "attention": weights[row, key_at], "role": roles[key_at]}))
    return pd.concat(parts, ignore_index=True)


def _position(
    query: str | int | None, text: str, spans: Sequence[tuple[int, int]], roles: Mapping[int, str]
) -> int:  # fmt: skip
    """The token that attends: a word (its last token) or a position; None: the prompt's own query, or the last. Raises
    `InputError` for a word that is not in the text, or occurs several times."""
    if query is None:
        return max((p for p, role in roles.items() if role == "query"), default=len(spans) - 1)
    if isinstance(query, int):
        if not 0 <= query < len(spans):
            raise InputError(f"query {query}: the text has the tokens 0 to {len(spans) - 1}")
        return query
    word = query.strip()
    edges = [r"(?<!\w)" if word[:1].isalnum() else "", r"(?!\w)" if word[-1:].isalnum() else ""]
    matches = [m.span() for m in re.finditer(edges[0] + re.escape(word) + edges[1], text)] if word else []
    tokens = [[i for i, span in enumerate(spans) if max(a, span[0]) < min(b, span[1])] for a, b in matches]
    last = [places[-1] for places in tokens if places]  # none, where the text is cut before the word
    if not last:
        raise InputError(f"the query {query!r} is not a word of {text!r}; give one that is, or a token's position")
    if len(last) > 1:
        places = ", ".join(map(str, last))
        raise InputError(f"the query {query!r} occurs at tokens {places}; choose one: --query {last[-1]}")
    return last[0]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per head and query: the key with most attention, and the attention to BOS and to each role (summed)."""
    row_keys = [*(["prompt"] if "prompt" in table else []), *ROW]
    best = table.loc[table.groupby(row_keys, sort=False)["attention"].idxmax()]
    best = best.rename(columns={"key": "looks_at", "key_token": "token"}).set_index(row_keys)
    rows = best[["looks_at", "token", "attention"]].copy()
    rows["to_bos"] = table[table["key"] == 0].set_index(row_keys)["attention"]
    for role in [role for role in dict.fromkeys(table["role"]) if role]:
        to_role = table[table["role"] == role].groupby(row_keys)["attention"].sum()
        rows[f"to_{role}"] = to_role.reindex(rows.index, fill_value=0.0)
    return rows.reset_index()


def observe(options: Picture, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """The attention in a prompt of the suite, or in the given texts."""
    tokenizer, cfg = check_tokenizer(model), model.cfg
    spec = data.specs[Text]
    texts = spec.text if isinstance(spec, Text) else [tokenizer.decode(row[1:]) for row in data[Text].rows]
    if texts and options.prompt is not None:
        raise InputError("--prompt chooses a prompt of the suite and --text gives your own: leave one out")
    scores = {name: _scores(model, tokenizer, name, data) for name in score_names(options.heads)}
    heads = parse_heads(options.heads, cfg.n_layers, cfg.n_heads, scores) if options.heads else None
    most = spec.max_tokens if isinstance(spec, Text) else None
    prompts: list[str | Aligned] = [*texts] or [_prompt(data[Prompts], options.prompt)]
    parts = [
        picture(model, prompt, heads, options.query, tokenizer=tokenizer, most=most).assign(prompt=i)
        for i, prompt in enumerate(progress(prompts))
    ]
    shown = [prompt if isinstance(prompt, str) else prompt.prompts[0].text for prompt in prompts]
    quoted = " | ".join(repr(text if len(text) <= 100 else text[:99] + "…") for text in shown)
    about: dict[str, Any] = {"title": f"{title_of(model)}: {quoted}{data[Text].title() if texts else ''}"}
    about["every"] = bool(options.heads) and options.query is None
    return InstrumentData(about=about, extra=pd.concat(parts, ignore_index=True))


def _prompt(opened: Any, choice: int | str | None) -> Aligned:
    """The prompt of the suite by number or id."""
    aligned, suite = opened.aligned, opened.suite
    ids = [p.id for p in (aligned if suite is None else suite).prompts]
    if isinstance(choice, int) and not 0 <= choice < len(ids):
        raise InputError(f"--prompt {choice}: the suite has the prompts 0 to {len(ids) - 1}")
    name = choice if isinstance(choice, str) else ids[choice or 0]
    if name not in ids:
        raise unknown("prompt of the suite", name, ids)
    if name in (reasons := dict(aligned.filtered)):
        raise InputError(f"prompt {name!r} cannot be aligned with this model: {reasons[name]}; choose another")
    return aligned.only([[p.id for p in aligned.prompts].index(name)])


def _scores(model: Any, tokenizer: Any, name: str, data: Opened) -> dict[Head, float]:
    """PDS on the suite, or a score by position on random sequences (`probes.heads`)."""
    if name == "pds":
        return head_scores(Pds().measure(model, data[Prompts], progress=iter).table().frame, "pds")
    rows = measure(model, Heads(length=min(24, (model.cfg.n_ctx - 1) // 2)), [], tokenizer=tokenizer)
    means = rows[rows["score"] == name].groupby(["layer", "index"], as_index=False)["value"].mean()
    return head_scores(means, "value")


def axis_label(piece: str, position: int, role: str = "") -> str:
    """A token's text on an axis: visible spaces, escaped HTML, cut to `LONGEST` characters, with its role."""
    text = "BOS" if is_bos(piece, position) else visible(piece.replace(" ", "·"), LONGEST)
    return f"<b>{text}</b> ({role})" if role else text


def tables(options: Picture, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    """Every weight; and per head and query the key with most attention."""
    title, best = data.about["title"], summary(data.extra)
    frame = data.extra.assign(
        label=list(map(axis_label, data.extra["key_token"], data.extra["key"], data.extra["role"])),
        query_label=list(map(axis_label, data.extra["query_token"], data.extra["query"])),
    )
    name, split_by = ("maps", ("prompt", "head")) if data.about["every"] else ("attention", ("prompt",))
    roles = [c for c in best if c.startswith("to_") and c != "to_bos"]
    to_roles = [number(c, f"to {c[3:]}", SHARE, f"attention to the tokens of the {c[3:]}", ".3f") for c in roles]
    queries = frame[["query", "query_token"]].drop_duplicates()
    looking = f" from {queries['query_token'][0].strip()!r}" if len(queries) == 1 else ""
    return {
        name: Table(frame, ATTENTION, {}, f"attention{looking}; {title}", "attention", 10, split_by),
        "looks": Table(best, (*LOOKS, *to_roles), title=f"the key with most attention; {title}"),
    }


SHARE = "share of the query's attention"
PROMPT = key("prompt", "prompt", "number of the prompt among the texts", "place", "d")
QUERY = (
    number("query", "query", "position in tokens", "position of the query; BOS is 0", "d"),
    key("query_token", "query token", "text of the query token", "text"),
)  # fmt: skip
WEIGHT = (
    number("key", "key", "position in tokens", "position of the key; BOS is 0", "d"),
    key("key_token", "key token", "text of the key token", "text"),
    number("attention", "attention", SHARE, "attention weight A[q, k]", ".3f"),
)  # fmt: skip
ATTENTION = (
    PROMPT, *HEAD, *QUERY, *WEIGHT, key("role", "role", "role of the key in the prompt, empty for none"),
    key("label", "key label", "axis label of the key, with its role", "text", shown=False),
    key("query_label", "query label", "axis label of the query", "text", shown=False),
)  # fmt: skip
LOOKS = (
    PROMPT, *HEAD, *QUERY,
    number("looks_at", "top key", "position in tokens", "position of the key with most attention", "d"),
    key("token", "top key token", "text of the key with most attention", "text"),
    number("attention", "attention", SHARE, "attention to that key", ".3f"),
    number("to_bos", "to BOS", SHARE, "attention to BOS", ".3f"),
)  # fmt: skip
