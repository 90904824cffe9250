"""The models that a page shows, and answers to what it asks: for the local server and for the notebook.

    run       {"model", "step", "tokens", "edits"}            logits, patterns, gates and latents
    lens      the same and "stream", the stream's index        lens_ids and lens_p, [L + 1, T, 5]
    tokenize  {"model", "text"}                                {"ids"}, without BOS

Arrays are sent in the format of safetensors.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.cli.provenance import version
from streamscope.models.checkpoint import load_for_instruments, run_folder, snapshots
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import control_values, edits_of
from streamscope.viewer.describe import describe, identities, strongest_head
from streamscope.viewer.engine import Watched
from streamscope.viewer.shown import (
    PageDictionary,
    PageLens,
    Shown,
    circuit_for_page,
    dictionary_for_page,
    latent_scale,
    lens_for_page,
)

KINDS = ("run", "lens", "tokenize")
MOST = 2  # number of models next to each other


def open_models(
    names: Sequence[str], device: str = "cpu", dtype: str = "fp32", circuits: Sequence[str | Path] = (),
    lenses: Sequence[str] = (), dictionaries: Sequence[str] = (),
) -> list[Shown]:  # fmt: skip
    """The models of a page by name; RUN@all has a slider over its snapshots. `circuits` are files, `lenses`
    FILE:KIND and `dictionaries` folders, one for each model.

    Raises `InputError` for more than two, for one that is named twice, for names that do not open, and for circuits,
    lenses and dictionaries of other models.
    """
    if not 1 <= len(names) <= MOST:
        raise InputError(f"the page shows one model or two next to each other, not {len(names)}")
    for kind, given in {"circuits": circuits, "lenses": lenses, "dictionaries": dictionaries}.items():
        if len(given) > len(names):
            raise InputError(f"there are {len(given)} {kind} for {len(names)} models: give at most one for each")
        if kind != "circuits" and (several := [name for name in names[: len(given)] if name.endswith("@all")]):
            raise InputError(f"{kind} belong to the weights of one step, so {several[0]} takes none: leave out @all")
    runs = [name.removesuffix("@all") for name in names]
    if len({(run_folder(run), run == name) for run, name in zip(runs, names, strict=True)}) < len(names):
        raise InputError(f"{names[1]} is named twice")
    models = []
    for name, run, identity in zip(names, runs, identities(runs), strict=True):
        steps = tuple(row["step"] for row in snapshots(run_folder(run))) if run != name else ()
        if run != name and not steps:
            run_folder(f"{run}@0")  # says where snapshots come from
        models.append(Shown(run, identity, load_for_instruments(run, device=device, dtype=dtype), steps, dtype))
    for entry, path in zip(models, circuits, strict=False):
        entry.circuit = circuit_for_page(entry.model, entry.name, Path(path))
    for entry, spec in zip(models, lenses, strict=False):
        entry.lens = lens_for_page(entry.model, entry.name, spec)
    for entry, folder in zip(models, dictionaries, strict=False):
        entry.latents = dictionary_for_page(entry.model, entry.name, folder)
    return models


def page_data(
    shown: Sequence[Shown], host: str, text: str = "", report: str | None = None, state: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The data of the page: `report` is a page to link, `state` what it opens with besides the text (`state.js`). By
    default two models are next to each other from the start. Each has a head to begin with. Raises `InputError` for a
    model without a tokenizer, and for a text that exceeds a model's context."""
    for entry in shown:
        check_text(entry.model, entry.name, text)
    if state is None:
        state = {"second": shown[1].identity} if shown[1:] else {}
    first = {**({"text": text} if text else {}), **state}
    models = [describe(entry) for entry in shown]
    for entry, model in zip(shown, models, strict=True):
        cases = {case["text"]: case for suite in model["suites"] for case in suite["cases"]}
        start = first.get("text") or next(iter(cases), None)
        if start and "head" not in first:
            model["start"] = {"text": start, "head": strongest_head(entry.model, cases.get(start, {"text": start}))}
    return {"host": host, "version": version(), "models": models, "state": first, "report": report}


def check_text(model: Any, name: str, text: str) -> list[int]:
    """The tokens of a text. Raises `InputError` if the model has no tokenizer, and if the text exceeds its context."""
    if model.tokenizer is None:
        raise InputError(f"{name} has no tokenizer, so it reads no text: save one in its folder (tokenizer.json)")
    ids = model.tokenizer.encode(text)
    if len(ids) > model.config.n_ctx:
        raise InputError(f"the text has {len(ids)} tokens, the context of {name} only {model.config.n_ctx}: shorten it")
    return ids


class Session:
    """Answers the questions of one page. One question at a time: hooks sit on the models."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.shown = {entry.identity: entry for entry in shown}

    def reply(self, kind: str, body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer to the JSON of a question."""
        try:
            try:
                question = json.loads(body)
            except (ValueError, RecursionError):
                raise InputError("a question is JSON") from None
            answer = self.answer(kind, question)
        except InputError as error:
            return 400, "application/json", json.dumps({"error": str(error)}).encode()
        if isinstance(answer, bytes):
            return 200, "application/octet-stream", answer
        return 200, "application/json", json.dumps(answer).encode()

    def answer(self, kind: str, question: Any) -> bytes | dict[str, Any]:
        """Answer a question, as bytes or JSON data. Raises `InputError` with one line for a wrong one."""
        if kind not in KINDS:
            raise unknown("question", kind, list(KINDS))
        if not isinstance(question, dict) or question.get("model") not in list(self.shown):  # also of what has no hash
            raise InputError(f"a question names a model of this page: {', '.join(self.shown)}")
        entry = self.shown[question["model"]]
        if kind == "tokenize":
            if not isinstance(text := question.get("text"), str):
                raise InputError("tokenize needs a text")
            return {"ids": entry.model.tokenizer.encode(text, bos=False)}
        model, edits = entry.at_step(question.get("step")), question.get("edits", {})
        if not isinstance(edits, dict):
            raise InputError("edits must be an object")
        config, stream = model.config, question.get("stream") if kind == "lens" else None
        ids: Any = question.get("tokens")
        is_valid = isinstance(ids, list) and all(type(i) is int and 0 <= i < config.d_vocab for i in ids)
        if not is_valid or not 2 <= len(ids) <= config.n_ctx:
            raise InputError(f"give 2 to {config.n_ctx} token ids below {config.d_vocab}")
        if kind == "lens" and stream is None:
            raise InputError("lens needs a stream")
        tokens = torch.tensor([ids], device=model.cfg.device)
        return save(outputs(model, tokens, edits, stream, *entry.extras))


@torch.inference_mode()
def outputs(
    model: Any, tokens: Tensor, edits: Mapping[str, Any], stream: int | None = None, lens: PageLens | None = None,
    latents: PageDictionary | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of `engine.Watched` under edits, or with `stream` its lens; of a bridge logits and patterns."""
    scale = latent_scale(latents, edits)
    if not hasattr(model, "segment"):
        if stream is not None:
            raise InputError("a model in a bridge has no logit lens here")
        with edit(model, edits_of(edits, model)), capture(model, "blocks.*.attn.hook_pattern") as captures:
            logits = model(tokens)
        return {"logits": _plain(logits[0]), "patterns": _plain(torch.cat(list(captures.values())))}
    watched, T = Watched(model, lens, latents), tokens.shape[1]
    rows = torch.zeros(0, dtype=torch.long) if stream is None else watched.rows_of(stream, T)
    inputs = [x.to(tokens.device) for x in (rows, *control_values(edits, model.config).values(), *scale.values())]
    arrays = dict(zip(watched.outputs, watched(tokens, *inputs), strict=True))
    if stream is None:
        return {name: _plain(x) for name, x in arrays.items() if not name.startswith("lens")}
    return {name: _plain(arrays[name].unflatten(0, (-1, T))) for name in ("lens_ids", "lens_p")}


def _plain(x: Tensor) -> np.ndarray:
    return (x if x.dtype == torch.int32 else x.float()).cpu().contiguous().numpy()
