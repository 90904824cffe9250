"""The bundle of trained runs: weights rounded to bf16, what is copied beside them, and the scores of their cards."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from streamscope.interventions.observe.documents import document_losses
from streamscope.interventions.selection import pds_table
from streamscope.models.checkpoint import load, read_manifest, run_folder
from streamscope.models.disk import Manifest, read_json, write_text
from streamscope.models.errors import InputError
from streamscope.models.tensors import read_tensors, write_tensors
from streamscope.models.training.data import evaluation_shards
from streamscope.papers.zoo.card import SUITES, card, index, printed
from streamscope.probes.coherence.elsewhere import exchanged
from streamscope.probes.coherence.measure import rows as words
from streamscope.probes.coherence.measure import summary as by_relation
from streamscope.probes.command import progress_bar
from streamscope.probes.coreference import Coreference
from streamscope.probes.heads import Heads
from streamscope.probes.heads.measure import summary as by_position
from streamscope.probes.probe import measure
from streamscope.probes.prompts import align, check_tokenizer, load_suite
from streamscope.probes.sps import Sps
from streamscope.probes.sps.measure import summary as by_sps
from streamscope.probes.stats.estimators import ratio_of_sums
from streamscope.probes.stats.held_out import RULES, held_out
from streamscope.probes.tables import print_table

LIMIT = 4_000_000
"""Bytes of a bundled model, its history and card included."""
LARGE = {"llama": 6_000_000, "hdpl": 6_000_000, "kromcanon": 6_000_000}
"""Presets with a table of their own for the head, or with many streams to log, take more."""
WEIGHTS = "model.safetensors"
FILES = ("config.json", "manifest.json", "metrics.jsonl", "tokenizer.json")
"""What is copied beside the weights."""


def bundle_runs(runs: Sequence[str], out: Path) -> None:
    """Bundle every run with its card, and write the page that compares them.

    Raises `InputError` for a run that has not ended, one whose folder is not named as a model, and two of one name.
    """
    folders: dict[str, Path] = {}
    for run in runs:
        folder = run_folder(run)
        manifest = read_manifest(folder)
        if manifest.get("outcome") != "completed":
            raise InputError(f"{folder} is not a completed run ({manifest.get('outcome')}); let it end first")
        name, preset = folder.resolve().name, manifest["preset"]
        if name != preset and not name.startswith(f"{preset}-"):
            raise InputError(f"{folder} is a run of {preset}: call its folder {preset}, or {preset}-WHAT")
        if name in folders:
            raise InputError(f"{folder} and {folders[name]} are both {name}; give one")
        folders[name] = folder
    rows: list[dict[str, Any]] = []
    for name, folder in progress_bar("models")(list(folders.items())):

        def measured(part: Path, name: str = name) -> str:
            rows.append({"model": name, **scores(part)})
            return card(name, part, rows[-1])

        bundle(folder, out / name, measured)
    write_text(out / "README.md", index(rows))
    shown = printed(rows).set_index("model").T.reset_index(names="")
    print_table(shown, "bundled models")
    print(f"cards {out}/*/README.md")


def scores(folder: Path) -> dict[str, Any]:
    """What the card says of a model: loss, coreference, coherence and PDS, each with its interval and n.

    Loss in nats per token of the validation stories, cut at the context, documents as units. Top-1 among candidates
    (LFA Eq. 5), every case scored by the head that was chosen without it.
    """

    model = load(folder)
    tokenizer = check_tokenizer(model)
    losses = document_losses(model, evaluation_shards(folder, tokenizer, None), [])
    loss = ratio_of_sums(losses.baseline, losses.tokens)
    row: dict[str, Any] = {"parameters": model.n_params(), "loss": loss.mean}
    row |= {"loss_low": loss.ci_low, "loss_high": loss.ci_high, "documents": loss.n}
    for suite in SUITES:
        aligned = align(load_suite(suite), tokenizer, model.config.n_ctx)
        found = held_out(measure(model, Coreference(), aligned, tokenizer=tokenizer))
        both = found[found["halves"] == "both"].set_index("rule")
        first = both.iloc[0]
        row[suite] = {k: first[k] for k in ("head", "top1", "chance", "n", "clusters")}
        row[suite]["filtered"] = len(aligned.filtered)
        row[suite]["rules"] = {
            rule: {k: both.loc[rule, k] for k in ("rule_share", "difference", "ci_low", "ci_high", "p")}
            for rule in RULES
        }
        if suite == "stories":
            row["coherence"] = _coherence(model, aligned, tokenizer)
            heads = by_sps(measure(model, Sps(), aligned, tokenizer=tokenizer), "heads")
            looking = heads.iloc[(heads["semantic"] + heads["distractor"]).argmax()]
            row["looking"] = {
                k: looking[k] for k in ("head", "semantic", "distractor", "sps", "ci_low", "ci_high", "n")
            }
    events = align(load_suite("story-events"), tokenizer, model.config.n_ctx)
    row["events"] = _coherence(model, events, tokenizer)["all"]
    pds = pds_table(model, load_suite("competing"), tokenizer)
    row["induction"] = _induction(model)
    row["pds"] = {k: pds.iloc[0][k] for k in ("head", "pds", "ci_low", "ci_high", "n")}
    return row


def _coherence(model: Any, aligned: Any, tokenizer: Any) -> dict[str, Any]:
    """Relation -> log-odds of the coherent word, its interval, the share preferred, n, and what is due to the nouns."""

    table = by_relation(words(model, aligned, exchanged(aligned, tokenizer), tokenizer)).set_index("relation")
    columns = ["log_odds", "ci_low", "ci_high", "share", "n", "elsewhere", "due", "due_low", "due_high", "lift"]
    return table[[*columns, "controls"]].to_dict("index")


def _induction(model: Any) -> dict[str, Any]:
    """The head with the largest induction score on repeated random tokens, its interval, and that of even attention."""

    probe = Heads()
    found = by_position(measure(model, probe, []))
    one = found[found["score"] == "induction"]
    return one.loc[one["mean"].idxmax(), ["head", "mean", "ci_low", "ci_high", "n", "uniform"]].to_dict()


def limit_of(name: str) -> int:
    """Most bytes of a bundled model of this name."""
    return next((size for preset, size in LARGE.items() if name == preset or name.startswith(f"{preset}-")), LIMIT)


def bundle(folder: Path, out: Path, text: Callable[[Path], str]) -> None:
    """Copy a run with its weights rounded to bf16, and write the card that `text` makes of the copy; all or nothing.

    From then on the rounded weights are the model: `text` measures them. A model that is bundled already keeps its own.
    Raises `InputError` beyond `limit_of` bytes, before anything is measured.
    """
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for name in FILES:
            shutil.copyfile(folder / name, part / name)
        if folder.resolve() == out.resolve():
            shutil.copyfile(folder / WEIGHTS, part / WEIGHTS)
        else:
            _round(folder, part)
        size, limit = sum(path.stat().st_size for path in part.iterdir()), limit_of(out.name)
        if size > limit:
            raise InputError(f"{folder} has {size:,} bytes, more than the {limit:,} of a bundled model")
        (part / "README.md").write_text(text(part), encoding="utf-8")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)


def _round(folder: Path, part: Path) -> None:
    """The weights of `folder` to the nearest bf16, ties to even, and their new hash in the manifest of `part`."""

    tensors, metadata = read_tensors(folder / WEIGHTS)
    narrow = {k: x.to(torch.bfloat16) if x.is_floating_point() else x for k, x in tensors.items()}
    sha256 = write_tensors(part / WEIGHTS, narrow, metadata)
    manifest = {**read_json(part / "manifest.json", Manifest), "weights": sha256, "rounded": "to bf16, after training"}
    (part / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
