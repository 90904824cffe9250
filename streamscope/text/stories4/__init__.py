"""Version 4 of the built-in stories: three times the words, reserved words for evaluation, and repeating text.

    python -m streamscope.text.stories4 --n 3 --seed 0           # three stories with their cases marked
    python -m streamscope.text.stories4 --n 20000 --stats        # the table of the data card

`story(seed, index, stage, held_out)` is a pure function of its arguments on every machine. A story is a text of repeats
(`repeats`), with a probability that falls with `stage`, or else has passages with labelled pronouns (`passages`, and
those of version 3), in an evening of tales or between the stages of a plot. See `datasets/stories/README.md`.
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
