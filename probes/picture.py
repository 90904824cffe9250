"""The attention picture of one prompt: which token looks at which, in the heads you choose or from one word in all.

    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it"
    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it" --query used
    python -m probes.picture runs/lfa --text "Leo found a bag and a chisel. He used it" --heads L2.H3 top3:induction
    python -m probes.picture runs/lfa --suite competing --prompt 3 --heads top3:pds --out picture.parquet

Weights are A_h[q, k] of `hook_pattern`, shares of attention: the row of a query sums to 1 over the keys k ≤ q it can
see. Without --heads, or with --query, every row of the picture is a head and all look from one token: that of --query,
else the prompt's own query (the pronoun), else the last token. With --heads alone each head is a map, query × key. One
prompt is one observation: nothing here has an interval, `probes.heads` and `probes.coreference` have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from streamscope.models.bounds import AnyInt
from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError, unknown
from streamscope.models.head_spec import Head, parse_heads, score_names
from streamscope.probes.picture_plot import plot
from streamscope.probes.probe import measure
from streamscope.probes.report import ProbeOptions, check_options, open_run, show, write_results

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.probes.prompts.alignment import Aligned

SCORES = ("pds", "previous", "first", "duplicate", "induction")
"""What --heads ranks by: `probes.pds` on the suite, `probes.heads` on random sequences."""
HOOK = "blocks.{}.attn.hook_pattern"
UNITS = {
    "attention": "share of the query's attention, 0 to 1",
    "query": "position in tokens, BOS is 0",
    "key": "position in tokens, BOS is 0",
    "role": "of the key in the prompt",
}


@cache
def picture_query() -> Any:
    """The class of this probe's queries, made at first use: its base imports torch, which `--help` must not."""
    from streamscope.models.hooks import Query

    @dataclass(frozen=True, kw_only=True)
    class PictureQuery(Query):
        """One prompt in `tokens`, and what is known of it."""

        pieces: tuple[str, ...]
        """Text of each token."""
        roles: tuple[str, ...]
        """Role of each token, "" for none."""
        looking: tuple[int, ...]
        """The queries: positions that attention is read from."""

    return PictureQuery


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Attention of one prompt. The prompt is a text, or an `Aligned` of one prompt, whose roles are then marked."""

    heads: tuple[Head, ...]
    """Heads to look at, in the order of the picture."""
    query: str | int | None = None
    """The one token to look from: a word of the text (its last token) or a position; None for the prompt's own query,
    or the last token."""
    every_query: bool = False
    """Look from every token instead; `query` is then not used."""
    n_ctx: int | None = None
    """The model's context in tokens, BOS included; None for no limit."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise InputError("a picture needs at least one head; write L2.H3, L2.*, all or top3:pds")

    def plan(self, prompts: "str | Aligned", tokenizer: Any) -> Any:
        """The patterns of the layers of the heads, at the queries only.

        Raises `InputError` for no text or more than one prompt, a text longer than the context, and a query that is
        not in the text, or is there several times.
        """
        text, at = (prompts, {}) if isinstance(prompts, str) else _only(prompts)
        if not text.strip():
            raise InputError("there is no text to look at; give one with words")
        ids, spans = tokenizer.spans(text)
        if self.n_ctx is not None and len(ids) > self.n_ctx:
            raise InputError(f"the text has {len(ids)} tokens with BOS, the context holds {self.n_ctx}; shorten it")
        roles = {p: role for role, where in at.items() for p in where}
        looking = range(len(ids)) if self.every_query else [self._query(text, spans, at)]
        return picture_query()(
            tokens=[ids],
            hooks=tuple(HOOK.format(layer) for layer in sorted({head.layer for head in self.heads})),
            positions=[list(looking)],
            pieces=tuple(tokenizer.pieces(ids)),
            roles=tuple(roles.get(p, "") for p in range(len(ids))),
            looking=tuple(looking),
        )

    def _query(self, text: str, spans: Sequence[tuple[int, int]], at: dict[str, tuple[int, ...]]) -> int:
        """The position to look from."""
        import re

        if self.query is None:
            return at["query"][-1] if "query" in at else len(spans) - 1
        if isinstance(self.query, int):
            if not 0 <= self.query < len(spans):
                raise InputError(f"query {self.query}: the tokens of the text are 0 (BOS) to {len(spans) - 1}")
            return self.query
        word = self.query.strip()
        edges = [r"(?<!\w)" if word[:1].isalnum() else "", r"(?!\w)" if word[-1:].isalnum() else ""]
        found = [m.span() for m in re.finditer(edges[0] + re.escape(word) + edges[1], text)] if word else []
        last = [max(i for i, span in enumerate(spans) if max(a, span[0]) < min(b, span[1])) for a, b in found]
        if not last:
            raise InputError(f"the query {self.query!r} is no word of {text!r}; give one, or the position of a token")
        if len(last) > 1:
            raise InputError(
                f"the query {self.query!r} is {len(last)} times in the text, at tokens {', '.join(map(str, last))}; "
                f"give the one you mean, as --query {last[-1]}"
            )
        return last[0]

    def read(self, captures: Any, query: Any) -> "pd.DataFrame":
        """One row per head, query and key ≤ query.

        Columns: head, layer, index; query and key, positions with BOS at 0; their tokens; attention; role of the key.
        """
        import numpy as np
        import pandas as pd

        pieces, roles = np.array(query.pieces, dtype=object), np.array(query.roles, dtype=object)
        pairs = np.array([(i, q, k) for i, q in enumerate(query.looking) for k in range(q + 1)])
        row, at, key = pairs.T
        tables = []
        for head in self.heads:
            weights = captures.hooks[HOOK.format(head.layer)][0][head.head].double().cpu().numpy()
            if not np.isfinite(weights).all():
                raise InputError(f"attention of {head.label} is not finite on this prompt")
            where = {"head": head.label, "layer": head.layer, "index": head.head}
            tokens = {"query": at, "query_token": pieces[at], "key": key, "key_token": pieces[key]}
            tables.append(pd.DataFrame({**where, **tokens, "attention": weights[row, key], "role": roles[key]}))
        return pd.concat(tables, ignore_index=True)

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row per head and query: the key with most attention, and the attention to BOS and to each role, summed
        over its tokens. Of one prompt there is no interval."""
        same = ["head", "layer", "index", "query", "query_token"]
        best = table.loc[table.groupby(same, sort=False)["attention"].idxmax()]
        best = best.rename(columns={"key": "looks_at", "key_token": "token"})[[*same, "looks_at", "token", "attention"]]
        found = best.set_index(same)
        found["to_bos"] = table[table["key"] == 0].set_index(same)["attention"]
        for role in [r for r in dict.fromkeys(table["role"]) if r]:
            to = table[table["role"] == role].groupby(same, sort=False)["attention"].sum()
            found[f"to_{role}"] = to.reindex(found.index, fill_value=0.0)
        return found.reset_index()

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """`probes.picture_plot.plot`: rows of heads from one query, maps of query × key for several."""
        return plot(table, title)


def _only(prompts: "Aligned") -> tuple[str, dict[str, tuple[int, ...]]]:
    """Text and role positions of the one prompt."""
    if len(prompts.prompts) != 1:
        raise InputError(f"a picture shows one prompt, not {len(prompts.prompts)}; choose one (attention.choose)")
    return prompts.prompts[0].text, prompts.positions[0]


def picture(
    model: Any,
    prompt: "str | Aligned",
    heads: str | Sequence[str] | Sequence[Head] | None = None,
    query: str | int | None = None,
    *,
    tokenizer: Any = None,
    edits: Any = None,
) -> "pd.DataFrame":
    """Attention of one prompt: a row per head, query and key; columns as in `Picture.read`, attention in 0 to 1.

    heads: `Head`s, or what the head grammar knows without scores (`models.head_spec`); None for all. With a query (a
    word or a position), or without heads, attention from that one token; with heads alone, from every token. Runs under
    `edits` if given. Raises `InputError` as `Picture.plan` and `parse_heads`.
    """
    from streamscope.probes.prompts.alignment import check_tokenizer

    chosen = heads if heads is not None else "all"
    if isinstance(chosen, str) or not all(isinstance(head, Head) for head in chosen):
        chosen = parse_heads(chosen, model.cfg.n_layers, model.cfg.n_heads)  # type: ignore[arg-type]
    every = heads is not None and query is None
    probe = Picture(heads=tuple(chosen), query=query, every_query=every, n_ctx=model.cfg.n_ctx)  # type: ignore[arg-type]
    return measure(model, probe, prompt, edits=edits, tokenizer=check_tokenizer(model, tokenizer))


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.picture`."""

    text: str | None = None
    """The text to look at; default: a prompt of the suite."""
    prompt: AnyInt | str | None = None
    """Which prompt of the suite: its place, from 0, or its id. Default: the first."""
    heads: tuple[str, ...] = ()
    """L2.H3, L2.*, all, top3:SCORE of pds (ranked on the suite), induction, previous, first, duplicate. Default:
    all heads, from one token."""
    query: AnyInt | str | None = None
    """The token to look from: a word of the text, or a position (0 is BOS)."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)
    if options.text is not None and options.prompt is not None:
        raise InputError("--prompt chooses a prompt of the suite, --text gives your own; leave one out")

    names = score_names(options.heads)
    if strange := sorted(names - set(SCORES)):
        raise unknown("head score", strange[0], list(SCORES))

    from html import escape

    from streamscope.probes.prompts import align, check_tokenizer, load_suite

    run, model = open_run(options)
    tokenizer, cfg, suite, aligned = check_tokenizer(model), model.cfg, None, None
    if options.text is None or "pds" in names:
        suite = load_suite(options.suite, n=options.n, seed=options.seed)
        aligned = align(suite, tokenizer, cfg.n_ctx)
    scores = {name: _scores(model, tokenizer, name, aligned) for name in names}
    heads = parse_heads(options.heads or ("all",), cfg.n_layers, cfg.n_heads, scores)
    every = bool(options.heads) and options.query is None
    probe = Picture(heads=tuple(heads), query=options.query, every_query=every, n_ctx=cfg.n_ctx)
    prompt = options.text if options.text is not None else _prompt(suite, aligned, options.prompt)
    table = measure(model, probe, prompt, tokenizer=tokenizer)
    name, text = ("", prompt) if isinstance(prompt, str) else (f", {prompt.prompts[0].id}", prompt.prompts[0].text)
    _print(probe.summarize(table), f"{run}{name}: {text!r}", every)
    short = text if len(text) <= 100 else text[:99] + "…"
    figure = plot(table, f"{escape(run + name)}<br><sub>{escape(short)}</sub>")
    write_results(options, {"": (table, UNITS)}, figure, heads=list(options.heads), text=text, prompt=name[2:])


def _prompt(suite: Any, aligned: Any, which: int | str | None) -> "Aligned":
    """The prompt of the suite by place or id."""
    from streamscope.probes.attention import choose

    ids = [p.id for p in suite.prompts]
    if isinstance(which, int) and not 0 <= which < len(ids):
        raise InputError(f"--prompt {which}: {suite.name} has the prompts 0 to {len(ids) - 1}")
    name = which if isinstance(which, str) else ids[which or 0]
    if name not in ids:
        raise unknown(f"prompt of {suite.name}", name, ids)
    if name in (reasons := dict(aligned.filtered)):
        raise InputError(f"prompt {name!r} cannot be aligned with this model: {reasons[name]}; choose another")
    return choose(aligned, [[p.id for p in aligned.prompts].index(name)])


def _scores(model: Any, tokenizer: Any, name: str, aligned: Any) -> dict[Head, float]:
    """PDS on the suite, or a score by position on random sequences (`probes.heads`)."""
    from streamscope.probes.heads import Heads
    from streamscope.probes.heads.measure import summary as by_position
    from streamscope.probes.pds.measure import summary

    if name == "pds":
        found = summary(model, aligned, tokenizer).rename(columns={"pds": "mean"})
    else:
        by_place = Heads(length=min(24, (model.cfg.n_ctx - 1) // 2))
        found = by_position(measure(model, by_place, [], tokenizer=tokenizer))
        found = found[found["score"] == name]
    rows = zip(found["layer"], found["index"], found["mean"], strict=True)
    return {Head(int(layer), int(index)): float(value) for layer, index, value in rows}


def _print(summary: "pd.DataFrame", title: str, every: bool) -> None:
    """What each head looks at, from one query; or, a column per head, from every query."""
    from rich.markup import escape

    print(title)

    def told(piece: str, place: int) -> str:
        return escape(repr(piece)) if place else "BOS"

    token = [told(*pair) for pair in zip(summary["query_token"], summary["query"], strict=True)]
    seen = [f"{told(t, k)} {k}" for t, k in zip(summary["token"], summary["looks_at"], strict=True)]
    if every:
        cells = [f"{t} {a:.2f}" for t, a in zip(seen, summary["attention"], strict=True)]
        wide = summary.assign(cells=cells, read=token).pivot(index=["query", "read"], columns="head", values="cells")
        order = list(dict.fromkeys(summary["head"]))
        show(wide[order].reset_index(), "from every token: the key with most attention, its position and share")
        return
    columns = summary.assign(looks_at=seen).drop(columns=["layer", "index", "query", "query_token", "token"])
    show(columns, f"from {token[0]}, token {summary['query'].iloc[0]}: the key with most attention, its share")


if __name__ == "__main__":
    command(main)
