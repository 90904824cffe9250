"""List suites of prompts, and count how many of their prompts a tokenizer can align.

streamscope prompts                                       the bundled suites: counts per category and relation
streamscope prompts competing --run runs/lfa              how many of its prompts the run's tokenizer aligns
streamscope prompts stories --n 2000 --tokenizer tokenizer.json
streamscope prompts winobias:pro_stereotyped_type1.txt.dev
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from streamscope.cli.bounds import Count, Seed
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import counted
from streamscope.instruments.data import check_tokenizer
from streamscope.instruments.prompts import BUNDLED, GENERATED, load_suite
from streamscope.instruments.prompts.suite import Prompt, Suite, population

if TYPE_CHECKING:
    from streamscope.instruments.prompts.alignment import Aligned


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m streamscope.instruments.prompts`."""

    suite: Annotated[str, tyro.conf.Positional] = ""
    """A bundled name, a JSONL file or FORMAT:PATH; default: all bundled."""
    n: Count | None = None
    """Minimal pairs of stories, or pronouns of story-cases, to generate (default 1000)."""
    seed: Seed | None = None
    """Which of them to generate (default 2)."""
    tokenizer: Path | None = None
    """Also align with this tokenizer: a tokenizer.json, or a folder with one."""
    run: Path | None = None
    """Also align with the tokenizer and the context of this run."""
    n_ctx: Count | None = None
    """Context in tokens, BOS included; default: the run's, or no limit."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the counts of the suites, and with a tokenizer how many prompts align and why the others do not."""
    options = parse(Options, argv, __doc__)
    if options.tokenizer is not None and options.run is not None:
        raise InputError("--run brings its own tokenizer; give --run or --tokenizer, not both")
    if options.n_ctx is not None and options.tokenizer is options.run is None:
        raise InputError(f"--n-ctx {options.n_ctx}: give --tokenizer or --run with it")
    from streamscope.instruments.prompts.alignment import align

    tokenizer, n_ctx = None, options.n_ctx
    if options.run is not None:
        from streamscope.models.checkpoint import load

        model = load(options.run)
        tokenizer, n_ctx = check_tokenizer(model), n_ctx or model.cfg.n_ctx
    elif options.tokenizer is not None:
        from streamscope.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(options.tokenizer)
    generated = {"n": options.n, "seed": options.seed}
    for name in [options.suite] if options.suite else BUNDLED:
        suite = load_suite(name, **(generated if options.suite or name in GENERATED else {}))
        _report(suite, align(suite, tokenizer, n_ctx) if tokenizer is not None else None)


def _report(suite: Suite, aligned: "Aligned | None") -> None:
    """Tables of one suite: counts by category and relation; what was skipped or filtered."""
    import pandas as pd

    from streamscope.instruments.table import Table

    def counts(prompts: Sequence[Prompt], *names: str) -> pd.DataFrame:
        """Of each category and relation: how many prompts, and how many whole pairs."""
        pair_sizes = Counter(p.pair for p in prompts)
        rows = [(p.category, p.relation or "", 1, bool(p.pair) and pair_sizes[p.pair] == 2) for p in prompts]
        frame = pd.DataFrame(rows, columns=["category", "relation", *names])
        return frame.assign(**{names[1]: frame[names[1]] / 2}).groupby(["category", "relation"], sort=False).sum()

    table = counts(suite.prompts, "prompts", "pairs")
    if aligned is not None:
        table = table.join(counts(aligned.prompts, "aligned", "whole")).fillna(0)
        table = table[["prompts", "aligned", "pairs", "whole"]]
    table.loc[("all", ""), :] = table.sum()
    texts = len({p.text for p in suite.prompts})
    size = f"{counted(len(suite.prompts), 'prompt')} in {counted(texts, 'text')}"
    title = f"{suite.name}: {size} ({suite.source}); {population(suite.prompts)}"
    Table.plain(table.astype(int).reset_index(), title).print()
    left_out = [*suite.skipped, *(aligned.filtered if aligned is not None else ())]
    unscored = aligned.unscored if aligned is not None else []
    for heading, entries in (("entries left out", left_out), ("continuations that cannot be compared", unscored)):
        first = {reason: name for name, reason in reversed(entries)}
        rows = [(n, reason, first[reason]) for reason, n in Counter(reason for _, reason in entries).most_common()]
        if rows:
            frame = pd.DataFrame(rows, columns=["left out", "why", "first"])
            Table.plain(frame, f"{suite.name}: {heading}").print()


if __name__ == "__main__":
    command(main)
