"""Writes run folders that derive from other runs without training, with their parent in the manifest."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from streamscope.cli.disk import Config, read_json, sha256, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import provenance
from streamscope.models.checkpoint import read_manifest, run_folder, run_label
from streamscope.models.tensors import FORMAT, save


def check_new(folder: Path) -> None:
    """Raise `InputError` if a run folder to write is not empty, or is a file."""
    if folder.is_file():
        raise InputError(f"{folder} is a file: a run is a folder, give another name")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose another folder")


def parent_of(folder: Path) -> dict[str, Any]:
    """A derived run's record of its parent: name, sha256 of the weights, preset and step if known."""
    entries = _recorded(folder, "preset", "step", "parent")
    return {"run": run_label(folder), "sha256": sha256(folder / "model.safetensors"), **entries}


def unchanged_parent(manifest: dict[str, Any]) -> Path:
    """The folder of the parent, for a run that starts again from its weights. Raises `InputError` if they changed."""
    parent = manifest["parent"]
    folder = run_folder(parent["run"])
    if sha256(folder / "model.safetensors") != parent.get("sha256"):
        raise InputError(f"the weights of {folder} changed since the run began from them: start it again")
    return folder


def _recorded(folder: Path, *names: str) -> dict[str, Any]:
    """What the manifest of a run, if it has one, says of these names."""
    manifest = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    return {name: manifest[name] for name in names if name in manifest}


def inherited(parent: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a derived run copies from its parent, which `evaluation_shards` needs to find its validation data: (from
    config.json: data; from manifest.json: preset, scale, seed, data, step, steps, bos), as far as the parent has
    them."""
    config = read_json(parent / "config.json", Config)
    entries = _recorded(parent, "preset", "scale", "seed", "data", "step", "steps", "bos")
    return {"data": config["data"]} if "data" in config else {}, entries


def write_derived(folder: Path, model: Any, parent: Path, *, loss: float, tokens: int, **about: Any) -> None:
    """Write a run folder like the parent's with these weights, atomically. metrics.jsonl gets one evaluation row:
    `loss` in nats per token over `tokens` tokens. `about` and the parent go into the manifest. Raises `InputError` for
    a folder that is not empty or cannot be written."""
    check_new(folder)
    config, manifest = inherited(parent)
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save(model, part)
        write_text(part / "config.json", json.dumps({"format": FORMAT, "model": model.to_dict(), **config}, indent=1))
        row = {"step": manifest.get("step", 0), "kind": "eval", "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        write_text(part / "metrics.jsonl", json.dumps({**row, "tokens": tokens}) + "\n")
        manifest = {"preset": model.config.name, "scale": "", **manifest, "parameters": model.n_params()}
        manifest |= {**provenance(str(model.cfg.device)), "parent": parent_of(parent), **about}
        write_text(part / "manifest.json", json.dumps(manifest, indent=1))
        os.replace(part, folder)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
