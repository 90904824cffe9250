"""The parts, one after the other, each an instrument whose result is a file."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from streamscope.cli.disk import check_folder
from streamscope.cli.provenance import provenance
from streamscope.features.cluster import Cluster
from streamscope.features.tables import FeatureTables
from streamscope.instruments.command import progress_bar, signs_of_life
from streamscope.instruments.data import Documents, Prompts
from streamscope.instruments.open_data import OpenTasks
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.tasks import token_task
from streamscope.instruments.result import Result
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.observe import duration, peak_gigabytes
from streamscope.interventions.suppress import Suppress
from streamscope.models.checkpoint import load_for_instruments
from streamscope.papers.mechanisms import Options
from streamscope.probes.coreference import Coreference
from streamscope.probes.direct_logit_attribution import DirectLogitAttribution
from streamscope.probes.pds import Pds
from streamscope.probes.sps import Sps

Bar = Callable[[Any], Any]
CASES, HEADS = 60, 8
"""Prompts of `hydra`, and heads that it ablates."""


@dataclass(frozen=True)
class Part:
    """A part: how it is measured, and what it costs, in tokens of a pass with logits (on SmolLM2)."""

    tokens: int
    measure: Callable[[Any, Bar], Result]


def _hydra(model: Any, progress: Bar) -> Result:
    """The heads with the largest direct effect on prompts of another seed."""
    choice, measured = (
        OpenTasks([token_task(load_suite("ioi", n=CASES, seed=seed), model.tokenizer)], model.tokenizer)
        for seed in (3, 2)
    )
    found = DirectLogitAttribution().measure(model, choice).table("heads").frame.nlargest(HEADS, "contribution")
    heads = tuple(f"L{r.layer}.H{r.index}" for r in found.itertuples())
    return Hydra(heads=heads).measure(model, measured, progress=progress)


def _of(instrument: Any, *data: Any) -> Callable[[Any, Bar], Result]:
    return lambda model, progress: instrument.measure(model, *data, progress=progress)


SUPPRESS = Suppress(k=(3,), gates=(1.0, 0.5, 0.0), draws=20)
PARTS = {
    "pds": Part(2_000, _of(Pds(), Prompts())),
    "sps": Part(2_000, _of(Sps(), Prompts())),
    "coreference": Part(1_000, _of(Coreference(), Prompts(suite="coreference"))),
    "competing": Part(1_000, _of(Coreference(), Prompts())),
    "suppress": Part(36_000, _of(SUPPRESS, Prompts())),
    "amplify": Part(28_000, _of(Amplify(text="", prompt=""), Documents(max_documents=8))),
    "modes": Part(22_000, _of(Cluster(method="kmeans"), FeatureTables())),
    "hydra": Part(48_000, _hydra),
}


def measure(options: Options) -> None:
    """Measure the parts that are not there."""
    check_folder(options.out)
    files = {name: options.out / f"{name}.parquet" for name in PARTS}
    left = [name for name, file in files.items() if not file.is_file()]
    if not left:
        print(f"{options.out} has every part: {', '.join(PARTS)}")
        return
    model = load_for_instruments(options.run)
    seconds = seconds_per_token(model) * sum(PARTS[name].tokens for name in left)
    memory = f"{peak_gigabytes():.1f} GB of memory so far"
    print(f"about {duration(seconds)} for {', '.join(left)}; {memory}", file=sys.stderr, flush=True)
    for name in left:
        began = time.process_time()
        with signs_of_life(name):
            result = PARTS[name].measure(model, progress_bar(name))
        about = {**result.about, **provenance("cpu"), "run": options.run}
        about["source"] = Path(str(about.get("source", ""))).name  # on any machine
        tables_alone = replace(result, blocks={}, contrasts={}, arrays={}, about=about)  # they are small
        tables_alone.save(files[name])
        print(f"{name}: {time.process_time() - began:.0f} CPU seconds, written {files[name]}", file=sys.stderr)


@torch.no_grad()
def seconds_per_token(model: Any) -> float:
    """Seconds that a pass takes per token, with logits."""
    tokens = torch.zeros((2, min(128, model.config.n_ctx)), dtype=torch.long, device=model.cfg.device)
    run = partial(model, tokens)
    run()
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) / tokens.numel()
