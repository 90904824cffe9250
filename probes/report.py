"""A run with a suite in its tokens: what the commands share that are no instruments yet."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from streamscope.models.bounds import Count, Seed
from streamscope.models.checkpoint import run_folder
from streamscope.models.text.tokenizer import Tokenizer
from streamscope.probes.command import RunOptions, Tables, check_options, open_run, show, write_results
from streamscope.probes.prompts import align, check_tokenizer, load_suite
from streamscope.probes.prompts.alignment import Aligned
from streamscope.probes.prompts.suite import Suite, population

__all__ = ["ProbeOptions", "Session", "check_options", "open_run", "open_session", "show", "write", "write_results"]


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(RunOptions):
    """Arguments that the commands of the attention probes share."""

    suite: str = "competing"
    """coreference, competing, stories, story-cases, story-events, a JSONL file, or FORMAT:PATH of a published set."""
    n: Count | None = None
    """Minimal pairs of stories and story-events, or pronouns of story-cases, to generate (default 1000)."""
    seed: Seed | None = None
    """Which of them to generate (default 2)."""


@dataclass(frozen=True)
class Session:
    """A model with a suite in its tokens."""

    name: str
    model: Any
    tokenizer: Tokenizer
    suite: Suite
    aligned: Aligned

    @property
    def title(self) -> str:
        """What was measured on what, and what was left out."""

        kept, all_of = len(self.aligned.prompts), len(self.suite.prompts)
        out = "".join(f", {n} left out: {why}" for why, n in Counter(why for _, why in self.aligned.filtered).items())
        lost = f", {len(self.suite.skipped)} entries skipped" if self.suite.skipped else ""
        holds = population(self.aligned.prompts)
        return f"{self.name} on {self.suite.name}: {kept} of {all_of} prompts{out}{lost}; {holds}"


def open_session(options: ProbeOptions, run: str | None = None) -> Session:
    """Load a run (default: that of the options) and align the suite with its tokenizer and context."""

    run_folder(options.run if run is None else run)
    suite = load_suite(options.suite, n=options.n, seed=options.seed)
    name, model = open_run(options, run)
    tokenizer = check_tokenizer(model)
    return Session(name, model, tokenizer, suite, align(suite, tokenizer, model.config.n_ctx))


def write(options: ProbeOptions, session: Session, tables: Tables, figure: Any, **about: Any) -> None:
    """`write_results`, with the suite and what of it was left out."""
    left_out = Counter(why for _, why in session.aligned.filtered)
    about |= {"suite": session.suite.source, "prompts": len(session.aligned.prompts)}
    write_results(options, tables, figure, left_out=left_out, what=session.title, **about)
