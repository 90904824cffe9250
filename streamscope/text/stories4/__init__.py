"""Version 4 of the built-in stories: three times the words, words kept for evaluation, text that repeats itself.

    python -m streamscope.text.stories4 --n 3 --seed 0           # three stories with their cases marked
    python -m streamscope.text.stories4 --n 20000 --stats        # the table of the data card

`story(seed, index, stage, held_out)` is a pure function of its arguments, on every machine and in every process. What a
story is: with a chance that falls with `stage` a text of repeats (`repeats`), else passages whose pronouns are labelled
(`passages` and those of the older stories), in an evening of tales or between the stages of a plot. See
`datasets/stories/README.md`.
"""

from streamscope.text.stories4.story import (
    CATEGORIES,
    RELATIONS,
    SAME_KIND,
    VERSION,
    Tale,
    check_stage,
    documents,
    labelled,
    minimal_pairs,
    statistics,
    story,
)

__all__ = [
    "CATEGORIES", "RELATIONS", "SAME_KIND", "VERSION", "Tale", "check_stage", "documents", "labelled", "minimal_pairs",
    "statistics", "story",
]  # fmt: skip
