"""From characters to tokens: where the roles of a prompt lie for one tokenizer.

- the positions of a role are all tokens that overlap its characters;
- attention TO a role is the sum over its positions: attention is a distribution over positions, so the sum is the mass
  on the word, however the tokenizer cuts it;
- attention FROM the query is that of its LAST position: a causal model has read the whole pronoun only there.

Prompts that a tokenizer or a context cannot serve are filtered, each with its reason, never dropped in silence. Those
whose continuations alone cannot be compared stay, without continuations: attention to roles does not read them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.suite import Prompt, Suite

if TYPE_CHECKING:
    import streamscope.text.tokenizer

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
        prompts = tuple(self.prompts[i] for i in rows)
        ids = {prompt.id for prompt in prompts}
        return replace(
            self, prompts=prompts, tokens=[self.tokens[i] for i in rows], positions=[self.positions[i] for i in rows],
            continuations=[self.continuations[i] for i in rows],
            unscored=[(name, reason) for name, reason in self.unscored if name in ids],
        )  # fmt: skip

    def scoring(self) -> str:
        """For a title: how many prompts have no continuations to compare, and of how many only a first token counts."""
        pairs = [pair for pair in self.continuations if pair is not None]
        notes = [f"{n} left out: {reason}" for reason, n in Counter(reason for _, reason in self.unscored).items()]
        if none := len(self.continuations) - len(pairs) - len(self.unscored):
            notes.append(f"{none} without continuations")
        if cut := sum(len(a) + len(b) > 2 for a, b in pairs):
            notes.append(f"{cut} of {len(pairs)} by the first token of a longer continuation")
        return "".join(f", {note}" for note in notes)

    def pairs(self) -> list[tuple[int, int]]:
        """Indices (target first, target last) of the pairs with both prompts kept."""
        index = {(p.pair, p.order): i for i, p in enumerate(self.prompts) if p.pair is not None}
        first = [(pair, i) for (pair, order), i in index.items() if order == "target_first"]
        return [(i, index[pair, "target_last"]) for pair, i in first if (pair, "target_last") in index]


def align(suite: Suite, tokenizer: "streamscope.text.tokenizer.Tokenizer", n_ctx: int | None = None) -> Aligned:
    """Token positions of every role, by the rules of this module; `InputError` if no prompt is left.

    n_ctx is the model's context in tokens, BOS included; None for no limit."""
    kept_rows: list[tuple[Any, ...]] = []
    filtered: list[tuple[str, Reason]] = []
    unscored: list[tuple[str, Reason]] = []
    for prompt in suite.prompts:
        ids, spans = tokenizer.spans(prompt.text)
        role_tokens = {  # positions of the tokens with at least one of the characters; BOS covers none
            role: tuple(i for i, (first, last) in enumerate(spans) if max(first, start) < min(last, end))
            for role, (start, end) in prompt.roles.items()
        }
        if reason := _unfit(len(ids), n_ctx, role_tokens):
            filtered.append((prompt.id, reason))
            continue
        pair, unscored_reason = _continuations(prompt, ids, tokenizer)
        if unscored_reason:
            unscored.append((prompt.id, unscored_reason))
        kept_rows.append((prompt, ids, role_tokens, pair))
    if not kept_rows:
        raise InputError(f"no prompt of {suite.name!r} can be aligned: {none_left(filtered, 'prompts', n_ctx)}")
    prompts, tokens, positions, continuations = map(list, zip(*kept_rows, strict=True))
    pair_sizes = Counter(p.pair for p in prompts)
    dropped = tuple(p for p in suite.pairs if pair_sizes[p] < 2)
    return Aligned(tuple(prompts), tokens, positions, continuations, filtered, dropped, unscored)


def none_left(filtered: Sequence[tuple[str, str]], noun: str, n_ctx: int | None) -> str:
    """Why no prompt or case is left, how many each reason took, and what to use instead."""
    counts = Counter(reason for _, reason in filtered)
    parts = [
        f"{reason}{f' of {n_ctx} tokens' if reason == LONG else ''} ({n:,} of {len(filtered):,} {noun})"
        for reason, n in counts.most_common()
    ]
    longer = "a model with a longer context (--scale zoo has 128 tokens), or " if LONG in counts else ""
    return f"{', '.join(parts) or 'it is empty'}; use {longer}another suite"


def _continuations(
    prompt: Prompt, ids: list[int], tokenizer: Any
) -> tuple[tuple[list[int], list[int]] | None, Reason | None]:
    """Ids that each continuation adds to those of the text; or None, and for some why they cannot be compared."""
    if prompt.coherent is None or prompt.incoherent is None:
        return None, None
    longer = tokenizer.encode_batch([prompt.text + prompt.coherent, prompt.text + prompt.incoherent])
    first, second = (row[len(ids) :] if row[: len(ids)] == ids else [] for row in longer)
    if not (first and second):
        return None, "a continuation does not start a new token"
    if first[0] == second[0]:
        return None, "the continuations start with the same token"
    return (first, second), None


def _unfit(length: int, n_ctx: int | None, role_tokens: dict[str, tuple[int, ...]]) -> Reason | None:
    if n_ctx is not None and length > n_ctx:
        return LONG
    if not all(role_tokens.values()):
        return "a role holds no token"
    if len(set().union(*role_tokens.values())) < sum(map(len, role_tokens.values())):
        return "two roles share a token"
    if any(token_positions[-1] > role_tokens["query"][-1] for token_positions in role_tokens.values()):
        return "a role comes after the query, out of a causal model's sight"
    return None


def require_pairs(aligned: Aligned) -> list[tuple[int, int]]:
    """`aligned.pairs()`; `InputError` if there is none, for measures that compare the two orders (PDS, stability)."""
    pairs = aligned.pairs()
    if not pairs:
        cause = f"all {len(aligned.dropped_pairs)} were filtered" if aligned.dropped_pairs else "the suite has none"
        raise InputError(
            f"this measure compares the two orders of a minimal pair, but {cause}; use a suite with pairs, as competing"
        )
    return pairs


def check_tokenizer(model: Any, tokenizer: Any = None) -> "streamscope.text.tokenizer.Tokenizer":
    """The model's own tokenizer (of a `TransformerBridge`: wrapped), or `tokenizer` if the model can read its ids."""
    from streamscope.text.tokenizer import Tokenizer

    own_tokenizer, d_vocab = getattr(model, "tokenizer", None), int(model.cfg.d_vocab)
    if own_tokenizer is not None and not isinstance(own_tokenizer, Tokenizer):
        own_tokenizer = Tokenizer.from_transformers(own_tokenizer).padded_to(d_vocab)
    if own_tokenizer is None and tokenizer is None:
        raise InputError("the model has no tokenizer; give the one it was trained with")
    if own_tokenizer is not None and tokenizer is not None and own_tokenizer.sha256 != tokenizer.sha256:
        raise InputError(
            f"{tokenizer!r} is not the model's tokenizer {own_tokenizer!r}: its ids mean other words; leave it out"
        )
    use: Tokenizer = own_tokenizer if own_tokenizer is not None else tokenizer
    # A model may have more embeddings than its own tokenizer has words (a padded vocabulary); of a stranger's
    # tokenizer the size is all there is to compare.
    if use.d_vocab > d_vocab or (own_tokenizer is None and use.d_vocab != d_vocab):
        raise InputError(f"the tokenizer has {use.d_vocab} words, the model {d_vocab}; give its own")
    return use


def align_once(prompts: Suite | Aligned, tokenizer: Any) -> Aligned:
    """`prompts` in tokens; prompts that are `Aligned` already are returned unchanged."""
    return prompts if isinstance(prompts, Aligned) else align(prompts, tokenizer)
