"""Print stories with labelled pronouns, or what a pronoun's meaning tells about the next word.

streamscope stories --n 3 --held-out words         three stories with reserved words
streamscope stories --pays                         the table of the data card, from 20,000 stories
streamscope stories --pays --labels own.jsonl      of your own text: prompts with the roles query and target

Columns of --pays, in nats with 95 % intervals over stories: pronoun, what the antecedent tells about the word after the
pronoun; told, what the habit that the story told of it tells there (where it is told); noun, what the antecedent tells
about the noun where it comes again, which copying can gain; repeated noun, what it tells about the word after that. The
control is shuffled antecedents within a group of equal category, pronoun and previous word. bias: the first column is
too small by at most this, because there are few cases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from streamscope.cli.bounds import Count, Only, Seed
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

STORIES = 20_000  # number of stories for --pays


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `streamscope stories`."""

    n: Count | None = None
    """Number of stories; default: 3, or 20,000 with --pays."""
    seed: Seed = 0
    """Seed: 0 for training, 1 for validation, 2 for evaluation."""
    held_out: Literal["pairs", "told", "words"] | None = None
    """Stories for evaluation: of pairs of nouns that no training passage has, of nouns whose habits are told, or of
    reserved words."""
    pays: bool = False
    """Print a table of nats for each category instead."""
    labels: Annotated[Path | None, Only("pays", (True,))] = None
    """A JSONL file of prompts with the roles query and target, to measure instead of the stories."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    from streamscope.text import stories

    if options.labels is not None and (options.n, options.seed, options.held_out) != (None, 0, None):
        raise InputError("--n, --seed and --held-out choose built-in stories: leave them out with --labels")
    if not options.pays:
        for i, tale in enumerate(stories.labelled(options.seed, options.n or 3, options.held_out or "")):
            print(f"--- story {i} of seed {options.seed} ---\n{stories.marked_text(tale)}\n")
        return
    from streamscope.text.stories.pays import PLACES, clues, gain, passages_of_stories, read_passages

    tales = stories.labelled(options.seed, options.n or STORIES, options.held_out or "")
    passages = list(passages_of_stories(tales) if options.labels is None else read_passages(options.labels))
    if not passages:
        raise InputError(f"{options.labels} has no prompt with the role 'target': mark the antecedents")
    clues_at = clues(passages)
    print(f"| category | cases | {' | '.join(PLACES)} | bias |\n|---|---|{'---|' * len(PLACES)}---|")
    for category, rows in sorted(clues_at["pronoun"].items()):
        gains = {place: gain(clues_at[place][category]) for place in PLACES if clues_at[place].get(category)}
        cells = [_cell(gains[place]) if place in gains else "–" for place in PLACES]
        print(f"| {category} | {len(rows)} | {' | '.join(cells)} | {gains['pronoun'].bias:.2f} |")


def _cell(gain: Any) -> str:
    interval = "of one story" if math.isnan(gain.low) else f"{gain.low:.2f} to {gain.high:.2f}"
    return f"{gain.nats:.2f} ({interval})"


if __name__ == "__main__":
    command(main)
