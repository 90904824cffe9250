"""Print stories of version 4 of the built-in corpus, or their statistics.

python -m streamscope.text.stories4 --n 3 --seed 0 --stage 0
python -m streamscope.text.stories4 --n 20000 --stats
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from streamscope.cli.bounds import Count, Seed, Share
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m streamscope.text.stories4`."""

    n: Count = 3
    """Number of stories."""
    seed: Seed = 0
    """Seed: 0 for training, 1 for validation, 2 for evaluation."""
    stage: Share = 1.0
    """Stage of the curriculum, from 0 (many short repeats of few words) to 1 (few long repeats of all words)."""
    held_out: Literal["", "combinations", "words"] = ""
    """Stories for evaluation: reserved combinations of words, or reserved words."""
    stats: bool = False
    """Print the statistics of the stories instead."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and print."""
    options = parse(Options, argv, __doc__)
    from streamscope.text.stories import marked_text
    from streamscope.text.stories4 import labelled, statistics

    stories = labelled(options.seed, options.n, options.stage, options.held_out)
    if options.stats:
        print(statistics(list(stories)))
        return
    for i, one in enumerate(stories):
        print(f"--- story {i} of seed {options.seed}: {one.kind} ---\n{marked_text(one)}\n")


if __name__ == "__main__":
    command(main)
