"""The sections of `papers.demo` that show what was measured: prose, verdicts, figures, tables, commands."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamscope.instruments.table import Column, short_columns
from streamscope.interventions.ablate.measure import LOSS
from streamscope.interventions.suppress.measure import CONTROLS, DRAWS, EFFECTS
from streamscope.papers.comparison.tables import table_of
from streamscope.papers.demo import figures as draw
from streamscope.papers.demo import sentences
from streamscope.papers.demo.html import Command, Figure, Panels, Section, TableBlock, Text, Token, TokenRow, Verdict
from streamscope.papers.demo.measure import GATES, SUITE, Found, Subject
from streamscope.papers.demo.options import Sizes
from streamscope.papers.demo.sentences import prose
from streamscope.probes.coherence.measure import ODDS
from streamscope.probes.coreference.measure import HEADS as COREFERENCE
from streamscope.probes.coreference.measure import HELD_OUT
from streamscope.probes.pds.measure import HEADS
from streamscope.probes.sps.measure import COLUMNS as SPS

Runs = Sequence[tuple[Subject, Found]]
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "pds": short_columns(HEADS, "difference"), "coreference": (*COREFERENCE, *HELD_OUT),
    "sps": short_columns(SPS, "sps"), "coherence": short_columns(ODDS, "log_odds"),
    "ablation": short_columns(LOSS, "delta"),
    "suppression": short_columns((*EFFECTS, *CONTROLS, *DRAWS), "delta"),
}  # fmt: skip
"""Columns that an instrument describes, by the first word of a table's name; all others are in columns.csv."""
FRONT = {
    "following": ("who", "role", "change", "ci_low", "ci_high", "p", "p_holm", "n", "clusters"),
    "ablation": ("head", "delta", "ci_low", "ci_high", "p_holm", "control", "above", "above_low", "above_high",
                 "p_above_holm"),
    "coreference-held-out": ("halves", "head", "rule", "top1", "rule_share", "difference", "ci_low", "ci_high", "p"),
    "coreference-keys-held-out": ("halves", "head", "rule", "top1", "rule_share", "difference", "ci_low", "ci_high",
                                  "p"),
}  # fmt: skip
"""Columns that stand first in a table; the others follow."""


def pds(runs: Runs, sizes: Sizes) -> Section:
    """PDS of every head."""
    limit = max(float(found.tables["pds"]["pds"].max()) for _, found in runs)
    panels = [
        Figure(subject.name, draw.heads(found.tables["pds"], "pds", i, limit, unit="PDS", signed=False), "PDS by head")
        for i, (subject, found) in enumerate(runs)
    ]
    threshold = float(runs[0][1].tables["pds"]["threshold"].iloc[0])
    return Section(
        "Where heads look: position or meaning?",
        [
            Text(prose("pds", pairs=sizes.pairs, threshold=f"{threshold:g}")),
            Verdict([sentences.pds(subject.name, found.tables) for subject, found in runs]),
            Panels(panels),
            Command(each(runs, f"python -m probes.pds {{}} --suite {SUITE} --n {sizes.pairs}")),
        ],
    )


def picture(runs: Runs, live: str) -> Section:
    """The attention picture of a pair of prompts; `live` is the file of the live page, if there is one."""
    names = {"query": "pronoun", "target": "right noun", "distractor": "other noun"}
    blocks: list[Any] = []
    commands = []
    for i, (subject, found) in enumerate(runs):
        for table, name in zip(found.rows, found.pair, strict=True):
            order = "right noun first" if name.endswith("-first") else "right noun last"
            tokens = [
                Token("BOS" if r.key == 0 else r.key_token, float(r.attention), names.get(r.role, ""))
                for r in table.itertuples(index=False)
            ]
            blocks.append(TokenRow(f"**{subject.name}**, head {found.head}, {order}", i, tokens))
        place = int(found.rows[0]["query"].iloc[0])
        head = found.head.replace("H", ".H")
        commands.append(
            f"python -m probes.picture {subject.run} --suite {SUITE} --prompt {found.pair[0]} --heads {head} "
            f"--query {place}"
        )
    return Section(
        "One prompt, seen by one head",
        [
            Text(prose("picture", live=live)),
            Verdict([sentences.picture(subject.name, found.head, found.right) for subject, found in runs]),
            *blocks,
            Command(commands),
        ],
    )


def coreference(runs: Runs, sizes: Sizes) -> Section:
    """The best head of one half of the pairs, scored on the other."""
    top1 = [(subject.name, found.tables["coreference-top1"]) for subject, found in runs]
    figure = Figure(
        "How often the right noun gets more attention than the other",
        draw.shares(top1),
        "share with 95 % interval; grey: rules that know no meaning",
        90 + 38 * (4 + len(runs)),
    )
    return Section(
        "Coreference: does a head find the noun that a pronoun means?",
        [
            Text(prose("coreference", pairs=sizes.pairs)),
            Verdict([sentences.coreference(subject.name, found.tables) for subject, found in runs]),
            Panels([figure], wide=True),
            _pooled(runs, "coreference-held-out", "Chosen on one half, scored on the other"),
            _pooled(runs, "coreference-keys-held-out", "The same over all tokens"),
            Command(
                [
                    *each(runs, f"python -m probes.coreference {{}} --suite {SUITE} --n {sizes.pairs}"),
                    *each(runs, f"python -m probes.coreference {{}} --suite {SUITE} --n {sizes.pairs} --domain keys"),
                ]
            ),
        ],
    )


def meaning(runs: Runs, sizes: Sizes) -> Section:
    """SPS and coherence."""
    sps = [(subject.name, found.tables["sps"]) for subject, found in runs]
    odds = [(subject.name, found.tables["coherence"]) for subject, found in runs]
    rows = 60 + 34 * max(len(sps[0][1]), len(odds[0][1]))
    panels = [
        Figure("Attention: SPS", draw.dots(sps, "heads", "sps", "attention, right noun − other"),
               "all heads, then by layer; 95 % intervals", max(300, rows)),
        Figure("Words: coherence", draw.dots(odds, "relation", "log_odds", "log-odds of the right noun, nats"),
               "all prompts, then by relation; 95 % intervals", max(300, rows)),
    ]  # fmt: skip
    lines = [f(subject.name, found.tables) for f in (sentences.sps, sentences.coherence) for subject, found in runs]
    return Section(
        "What attention prefers, and what the model says",
        [
            Text(prose("meaning", pairs=sizes.pairs)),
            Verdict(lines),
            Panels(panels),
            _pooled(runs, "sps", "SPS"),
            _pooled(runs, "coherence", "Coherence, in nats"),
            Command(
                [
                    *each(runs, f"python -m probes.sps {{}} --suite {SUITE} --n {sizes.pairs}"),
                    *each(runs, f"python -m probes.coherence {{}} --suite {SUITE} --n {sizes.pairs}"),
                ]
            ),
        ],
    )


def ablation(runs: Runs, sizes: Sizes) -> Section:
    """Every head at z = 0, with its controls."""
    limit = max(float(found.tables["ablation"]["delta"].abs().max()) for _, found in runs)
    factor, unit, digits = 1, "nats per token", 2
    if limit < 0.1:
        factor, unit, digits = 1000, "thousandths of a nat per token", 1 if limit > 0.005 else 2
    panels = []
    for i, (subject, found) in enumerate(runs):
        scaled = found.tables["ablation"].assign(delta=factor * found.tables["ablation"]["delta"])
        figure = draw.heads(scaled, "delta", i, factor * limit, unit=unit, signed=True, digits=digits)
        panels.append(Figure(subject.name, figure, f"change of the loss, {unit}; grey: it falls"))
    tables = [
        _block("ablation", found.tables["ablation"].drop(columns=["layer", "index", "scale"]),
               f"{subject.name}: every head, largest effect first")
        for subject, found in runs
    ]  # fmt: skip
    n, limited = int(runs[0][1].tables["ablation"]["n"].iloc[0]), sizes.documents
    return Section(
        "Ablation: what is lost without a head?",
        [
            Text(prose("ablation", n=n)),
            Verdict([sentences.ablation(subject.name, found.tables) for subject, found in runs]),
            Panels(panels),
            *tables,
            Command(each(runs, f"python -m interventions.ablate {{}} --heads --max-documents {limited}")),
        ],
    )


def following(runs: Runs, sizes: Sizes) -> Section:
    """What is lost of the nouns' meaning without the head that follows the right one."""

    panels, tables = [], []
    every = pd.concat([found.tables["following"].query("role in ('chosen', 'other')") for _, found in runs])
    limits = (float(every[["change", "ci_low"]].min().min()), float(every[["change", "ci_high"]].max().max()))
    for i, (subject, found) in enumerate(runs):
        table = found.tables["following"]
        if table.empty:
            continue
        removed = table[table["role"].isin(["chosen", "other"])]
        title = "change of what is due to the nouns, nats"
        figure = draw.dots([(subject.name, removed)], "who", "change", title, first=i, limits=limits)
        panels.append(Figure(subject.name, figure, "the first row is the head that follows the right noun", 300))
        tables.append(_block("following", table, f"{subject.name}: due to the nouns, and without a head"))
    return Section(
        "The head that follows the right noun, and what is lost without it",
        [
            Text(prose("following")),
            Verdict([sentences.following(subject.name, found.tables) for subject, found in runs]),
            *([Panels(panels)] if panels else []),
            *tables,
            Command(each(runs, f"python -m probes.coherence {{}} --suite {SUITE} --n {sizes.pairs}")),
        ],
    )


def suppression(runs: Runs, sizes: Sizes) -> Section:
    """The heads with the largest PDS under gates, with their controls."""
    panels = []
    for i, (subject, found) in enumerate(runs):
        effects, draws = found.tables["suppression"], found.tables["suppression-draws"]
        for measure, title in (("sps", "change of SPS"), ("coherence", "change of log-odds, nats")):
            what = "SPS" if measure == "sps" else "coherence"
            figure = draw.gates(effects, draws, measure, i, title)
            panels.append(Figure(f"{subject.name}: {what}", figure, "1: untouched, 0: switched off", 330))
    chosen = runs[0][1].tables["suppression-controls"]
    k, draws = int(chosen["k"].iloc[0]), sizes.draws
    gates = " ".join(f"{g:g}" for g in GATES)
    command = (
        f"python -m interventions.suppress {{}} --suite {SUITE} --n {sizes.suppress_pairs} --k {k} --gates {gates}"
    )
    command += f" --draws {draws}" if draws != Sizes().draws else ""
    return Section(
        "Suppressing the heads that follow the place",
        [
            Text(
                prose("suppression", k=k, gates=gates.replace(" ", ", "), pairs=sizes.suppress_pairs, draws=draws)
            ),
            Verdict([line for subject, found in runs for line in sentences.suppression(subject.name, found.tables)]),
            Panels(panels),
            _pooled(runs, "suppression-controls", "At the smallest gate: selected heads and their controls"),
            Command(each(runs, command)),
        ],
    )  # fmt: skip


# ---- small parts -------------------------------------------------------------------------------


def each(runs: Runs, command: str) -> list[str]:
    """The command for every run."""
    return [command.format(subject.run) for subject, _ in runs]


def _pooled(runs: Runs, name: str, title: str) -> TableBlock:
    """The table `name` of all runs, with the run's name first."""
    parts = [found.tables[name].assign(run=subject.name) for subject, found in runs]
    return _block(name, pd.concat(parts, ignore_index=True), title, ("run",))


def _block(name: str, table: pd.DataFrame, title: str, first: Sequence[str] = ()) -> TableBlock:
    """A table of the page, the columns that matter first."""
    front = [c for c in (*first, *FRONT.get(name, ())) if c in table]
    table = table[[*front, *(c for c in table if c not in front)]]
    return TableBlock(table_of(table, f"demo/{name}", title, own=COLUMNS.get(name.split("-")[0], ())))
