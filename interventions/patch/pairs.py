"""Clean and corrupted prompts of equal token length, aligned position by position, as patching needs them.

corrupt the suite's own corrupted texts (stories, ioi, …, a JSONL file with clean, corrupt, answers, foils)
noun    the target noun is replaced by another of the suite, everything else agrees; answer: target, foil: the other
        noun ("Tim saw a key and a box. … he used the": key against, say, spoon). A model that follows the clue and
        ignores the nouns has little to recover
order   the two orders of a minimal pair (with their articles): clean names the target first; answer: coherent, foil:
        incoherent. A model that understands both orders has little to recover

Position labels mean the same in every pair (`PLACES`), so that pairs of different lengths share a table.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Prompt, Unit, check_space, units
from streamscope.text import is_bos
from streamscope.text.tokenizer import Tokenizer

Contrast = Literal["corrupt", "noun", "order"]
PLACES = (
    "BOS", "before", "target", "first noun", "between", "distractor", "second noun", "after nouns", "query",
    "after query", "last",
)  # fmt: skip
"""In text order. `between` is between the nouns, `last` the position that predicts the answer."""
VOWELS = "aeiou"


@dataclass(frozen=True, kw_only=True)
class PatchPair:
    """Two prompts of equal length; the answers follow the clean one, the foils the corrupted one."""

    id: str
    cluster: Unit
    """The unit of inference: the two orders of a minimal pair share one."""
    clean: tuple[int, ...]
    corrupt: tuple[int, ...]
    answers: tuple[int, ...]
    """Token ids; the metric is ln Σ p(answers) − ln Σ p(foils) after the last token."""
    foils: tuple[int, ...]
    continuation: tuple[int, ...] = ()
    """All tokens of the right answer, where it is one text."""
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Label -> positions, the same in both prompts; covers every position once."""
    cut: bool = False
    """Whether an answer or a foil goes on behind the token that counts."""

    def __post_init__(self) -> None:
        if set(self.answers) & set(self.foils):
            raise InputError(f"pair {self.id!r}: answers and foils share a token")

    @property
    def last(self) -> int:
        """The position that predicts the answer."""
        return len(self.clean) - 1

    def runs(self, direction: str) -> list[tuple[int, ...]]:
        """The tokens of the run that is patched, and of the one that patches it."""
        return [self.corrupt, self.clean] if direction == "denoise" else [self.clean, self.corrupt]

    def log_odds(self, logits: Tensor) -> Tensor:
        """ln Σ p(answers) − ln Σ p(foils), in nats, of logits or log-probabilities [..., vocabulary]."""
        answers, foils = (logits[..., list(ids)].logsumexp(-1) for ids in (self.answers, self.foils))
        return answers - foils


@dataclass(frozen=True)
class Pairs:
    pairs: tuple[PatchPair, ...]
    filtered: tuple[tuple[str, str], ...] = ()

    @property
    def left_out(self) -> str:
        """ ", 3 left out: reason" for a title, and of how many pairs only a first token counts."""
        reasons = Counter(reason for _, reason in self.filtered)
        lost = "".join(f", {n} left out: {reason}" for reason, n in reasons.items())
        cut = sum(pair.cut for pair in self.pairs)
        return f"{lost}, {cut} by the first token of a longer answer or foil" if cut else lost


class Unpaired(Exception):
    """Why a prompt has no partner to compare it with."""


def make_pairs(aligned: Aligned, tokenizer: Tokenizer, contrast: Contrast) -> Pairs:
    """All pairs of a suite. Raises `InputError` if there is none."""
    prompts, names = aligned.prompts, units(aligned.prompts)
    if contrast == "order":
        partners = aligned.pairs()
        ids = [prompts[first].pair or prompts[first].id for first, _ in partners]
    else:
        partners, ids = [(i, i) for i in range(len(prompts))], [p.id for p in prompts]
    make = {"corrupt": _corrupt_pair, "noun": _noun_pair, "order": _order_pair}[contrast]
    pairs, filtered = list[PatchPair](), list[tuple[str, str]]()
    for name, (i, j) in zip(ids, partners, strict=True):
        sides = aligned.continuations[i]
        whole = tuple(sides[0]) if sides is not None else ()
        try:
            pairs.append(PatchPair(id=name, cluster=names[i], continuation=whole, **make(aligned, i, j, tokenizer)))
        except Unpaired as error:
            filtered.append((name, str(error)))
    if contrast == "order":
        filtered += [(name, "one of its prompts cannot be aligned") for name in aligned.dropped_pairs]
    if not pairs:
        reasons = Counter(reason for _, reason in filtered).most_common(1)
        reason = reasons[0][0] if reasons else "it has no minimal pairs"
        raise InputError(f"no prompt gives a clean and a corrupted text of equal length: {reason}; use other prompts")
    return Pairs(tuple(pairs), tuple(filtered))


def units_of(pairs: Sequence[PatchPair]) -> pd.DataFrame:
    """unit (the pair's id and a hash of its tokens, equal in every model) and cluster of every pair."""
    tokens = [repr((p.clean, p.corrupt, p.answers, p.foils)) for p in pairs]
    names = [f"{p.id}:{hashlib.sha1(t.encode()).hexdigest()[:10]}" for p, t in zip(pairs, tokens, strict=True)]
    return pd.DataFrame({"unit": names, "cluster": pd.Series([p.cluster for p in pairs], dtype=object)})


def choose_pairs(pairs: Pairs, n: int) -> Pairs:
    """About n pairs in whole clusters, spread evenly over the suite."""
    by_cluster: dict[Unit, list[PatchPair]] = {}
    for pair in pairs.pairs:
        by_cluster.setdefault(pair.cluster, []).append(pair)
    groups = list(by_cluster.values())
    n_groups = min(len(groups), max(1, round(n * len(groups) / len(pairs.pairs))))
    subset = [pair for k in range(n_groups) for pair in groups[k * len(groups) // n_groups]]
    return Pairs(tuple(subset), pairs.filtered)


def own_pair(tokenizer: Tokenizer, clean: str, corrupt: str, answer: str, foil: str) -> PatchPair:
    """A pair from two texts and two continuations, compared by their first tokens; every position has its own label.
    Raises `InputError` for texts of different lengths, and continuations that do not begin a new token."""
    ids, corrupt_ids = tokenizer.encode(clean), tokenizer.encode(corrupt)
    following = []
    for name, text in (("answer", answer), ("foil", foil)):
        check_space(clean, text, f"--{name}")
        longer = tokenizer.encode(clean + text)
        if longer[: len(ids)] != ids or len(longer) == len(ids):
            raise InputError(f"--{name} {text!r} does not begin a new token after the clean text; give another one")
        following.append(longer[len(ids)])
    if len(ids) != len(corrupt_ids):
        raise InputError(
            f"the clean text has {counted(len(ids), 'token')}, the corrupted {len(corrupt_ids)}; make them equal"
        )
    return PatchPair(
        id="own", cluster="own", clean=tuple(ids), corrupt=tuple(corrupt_ids), answers=(following[0],),
        foils=(following[1],),
        places={label: (p,) for p, label in enumerate(token_labels(tokenizer, ids, corrupt_ids))},
    )  # fmt: skip


def token_labels(tokenizer: Tokenizer, clean: Sequence[int], corrupt: Sequence[int]) -> list[str]:
    """One label per position: its number and token, or both tokens if the texts differ."""
    texts = zip(tokenizer.pieces(list(clean)), tokenizer.pieces(list(corrupt)), strict=True)
    return [f"{p} BOS" if is_bos(a, p) else f"{p} {a}" + (f" |{b}" if a != b else "") for p, (a, b) in enumerate(texts)]


def by_token(pairs: Sequence[PatchPair], tokenizer: Tokenizer) -> list[PatchPair]:
    """The pairs with one label per position. Raises `InputError` for different lengths."""
    lengths = {len(pair.clean) for pair in pairs}
    if len(lengths) > 1:
        raise InputError(f"--by token needs prompts of one length, these have {min(lengths)} to {max(lengths)} tokens")
    labels = [str(p) for p in range(max(lengths))]
    if len(pairs) == 1:
        labels = token_labels(tokenizer, pairs[0].clean, pairs[0].corrupt)
    return [replace(pair, places={label: (p,) for p, label in enumerate(labels)}) for pair in pairs]


def answer_tokens(
    prompt: Prompt, ids: Sequence[int], tokenizer: Tokenizer
) -> tuple[tuple[int, ...], tuple[int, ...], bool] | str:
    """(first tokens of the answers, those of the foils, whether one of these words has more tokens), or the reason why
    the two sides cannot be compared. A token that begins both an answer and a foil is left out."""
    sides = (prompt.answers or (str(prompt.coherent),), prompt.foils or (str(prompt.incoherent),))
    rows = tokenizer.encode_batch([prompt.text + continuation for side in sides for continuation in side])
    if not all(row[: len(ids)] == list(ids) and len(row) > len(ids) for row in rows):
        return "a continuation does not start a new token"
    first, n = [row[len(ids)] for row in rows], len(sides[0])
    right, wrong = dict.fromkeys(first[:n]), dict.fromkeys(first[n:])
    answers, foils = (tuple(t for t in side if t not in other) for side, other in ((right, wrong), (wrong, right)))
    if not answers or not foils:
        return "answers and foils start with the same tokens"
    return answers, foils, any(len(row) > len(ids) + 1 for row in rows)


def _corrupt_pair(aligned: Aligned, i: int, _: int, tokenizer: Tokenizer) -> dict[str, Any]:
    prompt, ids, by_role = aligned.prompts[i], aligned.tokens[i], aligned.positions[i]
    if prompt.corrupt is None:
        raise Unpaired("it has no corrupted text")
    changed = tokenizer.encode(prompt.corrupt)
    if len(changed) != len(ids):
        raise Unpaired("its corrupted text has another number of tokens")
    sides = answer_tokens(prompt, ids, tokenizer)
    if isinstance(sides, str):
        raise Unpaired(sides)
    nouns = [role for role in ("target", "distractor") if role in by_role]
    return {
        "clean": tuple(ids), "corrupt": tuple(changed), "answers": sides[0], "foils": sides[1], "cut": sides[2],
        "places": _places(by_role, len(ids), nouns, tokenizer.adds_bos),
    }  # fmt: skip


def _noun_pair(aligned: Aligned, i: int, _: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The prompt and the same one with another target noun of its relation (or category)."""
    prompt, ids, by_role = aligned.prompts[i], aligned.tokens[i], aligned.positions[i]
    continuations = aligned.continuations[i]
    if continuations is None or "target" not in by_role or "distractor" not in by_role:
        raise Unpaired("it has no continuations or no competitor")
    start, end = prompt.roles["target"]
    noun = prompt.text[start:end]
    if (prompt.coherent or "").strip() != noun:
        raise Unpaired("the answer is not the target noun")
    kind = prompt.relation or prompt.category
    same_kind = [p for p in aligned.prompts if "target" in p.roles and (p.relation or p.category) == kind]
    nouns = list(dict.fromkeys(p.text[slice(*p.roles["target"])] for p in same_kind))
    index = nouns.index(noun)
    for candidate in [*nouns[index + 1 :], *nouns[:index]]:
        if candidate.lower() in prompt.text.lower() or (candidate[0].lower() in VOWELS) != (noun[0].lower() in VOWELS):
            continue
        text = prompt.text[:start] + candidate + prompt.text[end:]
        changed, longer = tokenizer.encode_batch([text, f"{prompt.text} {candidate}"])
        is_aligned = len(changed) == len(ids) and all(
            a == b or p in by_role["target"] for p, (a, b) in enumerate(zip(ids, changed, strict=True))
        )
        if is_aligned and longer[: len(ids)] == ids and longer[len(ids)] != continuations[0][0]:
            places = _places(by_role, len(ids), ("target", "distractor"), tokenizer.adds_bos)
            return _by_first_token(ids, changed, continuations[0], longer[len(ids) :], places)
    raise Unpaired("no other noun of its relation has as many tokens")


def _order_pair(aligned: Aligned, first: int, last: int, tokenizer: Tokenizer) -> dict[str, Any]:
    ids, last_ids = aligned.tokens[first], aligned.tokens[last]
    by_role, swapped = aligned.positions[first], aligned.positions[last]
    sides = aligned.continuations[first]
    if sides is None:
        raise Unpaired("it has no continuations")
    if len(ids) != len(last_ids):
        raise Unpaired("the two orders differ in tokens")
    exchanged = {"target": "distractor", "distractor": "target", "query": "query"}
    if any(by_role[role] != swapped[other] for role, other in exchanged.items()):
        raise Unpaired("the nouns have different numbers of tokens")
    where = {"first noun": by_role["target"], "second noun": by_role["distractor"], "query": by_role["query"]}
    places = _places(where, len(ids), ("first noun", "second noun"), tokenizer.adds_bos)
    return _by_first_token(ids, last_ids, *sides, places)


def _by_first_token(
    clean: Sequence[int], corrupt: Sequence[int], right: Sequence[int], wrong: Sequence[int], places: Any
) -> dict[str, Any]:
    return {
        "clean": tuple(clean), "corrupt": tuple(corrupt), "answers": tuple(right[:1]), "foils": tuple(wrong[:1]),
        "places": places, "cut": len(right) > 1 or len(wrong) > 1,
    }  # fmt: skip


def _places(by_role: dict[str, Any], n: int, nouns: Sequence[str], bos: bool) -> dict[str, tuple[int, ...]]:
    """Every position of n under a label of `PLACES`; labels without positions are left out."""
    label_of = {p: name for name in nouns for p in by_role[name]} | {p: "query" for p in by_role["query"]}
    query = by_role["query"][-1]
    low, high = (f((min(by_role[name]) for name in nouns), default=query) for f in (min, max))
    places: dict[str, list[int]] = {}
    for p in range(n):
        zone = "before" if p < low else "between" if p < high else "after nouns" if p < query else "after query"
        is_bos_here = bos and p == 0 and p not in label_of
        label = "BOS" if is_bos_here else "last" if p == n - 1 else label_of.get(p, zone)
        places.setdefault(label, []).append(p)
    return {label: tuple(places[label]) for label in PLACES if label in places}
