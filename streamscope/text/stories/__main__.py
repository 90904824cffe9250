"""Print stories of the built-in corpus with their cases marked, or the table of the data card.

python -m streamscope.text.stories --n 3 --seed 0          # three stories with their cases marked
python -m streamscope.text.stories --n 20000 --stats       # the table of the data card
python -m streamscope.text.stories --version 4 --stage 0   # of version 4, with many repeats
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from streamscope.cli.bounds import Count, Only, Seed, Share
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m streamscope.text.stories`."""

    n: Count = 3
    """Number of stories."""
    seed: Seed = 0
    """Seed: 0 for training, 1 for validation, 2 for evaluation."""
    version: Literal[3, 4] = 3
    """3, or 4 with three times the words, reserved words and repeating text."""
    stage: Annotated[Share, Only("version", 4)] = 1.0
    """Stage of the curriculum, from 0 (many short repeats of few words) to 1 (few long repeats of all words)."""
    held_out: Literal["combinations", "words"] | None = None
    """Stories for evaluation: reserved combinations of words, or (in version 4) reserved words."""
    stats: bool = False
    """Print the statistics of the stories instead."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and print."""
    options = parse(Options, argv, __doc__)
    from streamscope.text import stories, stories4

    if options.version == 4:
        tales: Any = stories4.labelled(options.seed, options.n, options.stage, options.held_out or "")
    elif options.held_out == "words":
        raise InputError("--held-out words needs --version 4: version 3 reserves combinations only")
    else:
        tales = stories.labelled(options.seed, options.n, held_out=bool(options.held_out))
    if options.stats:
        print(stories4.statistics(list(tales)) if options.version == 4 else stories.statistics(list(tales)))
        return
    for i, one in enumerate(tales):
        kind = f": {one.kind}" if options.version == 4 else ""
        print(f"--- story {i} of seed {options.seed}{kind} ---\n{stories.marked_text(one)}\n")


if __name__ == "__main__":  # not listed as a command: `streamscope stories` is `text.stories5`
    command(main=main)
