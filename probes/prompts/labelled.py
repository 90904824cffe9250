"""Labelled positions in texts, for probes that learn to read a label from an activation."""

from dataclasses import dataclass
from typing import get_args

from streamscope.models.errors import unknown
from streamscope.models.text.stories import labelled
from streamscope.probes.contract import Grouping, LabelTask


@dataclass(frozen=True, kw_only=True)
class Example:
    """A labelled position: the last token of `text[start:end]`."""

    text: str
    start: int
    end: int
    label: str
    group: str
    """Cases that depend on each other: a story, a pair, a word."""
    word: str
    """The word type that a control task labels at random."""


def story_examples(task: LabelTask, stories: int, *, groups: Grouping = "story", seed: int = 2) -> list[Example]:
    """Labelled positions of the built-in corpus, held-out combinations (`models.text.stories.labelled`).

    antecedent: at a pronoun that a causal model can resolve, which of its two candidates it means, the first or the
    second mentioned; always saying "second" is the recency rule. gender, number: at the mention of the antecedent
    nearest before, whether a later pronoun calls it he or she, single or group. Groups are stories, or antecedents:
    then no antecedent is on both sides. The word type is the antecedent. Texts begin at the paragraph of the first
    candidate, so that short contexts hold them. Raises `InputError` for an unknown task or grouping.
    """
    for what, name, known in (("task", task, get_args(LabelTask)), ("grouping", groups, get_args(Grouping))):
        if name not in known:
            raise unknown(what, name, list(known))
    found = []
    for i, one in enumerate(labelled(seed, stories, held_out=True)):
        for case in one.cases:
            word = one.text[case.antecedent.start : case.antecedent.end].lower()
            if task == "antecedent" and len(case.candidates) == 2 and case.cue_before:
                at, label = case.pronoun, "first" if case.candidates[0] == case.antecedent else "second"
            elif case.category == task:
                at, label = case.antecedent, case.relation
            else:
                continue
            cut = one.text.rfind("\n", 0, case.candidates[0].start) + 1
            group = f"story {i}" if groups == "story" else word
            start, end = at.start - cut, at.end - cut
            found.append(Example(text=one.text[cut:], start=start, end=end, label=label, group=group, word=word))
    return found
