"""The trained runs that a comparison takes: opened, held against each other, measured once and kept.

Architectures are compared only where everything else is the same: scale, steps, data, tokenizer, vocabulary and the
recipe of training. Positions and norm may differ (`VARIED`): the presets themselves differ in them, std-t having
learned positions and LayerNorm, the others RoPE and ChannelLayerNorm. Runs in which they were changed are arms of their
own, and a contrast is taken between the arms that differ least (`Arms`). Seeds of one arm must be of one configuration.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device
from streamscope.models.checkpoint import load
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.comparison.report import stack
from streamscope.papers.comparison.rows import Progress
from streamscope.papers.comparison.runs import (
    Run,
    all_agree,
    confounded,
    fields_of,
    no_doubles,
    opened,
    with_variants,
)
from streamscope.papers.lfa.measure import measure_run
from streamscope.papers.lfa.rows import Settings
from streamscope.text.cache import cache_root, cached
from streamscope.text.shards import TokenShards

PRESETS = ("std-t", "d-cas", "lfa", "cfm")
CONTROL = "std-t"
VARIED = ("positions", "norm")
"""Parts of a model in which arms may differ."""
ARCHITECTURE = ("residual", "attention", "mlp")
"""Parts that make the four presets what they are (LFA Table 2); in all others two arms should be alike."""
TABLES = ("quantities", "heads", "rules", "suppression", "controls", "suppress")
LATER = ("suppress",)
"""Those of them that comparisons of before have not."""
MEASURED_BY = ("streamscope", "models", "probes", "interventions")


def open_runs(folders: Sequence[str]) -> list[Run]:
    """The runs in order of arm and seed. Raises `InputError` for what cannot be compared, and names it."""
    runs = in_arms([opened(f, PRESETS) for f in folders])
    no_doubles(runs)
    all_agree(runs, fields_of(runs, VARIED))
    return runs


def in_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with the names of their arms (std-t, std-t+rope, …), in order of preset, arm and seed."""
    return sorted(with_variants(runs, VARIED), key=lambda r: (PRESETS.index(r.preset), r.variant, r.seed))


@dataclass(frozen=True)
class Arms:
    """Which arm stands for a preset in a contrast, and in what two arms differ besides their architecture.

    Without runs every preset is its own arm and nothing else differs: quantities that were planted.
    """

    runs: Sequence[Run] = ()
    _first: dict[str, Run] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", {run.arm: run for run in reversed(self.runs)})

    def pair(self, one: str, two: str) -> tuple[str, str]:
        """The arms of two presets that differ in the fewest parts; of equals those with the fewest changes."""
        first, second = (self._arms(preset) or [preset] for preset in (one, two))
        return min(product(first, second), key=lambda p: (len(self._parts(*p)), sum(arm.count("+") for arm in p)))

    def confounded(self, one: str, two: str) -> str:
        """In what two arms differ besides their architecture, in either order: "std-t has learned positions and
        LayerNorm, lfa RoPE and CLN"; "" where in nothing."""
        if one == two or not {one, two} <= set(self._first):
            return ""
        first, second = (self._first[arm] for arm in in_order((one, two)))
        return confounded(first, second, ARCHITECTURE)

    def _arms(self, preset: str) -> list[str]:
        return [run.arm for run in self._first.values() if run.preset == preset][::-1]

    def _parts(self, one: str, two: str) -> list[str]:
        if one not in self._first or two not in self._first:
            return []
        a, b = (self._first[arm].config["model"] for arm in (one, two))
        return [part for part in VARIED if a[part] != b[part]]


def in_order(arms: Iterable[str]) -> list[str]:
    """Names of arms, each once: the four presets in the paper's order, every variant after its preset."""
    return sorted(dict.fromkeys(arms), key=lambda arm: (PRESETS.index(arm.split("+")[0]), arm))


# ---- measuring once ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The tables of all runs, each with the columns preset (the arm) and seed; the documents of the loss."""

    tables: dict[str, pd.DataFrame]
    documents: dict[str, Any]
    device: str


def measure_all(
    runs: Sequence[Run], data: str | None, settings: Settings, progress: Progress, device: str = "auto"
) -> Measured:
    """Measure every run that was not measured before with the same weights, documents, settings and code.

    Tables of a run are kept in the cache folder (`text.cache`). Raises `InputError` when the documents are not
    there, and when a run's tokenizer is not the one it was trained with.
    """

    device = pick_device(device)
    found: list[tuple[str, int, dict[str, pd.DataFrame]]] = []
    shards: TokenShards | None = None
    code = sources()
    for run in runs:
        model = load(run.folder, device=device)
        if model.tokenizer is None or model.tokenizer.sha256 != run.manifest["data"]["tokenizer"]["sha256"]:
            raise InputError(f"{run.folder}/tokenizer.json is not the tokenizer of its manifest; restore it")
        if shards is None:
            shards = evaluation_shards(run.folder, model.tokenizer, data)
        one = shards
        key = _key(run, one, settings, code, device)

        def build(folder: Path, run: Run = run, model: Any = model, one: Any = one) -> None:
            tables = measure_run(model, one, settings, lambda label: progress(f"{run.name}: {label}"))
            for name in TABLES:
                tables[name].to_parquet(folder / f"{name}.parquet", index=False)

        found.append((run.arm, run.seed, cached(cache_root() / f"lfa-{key}", build, _read)))
    assert shards is not None
    meta, lengths = shards.meta, shards.lengths
    own = meta["corpus"] == runs[0].manifest["data"]["valid"]["corpus"] and meta["rule"] == _rule(runs[0])
    about = {
        "documents": shards.n_documents, "cut": int((lengths > runs[0].config["model"]["n_ctx"] + 1).sum()),
        "own": own, "corpus": meta["corpus"],
    }  # fmt: skip
    return Measured(stack(found), about, device)


def _rule(run: Run) -> str:
    return str(run.manifest["data"]["valid"]["rule"])


def _read(folder: Path) -> dict[str, pd.DataFrame]:

    try:
        return {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is no whole entry ({error})") from None


def _key(run: Run, shards: TokenShards, settings: Settings, code: str, device: str) -> str:
    """sha256 of all that the tables of a run depend on: weights, documents, settings, suites, code, torch, device."""

    weights = hashlib.sha256((run.folder / "model.safetensors").read_bytes()).hexdigest()
    documents = {name: shards.meta[name] for name in ("corpus", "tokenizer", "rule")}
    parts = [weights, documents, run.config["model"], asdict(settings), code, torch.__version__, device]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def sources() -> str:
    """sha256 of the code and the prompts that measure: a change of either measures again."""
    root = Path(__file__).resolve().parents[2]
    files = [p for room in MEASURED_BY for kind in ("*.py", "*.toml") for p in (root / room).rglob(kind)]
    files += [
        *(root / "datasets").rglob("*.jsonl"),
        *(root / "papers" / f"{n}.py" for n in ("lfa/measure", "lfa/rows", "lfa/suppress", "comparison/rows")),
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
