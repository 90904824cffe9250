"""Print stories of the built-in corpus with their cases marked, or the table of the data card.

python -m streamscope.text.stories --n 3 --seed 0          # three stories with their cases marked
python -m streamscope.text.stories --n 20000 --stats       # the table of the data card
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streamscope.cli.bounds import Count, Seed
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m streamscope.text.stories`."""

    n: Count = 3
    """Number of stories."""
    seed: Seed = 0
    """Seed: 0 for training, 1 for validation, 2 for evaluation."""
    held_out: bool = False
    """Only combinations reserved for evaluation."""
    stats: bool = False
    """Print the statistics of the stories instead."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and print."""
    options = parse(Options, argv, __doc__)
    from streamscope.text.stories import labelled, marked_text, statistics

    stories = labelled(options.seed, options.n, held_out=options.held_out)
    if options.stats:
        print(statistics(list(stories)))
        return
    for i, one in enumerate(stories):
        print(f"--- story {i} of seed {options.seed} ---\n{marked_text(one)}\n")


if __name__ == "__main__":
    command(main)
