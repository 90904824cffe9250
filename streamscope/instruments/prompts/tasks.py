"""Suites as tasks: how probable is the answer, and how much more probable than the foil?

    task = load_task("capitalization", tokenizer, n_ctx)       a suite, a JSONL file, or FORMAT:PATH
    task.cases                                                 one row per case that can be scored
    task.reads                                                 what to run; `task.scores` makes cases of the reads

Two rules, one per kind of source:

- token: a prompt with continuations. Both texts are cut into tokens; the first token where answer and foil differ
  decides, and the tokens before it are given: P = p(answer's token | text and given tokens), log-odds
  = log p(answer's token) − log p(foil's token) there. What follows the first differing token does not count.
- sentence: pairs of whole sentences (BLiMP, Winograd schemas and WinoBias with the mention in place of blank or
  pronoun). log-odds = Σ log p of the good sentence's tokens − that of the bad one's, in nats, from the first token
  where they differ (what stands before cancels); P = σ(log-odds), the good sentence's share of the two.

A case that cannot be scored is filtered and counted with its reason.
"""

import hashlib
from collections import Counter, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.data import Data, Splittable, Tasks, check_tokenizer
from streamscope.instruments.prompts import check_task, load_suite
from streamscope.instruments.prompts.alignment import LONG, none_left
from streamscope.instruments.prompts.loaders import PAIRS, SentencePair, SentencePairs
from streamscope.instruments.prompts.suite import Suite, units
from streamscope.instruments.stats.estimators import read_clusters
from streamscope.instruments.stats.held_out import sides_of, unit_of
from streamscope.text.tokenizer import Tokenizer

Rule = Literal["token", "sentence"]
Filtered = list[tuple[str, str]]
MERGED = "a continuation does not start a new token"
SAME = "answer and foil differ in no token"
FIRST = "the sentences differ in their first token, and no BOS stands before it"
NONE = "no answer and foil"
CASES = ["id", "pair", "cluster", "category", "relation", "order", "answer", "foil", "given", "cut"]


Reads = namedtuple("Reads", ("tokens", "positions", "ids", "cases", "sides"))
"""Rows for `answer_log_probs`: row r asks for ids[r], the tokens of answer and foil, after
tokens[r][: positions[r] + 1], and belongs to cases[r]; sides [reads, 2]: whether it counts for the answer, the foil."""


@dataclass(frozen=True)
class Task:
    """The cases of a suite that a tokenizer can score."""

    name: str
    source: str
    rule: Rule
    cases: pd.DataFrame
    """id, pair, cluster (the unit of inference, with the words that cases share), category, relation, order, answer,
    foil, given (tokens given), cut (whether answer or foil go on behind the token that is scored)."""
    reads: Reads
    filtered: Filtered
    """(id, reason) of the cases left out."""

    def only(self, rows: Sequence[int]) -> "Task":
        places, reads = {old: new for new, old in enumerate(rows)}, self.reads
        kept = [i for i, case in enumerate(reads.cases) if case in places]
        selection = Reads(
            [reads.tokens[i] for i in kept], [reads.positions[i] for i in kept], [reads.ids[i] for i in kept],
            np.array([places[reads.cases[i]] for i in kept], int), reads.sides[kept],
        )  # fmt: skip
        return replace(self, cases=self.cases.iloc[list(rows)].reset_index(drop=True), reads=selection)

    def scores(self, log_p: np.ndarray) -> dict[str, np.ndarray]:
        """`probability` (no unit) and `log_odds` (nats), each [..., cases], by the task's rule, from the
        log-probabilities [..., reads, 2] of the reads."""
        sums = np.zeros((len(self.cases), *log_p.shape[:-2], 2))
        np.add.at(sums, self.reads.cases, np.moveaxis(np.where(self.reads.sides, log_p, 0.0), -2, 0))
        log_answer, log_foil = np.moveaxis(sums, (0, -1), (-1, 0))
        odds = log_answer - log_foil
        p = np.exp(log_answer) if self.rule == "token" else 1 / (1 + np.exp(-odds))
        return {"probability": p, "log_odds": odds}

    @property
    def title(self) -> str:
        """Counts: cases, units, tokens given, what was left out."""
        n, n_given = len(self.cases), int((self.cases["given"] > 0).sum())
        clusters = read_clusters(self.cases["cluster"], n)
        kinds = "" if clusters.shared is None else f", 95 % for new words ({clusters.count} of a kind or more)"
        independent = counted(self.cases["cluster"].map(unit_of).nunique(), "unit")
        text = f"{self.name}: {counted(n, 'case')} in {independent}{kinds}"
        if self.rule == "sentence":
            text += ", whole sentences: P is the good one's share of the two"
        elif n_given:
            text += f", {n_given} with tokens given"
        if cut := int(self.cases["cut"].sum()):
            text += f", {cut} of them by one token of a longer answer or foil"
        return text + "".join(f", {k} left out: {reason}" for reason, k in Counter(w for _, w in self.filtered).items())


def load_task(name: str, tokenizer: Tokenizer, n_ctx: int | None = None) -> Task:
    """A bundled suite, a JSONL file, FORMAT:PATH of prompts with continuations, or winobias, wsc273, blimp:PATH."""
    check_task(name)
    form, colon, path = name.partition(":")
    if colon and form in PAIRS:
        return sentence_task(PAIRS[form](path), tokenizer, n_ctx)
    return token_task(load_suite(name), tokenizer, n_ctx)


def load_tasks(names: Sequence[str], tokenizer: Tokenizer, n_ctx: int | None = None) -> list[Task]:
    """`load_task` of each name, once; `InputError` for none and for two tasks of one name."""
    if not names:
        raise InputError("give at least one task, as capitalization")
    tasks = [load_task(name, tokenizer, n_ctx) for name in dict.fromkeys(names)]
    if duplicates := [name for name, k in Counter(task.name for task in tasks).items() if k > 1]:
        raise InputError(f"two tasks are called {duplicates[0]!r}; rename one of the files")
    return tasks


def token_task(suite: Suite, tokenizer: Tokenizer, n_ctx: int | None = None) -> Task:
    """The rule "token" over the prompts of a suite."""
    texts = [(p.text, p.text + str(p.coherent), p.text + str(p.incoherent)) for p in suite.prompts]
    rows = tokenizer.encode_batch([text for three in texts for text in three])
    kept_rows, filtered = list[tuple[Any, ...]](), list(suite.skipped)
    for prompt, prefix, answer, foil in zip(suite.prompts, rows[::3], rows[1::3], rows[2::3], strict=True):
        n = common_prefix(answer, foil)
        if prompt.coherent is None:
            reason = NONE
        elif answer[: len(prefix)] != prefix or foil[: len(prefix)] != prefix:
            reason = MERGED
        elif n >= min(len(answer), len(foil)):
            reason = SAME
        elif n_ctx is not None and n > n_ctx:
            reason = LONG
        else:
            cut = max(len(answer), len(foil)) > n + 1
            kept_rows.append((prompt, n - len(prefix), cut, answer[:n], n - 1, (answer[n], foil[n])))
            continue
        filtered.append((prompt.id, reason))
    _require(suite.name, kept_rows, filtered, n_ctx)
    prompts, given_counts, cuts, tokens, positions, ids = map(list, zip(*kept_rows, strict=True))
    cases = pd.DataFrame(
        [(p.id, p.pair or "", unit, p.category, p.relation or "", p.order or "", p.coherent, p.incoherent, n, cut)
         for p, unit, n, cut in zip(prompts, units(prompts), given_counts, cuts, strict=True)], columns=CASES,
    )  # fmt: skip
    reads = Reads(tokens, positions, ids, np.arange(len(kept_rows)), np.ones((len(kept_rows), 2), bool))
    return Task(suite.name, suite.source, "token", cases, reads, filtered)


def sentence_task(pairs: SentencePairs, tokenizer: Tokenizer, n_ctx: int | None = None) -> Task:
    """The rule "sentence" over pairs of sentences."""
    rows = tokenizer.encode_batch([text for p in pairs.pairs for text in (p.good, p.bad)])
    kept_pairs, reads, filtered = list[tuple[SentencePair, int]](), list[tuple[Any, ...]](), list(pairs.skipped)
    for pair, good, bad in zip(pairs.pairs, rows[::2], rows[1::2], strict=True):
        n, longest = common_prefix(good, bad), max(len(good), len(bad))
        if n >= longest or not n or (n_ctx is not None and longest > n_ctx):
            filtered.append((pair.id, SAME if n >= longest else LONG if n else FIRST))
            continue
        for sentence, sides in ((good, (True, False)), (bad, (False, True))):
            ends = range(n, len(sentence))
            reads += [(sentence[:end], end - 1, (sentence[end], sentence[end]), len(kept_pairs), sides) for end in ends]
        kept_pairs.append((pair, n - 1))
    _require(pairs.name, kept_pairs, filtered, n_ctx)
    cases = pd.DataFrame(
        [(p.id, "", (p.cluster or p.id, *p.words) if p.words else p.cluster or p.id, p.category, "", "", p.good, p.bad,
          n, False) for p, n in kept_pairs], columns=CASES,
    )  # fmt: skip
    tokens, positions, ids, owners, sides_read = map(list, zip(*reads, strict=True))
    all_reads = Reads(tokens, positions, ids, np.array(owners), np.array(sides_read))
    return Task(pairs.name, pairs.source, "sentence", cases, all_reads, filtered)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _require(name: str, kept_rows: Sequence[Any], filtered: Filtered, n_ctx: int | None) -> None:
    if not kept_rows:
        raise InputError(f"no case of {name!r} can be scored: {none_left(filtered, 'cases', n_ctx)}")


@dataclass(frozen=True)
class OpenTasks(Splittable):
    """Tasks with the cases that one model's tokenizer and context can score."""

    kind: ClassVar[type[Data]] = Tasks
    tasks: list[Task]
    tokenizer: Any

    @staticmethod
    def units(task: Task) -> pd.DataFrame:
        """unit (its id and a hash of answer and foil, the same in every model), cluster and kind of every case."""
        cases = task.cases
        names = [
            f"{name}:{hashlib.sha1(f'{answer} | {foil}'.encode()).hexdigest()[:10]}"
            for name, answer, foil in zip(cases["id"], cases["answer"], cases["foil"], strict=True)
        ]
        return cases[["cluster", "category", "relation", "order"]].assign(unit=names)

    def _half(self, side: int, by: str) -> "OpenTasks":
        sides = [sides_of(task.cases, by, task.name) == side for task in self.tasks]
        tasks = [task.only(np.flatnonzero(rows).tolist()) for task, rows in zip(self.tasks, sides, strict=True)]
        return replace(self, tasks=tasks)

    def title(self) -> str:
        return "; ".join(task.title for task in self.tasks)

    def about(self) -> dict[str, Any]:
        return {task.name: [task.source, task.title] for task in self.tasks}


def open_tasks(spec: Tasks, model: Any) -> OpenTasks:
    """The tasks with their cases in the model's tokens."""
    tokenizer = check_tokenizer(model)
    return OpenTasks(load_tasks(spec.tasks, tokenizer, model.config.n_ctx), tokenizer)
