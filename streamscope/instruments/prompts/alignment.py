"""From characters to tokens: where the roles of a prompt lie for one tokenizer.

- the positions of a role are all tokens that overlap its characters;
- attention TO a role is the sum over its positions: attention is a distribution over positions, so the sum is the mass
  on the word, however the tokenizer cuts it;
- attention FROM the query is that of its LAST position: a causal model has read the whole pronoun only there.

Prompts that a tokenizer or a context cannot serve are filtered, each with its reason, never dropped in silence. Those
whose continuations alone cannot be compared stay, without continuations: attention to roles does not read them.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.data import Data, Prompts, Splittable, check_tokenizer
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.suite import Prompt, Suite, population, units

if TYPE_CHECKING:
    from streamscope.text.tokenizer import Tokenizer

Reason = Literal[
    "longer than the context",
    "a role holds no token",
    "two roles share a token",
    "a role comes after the query, out of a causal model's sight",
    "a continuation does not start a new token",
    "the continuations start with the same token",
]

LONG: Reason = "longer than the context"


@dataclass(frozen=True)
class Aligned:
    """The prompts of a suite that a tokenizer can serve. Lists run in parallel, one entry per prompt kept."""

    prompts: tuple[Prompt, ...]
    tokens: list[list[int]]
    """Ids, BOS first, not padded."""
    positions: list[dict[str, tuple[int, ...]]]
    """Role -> token positions, counted from 0 (BOS)."""
    continuations: list[tuple[list[int], list[int]] | None]
    """Ids of the coherent and the incoherent continuation; their first ids differ. None: nothing to compare."""
    filtered: list[tuple[str, Reason]]
    """(id, reason) of the prompts left out."""
    dropped_pairs: tuple[str, ...]
    """Pairs that lost one or both of their prompts."""
    unscored: list[tuple[str, Reason]] = field(default_factory=list)
    """(id, reason) of the prompts whose continuations cannot be compared."""

    @property
    def queries(self) -> list[int]:
        """Per prompt, the position that attention is read from: the last of the query."""
        return [roles["query"][-1] for roles in self.positions]

    def only(self, rows: Sequence[int]) -> "Aligned":
        prompts = [self.prompts[i] for i in rows]
        ids = set(map(attrgetter("id"), prompts))
        return replace(
            self, prompts=tuple(prompts), tokens=[self.tokens[i] for i in rows],
            positions=[self.positions[i] for i in rows], continuations=[self.continuations[i] for i in rows],
            unscored=[(name, reason) for name, reason in self.unscored if name in ids],
        )  # fmt: skip

    def scoring(self) -> str:
        """For a title: how many prompts have no continuations to compare, and of how many only a first token counts."""
        pairs = [pair for pair in self.continuations if pair is not None]
        notes = [f"{n} left out: {reason}" for reason, n in Counter(dict(self.unscored).values()).items()]
        if none := len(self.continuations) - len(pairs) - len(self.unscored):
            notes.append(f"{none} without continuations")
        if cut := sum(len(a) + len(b) > 2 for a, b in pairs):
            notes.append(f"{cut} of {len(pairs)} by the first token of a longer continuation")
        return "".join(f", {note}" for note in notes)

    def pairs(self) -> list[tuple[int, int]]:
        """Indices (target first, target last) of the pairs with both prompts kept."""
        last = {p.pair: i for i, p in enumerate(self.prompts) if p.pair is not None and p.order == "target_last"}
        return [(i, last[p.pair]) for i, p in enumerate(self.prompts) if p.order == "target_first" and p.pair in last]


def align(suite: Suite, tokenizer: "Tokenizer", n_ctx: int | None = None) -> Aligned:
    """Token positions of every role, by the rules of this module; `InputError` if no prompt is left.

    n_ctx is the model's context in tokens, BOS included; None for no limit."""
    kept_rows: list[tuple[Prompt, list[int], dict[str, tuple[int, ...]]]] = []
    filtered: list[tuple[str, Reason]] = []
    for prompt in suite.prompts:
        ids, spans = tokenizer.spans(prompt.text)
        first, last = np.array(spans).T
        positions = {}
        for role, (start, end) in prompt.roles.items():  # tokens with at least one of the characters; BOS covers none
            positions[role] = tuple(np.flatnonzero(np.maximum(first, start) < np.minimum(last, end)).tolist())
        role_tokens = [*positions.values()]
        reason: Reason | None = None
        if n_ctx is not None and len(ids) > n_ctx:
            reason = LONG
        elif () in role_tokens:
            reason = "a role holds no token"
        elif len(set().union(*role_tokens)) < sum(map(len, role_tokens)):
            reason = "two roles share a token"
        elif max(map(max, role_tokens)) > positions["query"][-1]:
            reason = "a role comes after the query, out of a causal model's sight"
        if reason is None:
            kept_rows.append((prompt, ids, positions))
        else:
            filtered.append((prompt.id, reason))
    if not kept_rows:
        raise InputError(f"no prompt of {suite.name!r} can be aligned: {none_left(filtered, 'prompts', n_ctx)}")
    prompts, tokens, positions_of = map(list, zip(*kept_rows, strict=True))
    texts = [p.text + text for p in prompts if p.coherent is not None for text in (p.coherent, p.incoherent)]
    longer = iter(tokenizer.encode_batch(texts))
    continuations: list[tuple[list[int], list[int]] | None] = []
    unscored: list[tuple[str, Reason]] = []
    for prompt, ids in zip(prompts, tokens, strict=True):
        continuations.append(None)
        if prompt.coherent is None:
            continue
        a, b = next(longer), next(longer)
        starts, n = a[: len(ids)] == b[: len(ids)] == ids, len(ids)
        if not starts or len(a) == n or len(b) == n:
            unscored.append((prompt.id, "a continuation does not start a new token"))
        elif a[n] == b[n]:
            unscored.append((prompt.id, "the continuations start with the same token"))
        else:
            continuations[-1] = a[n:], b[n:]
    pair_sizes = Counter([p.pair for p in prompts])
    dropped = tuple([p for p in suite.pairs if pair_sizes[p] < 2])
    return Aligned(tuple(prompts), tokens, positions_of, continuations, filtered, dropped, unscored)


def none_left(filtered: Sequence[tuple[str, str]], noun: str, n_ctx: int | None) -> str:
    """Why no prompt or case is left, how many each reason took, and what to use instead."""
    counts = Counter([reason for _, reason in filtered])
    parts = []
    for reason, n in counts.most_common():
        limit = f" of {n_ctx} tokens" if reason == LONG else ""
        parts.append(f"{reason}{limit} ({n:,} of {len(filtered):,} {noun})")
    longer = "a model with a longer context (--scale zoo has 128 tokens), or " if LONG in counts else ""
    return f"{', '.join(parts) or 'it is empty'}; use {longer}another suite"


def require_pairs(aligned: Aligned) -> list[tuple[int, int]]:
    """`aligned.pairs()`; `InputError` if there is none, for measures that compare the two orders (PDS, stability)."""
    pairs = aligned.pairs()
    if not pairs:
        cause = f"all {len(aligned.dropped_pairs)} were filtered" if aligned.dropped_pairs else "the suite has none"
        raise InputError(
            f"this measure compares the two orders of a minimal pair, but {cause}; use a suite with pairs, as competing"
        )
    return pairs


def align_once(prompts: Suite | Aligned, tokenizer: Any) -> Aligned:
    """`prompts` in tokens; prompts that are `Aligned` already are returned unchanged."""
    return prompts if isinstance(prompts, Aligned) else align(prompts, tokenizer)


def prompt_table(prompts: Sequence[Prompt]) -> pd.DataFrame:
    """A row per prompt: id, pair, category, relation, order, and its unit as cluster; "" for what it has not."""
    rows = [(p.id, p.pair or "", p.category, p.relation or "", p.order or "") for p in prompts]
    frame = pd.DataFrame(rows, columns=["id", "pair", "category", "relation", "order"])
    return frame.assign(cluster=pd.Series(units(prompts), dtype=object))


@dataclass(frozen=True)
class OpenPrompts(Splittable):
    """A suite in one model's tokens; `suite` is None where the prompts were given in tokens already."""

    kind: ClassVar[type[Data]] = Prompts
    aligned: Aligned
    tokenizer: Any
    suite: Suite | None = None

    def title(self) -> str:
        kept, suite = self.aligned.prompts, self.suite
        text = counted(len(kept), "prompt")
        if suite is not None:
            text = f"{suite.name}: {len(kept)} of {counted(len(suite.prompts), 'prompt')}"
        for reason, n in self.about()["left_out"].items():
            text += f", {n} left out: {reason}"
        if suite is not None and suite.skipped:
            text += f", {len(suite.skipped)} entries skipped"
        return f"{text}; {population(kept)}"

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All prompts of the suite, those that this tokenizer cannot serve as well."""
        return (self.aligned if self.suite is None else self.suite).prompts

    def cases(self) -> pd.DataFrame:
        """Pair, cluster, category, relation and order of all prompts: halves are the same in every tokenizer."""
        return prompt_table(self.prompts)

    def only(self, rows: Sequence[int]) -> "OpenPrompts":
        if self.suite is None:
            return replace(self, aligned=self.aligned.only(rows))
        prompts = tuple(self.suite.prompts[i] for i in rows)
        ids = {prompt.id for prompt in prompts}
        kept_rows = [i for i, prompt in enumerate(self.aligned.prompts) if prompt.id in ids]
        if not kept_rows:
            raise InputError(f"{self.suite.name}: the tokenizer serves no prompt of this half; give more prompts")
        left_out = [(name, reason) for name, reason in self.aligned.filtered if name in ids]
        pairs = tuple(pair for pair in self.aligned.dropped_pairs if pair in {prompt.pair for prompt in prompts})
        aligned = replace(self.aligned.only(kept_rows), filtered=left_out, dropped_pairs=pairs)
        return replace(self, aligned=aligned, suite=replace(self.suite, prompts=prompts))

    @cached_property
    def _texts(self) -> dict[str, str]:
        return dict(map(attrgetter("id", "text"), self.aligned.prompts))

    def unit(self, *ids: str) -> str:
        """A name that only the same prompts have: the first id and a hash of the texts."""
        return f"{ids[0]}:{hashlib.sha1(' | '.join(map(self._texts.__getitem__, ids)).encode()).hexdigest()[:10]}"

    def about(self) -> dict[str, Any]:
        source = "given" if self.suite is None else self.suite.source
        left_out = Counter(dict(self.aligned.filtered).values())
        return {"suite": source, "prompts": len(self.aligned.prompts), "left_out": dict(left_out)}


def given_prompts(prompts: Any, model: Any, tokenizer: Any = None) -> OpenPrompts:
    """A `Suite`, or what is `Aligned` already, opened for a model of ours or a bridge with this tokenizer."""
    tokenizer = check_tokenizer(model, tokenizer)
    return OpenPrompts(align_once(prompts, tokenizer), tokenizer, prompts if isinstance(prompts, Suite) else None)


def open_prompts(spec: Prompts, model: Any) -> OpenPrompts:
    """The suite in the model's tokens; `InputError` where its context and tokenizer serve no prompt."""
    suite, tokenizer = load_suite(spec.suite, n=spec.n, seed=spec.suite_seed), check_tokenizer(model)
    return OpenPrompts(align(suite, tokenizer, model.cfg.n_ctx), tokenizer, suite)
