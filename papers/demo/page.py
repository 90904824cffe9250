"""The page of `papers.demo`, in a newcomer's order: the run, what its heads look at, what is lost without them."""

import re
from math import log

import pandas as pd

from streamscope.instruments.table import Table
from streamscope.papers.demo import figures as draw
from streamscope.papers.demo import sections as show
from streamscope.papers.demo import sentences
from streamscope.papers.demo.html import Command, Figure, Page, Panels, Samples, Section, TableBlock, Text, Verdict
from streamscope.papers.demo.measure import PROMPT, SUITE
from streamscope.papers.demo.options import Sizes
from streamscope.papers.demo.sections import Runs, each
from streamscope.papers.demo.sentences import prose


def build(runs: Runs, sizes: Sizes, footer: str, live: str = "") -> Page:
    """The page of one run or several; `live` is the file of the live page, if there is one."""
    names = " and ".join(subject.name for subject, _ in runs)
    many = "these small language models look" if len(runs) > 1 else "this small language model looks"
    return Page(
        title=f"Inside {names}",
        lead=(prose("lead", many=many)),
        sections=[
            _overview(runs),
            _models(runs),
            show.pds(runs, sizes),
            show.picture(runs, live),
            show.coreference(runs, sizes),
            show.meaning(runs, sizes),
            show.following(runs, sizes),
            show.ablation(runs, sizes),
            show.suppression(runs, sizes),
            _limits(runs, sizes),
        ],
        footer=footer,
    )


def _overview(runs: Runs) -> Section:
    table = sentences.summary({subject.name: found.tables for subject, found in runs})
    return Section(
        "In short",
        [
            Text("One line per measure, explained below. In brackets: 95 % intervals over prompts or documents."),
            TableBlock(Table.plain(table), wrap=True),
        ],
    )


def _models(runs: Runs) -> Section:

    counts = {subject.name: found.tables["parameters"].set_index("part")["parameters"] for subject, found in runs}
    parts = pd.DataFrame({"part": list(dict.fromkeys(part for one in counts.values() for part in one.index))})
    for name, one in counts.items():
        parts[name] = one.reindex(parts["part"], fill_value=0).to_numpy()
    parts.loc[len(parts)] = ["all", *(int(one.sum()) for one in counts.values())]
    logs = [(subject.name, found.tables["losses"]) for subject, found in runs]
    curve = Figure("Loss during training", draw.losses(logs), "nats per token; points: validation documents", 340)
    samples = Samples(
        [(subject.name, i, re.sub(r"\s*\n\s*", "\n", found.sample)) for i, (subject, found) in enumerate(runs)]
    )
    return Section(
        "The models" if len(runs) > 1 else "The model",
        [
            Text(prose("models", uniform=f"{log(runs[0][0].model.config.d_vocab):.2f}")),
            Verdict([sentences.parameters(subject.name, found.tables) for subject, found in runs]),
            *(
                [Panels([curve], wide=True)]
                if any(len(log) for _, log in logs)
                else [Text("These runs have no training log.")]
            ),
            Text(f"Each continues “{PROMPT}”, sampled at temperature 0.8 with seed 0:"),
            samples,
            TableBlock(Table.plain(parts, "Parameters by part, layers summed")),
            Command(each(runs, "python -m models.describe --run {}")),
        ],
    )


def _limits(runs: Runs, sizes: Sizes) -> Section:
    total = max(int(found.tables["parameters"]["parameters"].sum()) for _, found in runs)
    longest = max(int(found.tables["losses"]["step"].max()) if len(found.tables["losses"]) else 0 for _, found in runs)
    count = "this one trained model" if len(runs) == 1 else f"these {len(runs)} trained models"
    steps = f" and {longest:,} training steps" if longest else ""
    presets = list(dict.fromkeys(subject.model.config.name for subject, _ in runs))
    seeds = [
        f"python -m models.train {name} --data stories:0:4000 --scale zoo --seed {seed} --out runs/{name}-{seed}"
        for name in presets
        for seed in (1, 2)
    ]
    return Section(
        "What this page does not show",
        [
            Text(
                prose("limits", count=count, total=f"{total:,}", steps=steps, sizes=sizes)
            ),
            Text("To go on: more seeds, longer training, more prompts, and any part of a model changed."),
            Command(
                [
                    *seeds,
                    f"python -m models.train {presets[0]} --data stories --scale small --out runs/{presets[0]}-small",
                    f"python -m probes.coreference {runs[0][0].run} --suite {SUITE} --n 1000",
                    f"python -m interventions.ablate {runs[0][0].run} --heads --measures sps coherence",
                    f"python -m probes.logit_lens {runs[0][0].run} --text \"Lily had a red ball. She\"",
                ]
            ),
        ],
    )  # fmt: skip
