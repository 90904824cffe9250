"""`python -m models.text.stories`: stories with their cases marked, or the table of the data card."""

import argparse
from collections.abc import Sequence

from streamscope.models.cli import command
from streamscope.models.errors import InputError
from streamscope.models.text import stories
from streamscope.models.text.stories import labelled, marked_text, statistics


def main(argv: Sequence[str] | None = None) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=stories.__doc__, formatter_class=raw)
    parser.add_argument("--n", type=int, default=3, help="how many stories")
    parser.add_argument("--seed", type=int, default=0, help="0 train, 1 validation, 2 evaluation")
    parser.add_argument("--held-out", action="store_true", help="only combinations reserved for evaluation")
    parser.add_argument("--stats", action="store_true", help="print the statistics of the stories instead")
    options = parser.parse_args(argv)
    if options.n < 1:
        raise InputError(f"--n must be at least 1, not {options.n}")
    found = labelled(options.seed, options.n, held_out=options.held_out)
    if options.stats:
        print(statistics(list(found)))
        return
    for i, one in enumerate(found):
        print(f"--- story {i} of seed {options.seed} ---\n{marked_text(one)}\n")


if __name__ == "__main__":
    command(main)
