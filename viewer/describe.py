"""What the live page knows of a model before it runs: sizes, streams, controls with reasons, vocabulary, sentences."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from streamscope.cli.terminal import counted
from streamscope.instruments.contract import title_of
from streamscope.instruments.prompts import load_suite
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.observe import answer_log_probs
from streamscope.interventions.patch.activations import attribute_heads
from streamscope.models.checkpoint import run_label
from streamscope.models.head_spec import every_head
from streamscope.models.hooks.controls import BRIDGED, Control, controls
from streamscope.models.readout import IGNORE
from streamscope.text.tokenizer import BYTE_OF
from streamscope.viewer.engine import Watched
from streamscope.viewer.shown import Shown, lens_streams

CONTROLS = {
    "scale": "head_scale", "alpha": "alpha", "gate": "gate_keep", "streams": "stream_all", "mixing": "mixing",
    "h_res": "h_res", "canon": "canon",
}  # fmt: skip
"""The controls of the page, and an array of each."""
PAIRS = 12  # number of pairs of the built-in stories in the menu, which tell the habits that follow
ABLATED = 100_000_000
"""Heads × parameters of a model whose heads are all ablated before the page opens, in less than a second."""
SCREENED = 4  # heads of another model that are ablated: those whose ablation lowers the score most to first order


def describe(shown: Shown) -> dict[str, Any]:
    """What the page knows of a model, as JSON."""
    model, config = shown.model, shown.model.config
    have, is_native, blob = controls(config), hasattr(model, "segment"), f"onnx-{shown.identity}"
    watched, steps = Watched(model, *shown.extras), shown.steps
    return {
        "id": shown.identity,
        "name": run_label(model.run) if getattr(model, "run", None) is not None else title_of(model),
        "about": about(model),
        "layers": config.n_layers,
        "heads": config.n_heads,
        "n_ctx": config.n_ctx,
        "vocab": config.d_vocab,
        "streams": list(lens_streams(config)) if is_native else [],
        "no_lens": None if is_native else BRIDGED,
        "lens": shown.lens and shown.lens.about,
        "dictionary": shown.latents and shown.latents.about,
        "controls": {key: isinstance(have[array], Control) or have[array] for key, array in CONTROLS.items()},
        "inputs": [
            {"name": name, "labels": control.labels, "shape": control.shape, "neutral": control.neutral}
            for name, control in watched.controls.items()
        ],
        "outputs": watched.outputs if is_native else ["logits", "patterns"],
        "tokenizer": tokenizer_of(model),
        "suites": stories_suite(model),
        "circuit": shown.circuit,
        "blob": blob,
        "snapshots": [{"step": step, "blob": f"{blob}@{step}" if step != max(steps) else blob} for step in steps],
        "python": python_template(shown.name, bool(steps), getattr(model.tokenizer, "adds_bos", True)),
    }


def about(model: Any) -> str:
    shape = f"{counted(model.config.n_layers, 'layer')} of {counted(model.config.n_heads, 'head')}"
    return f"{title_of(model)}: {shape}, {sum(p.numel() for p in model.parameters()):,} parameters."


def tokenizer_of(model: Any) -> dict[str, Any] | None:
    """BOS (None if texts have none), the text of every token, and tokenizer.json where the page can read it. None for a
    model without text."""
    if (tokenizer := model.tokenizer) is None:
        return None
    text, pieces = tokenizer.to_json(), tokenizer.pieces(range(model.config.d_vocab))
    first = tokenizer.bos_id if tokenizer.adds_bos else None
    return {"json": text if is_plain_bpe(text) else None, "bos_id": first, "pieces": pieces}


def is_plain_bpe(text: str) -> bool:
    """Whether a tokenizer.json is a byte-level BPE that splits words as GPT-2 does, which the page computes itself. Its
    added tokens may have any flags."""
    data = json.loads(text)
    bpe, splits = data["model"], data["pre_tokenizer"] or {}
    plain = splits.get("type") == "ByteLevel" and splits.get("use_regex", True) and data["normalizer"] is None
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    if bpe["type"] != "BPE" or not plain or any(bpe.get(option) for option in options):
        return False
    return bpe.get("unk_token") is None or BYTE_OF.keys() <= bpe["vocab"].keys()


def stories_suite(model: Any) -> list[dict[str, Any]]:
    """Minimal pairs of the built-in stories in which a pronoun can mean either of two; those of a pair are adjacent. []
    for a model without text, or whose context they exceed."""
    prompts = load_suite("stories-told", n=PAIRS).prompts if model.tokenizer is not None else ()
    if not prompts or max(len(model.tokenizer.encode(prompt.text)) for prompt in prompts) > model.config.n_ctx:
        return []
    cases = [
        {
            "text": prompt.text, "roles": prompt.roles, "pair": prompt.pair, "order": prompt.order,
            "answers": [prompt.coherent], "foils": [prompt.incoherent],
        }
        for prompt in prompts
    ]  # fmt: skip
    return [{"name": "stories-told", "title": "Whom does the pronoun mean?", "cases": cases}]


def strongest_head(model: Any, case: Mapping[str, Any]) -> str | None:
    """The head whose ablation lowers a score most. The score is ln p(answer) − ln p(foil) of a case, else ln p of the
    likeliest token. Beyond `ABLATED` only `SCREENED` heads are ablated. None for a model in a bridge."""
    if not hasattr(model, "segment"):
        return None
    encode, ids = model.tokenizer.encode, model.tokenizer.encode(case["text"])
    last = len(ids) - 1
    words = [encode(case[name][0], bos=False)[0] for name in ("answers", "foils") if name in case]
    if len(set(words)) < 2:  # no case, or a pair whose words begin with one token
        with torch.inference_mode():
            words = [int(model(torch.tensor([ids], device=model.cfg.device))[0, -1].argmax())]
    heads = every_head(model)
    if len(heads) * sum(p.numel() for p in model.parameters()) > ABLATED:
        targets = torch.full((1, len(ids)), IGNORE)
        targets[0, last] = words[0]
        slope = attribute_heads(model, [(None, torch.tensor([ids]), targets)])
        heads = [heads[index] for index in np.argsort(slope, axis=None)[:SCREENED]]
    p = answer_log_probs(model, [ids], [last], [words], [scale_heads([head], 0.0) for head in heads])[1:, 0]
    layer, head = heads[int((p[:, 0] - p[:, 1:].sum(-1)).argmin())]
    return f"L{layer}.H{head}"


def identities(names: Sequence[str]) -> list[str]:
    """A short name for every model of a page, of letters, digits and hyphens, each once."""
    short_names: list[str] = []
    for name in names:
        short = re.sub("[^a-z0-9]", "-", Path(name).name.lower()).strip("-") or "model"
        short_names.append(f"{short}-{len(short_names) + 1}" if short in short_names else short)
    return short_names


_LINES = Template("""\
from streamscope.models.checkpoint import load_for_instruments
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import edits_of

model = load_for_instruments($name)
${without}tokens = model.to_tokens({TEXT})
edits = edits_of({EDITS}, model)
with edit(model, edits), capture(model, "blocks.{LAYER}.attn.hook_pattern") as seen:
    logits = model(tokens)
loss = model.loss_fn(logits, tokens, per_token=True)[0]  # nats, of the second token and all after it
pattern = seen["blocks.{LAYER}.attn.hook_pattern"][0, {HEAD}]  # [query, key]
p, ids = logits[0, -1].softmax(-1).topk(10)  # the next token
for token, share in zip(model.tokenizer.pieces(ids.tolist()), p.tolist()):
    print(f"{share:.4f} {token!r}")
print("loss", [round(value, 4) for value in loss.tolist()])
""")


def python_template(name: str, snapshots: bool = False, bos: bool = True) -> str:
    """Lines that reproduce the page's numbers, in which the page replaces {TEXT}, {EDITS}, {LAYER}, {HEAD}. With
    snapshots it replaces {STEP} too: by @1000, or by nothing for the final weights."""
    bos_line = "" if bos else 'model.tokenizer = model.tokenizer.with_bos("no")\n'
    return _LINES.substitute(without=bos_line, name=repr(f"{name}{'{STEP}' if snapshots else ''}"))
