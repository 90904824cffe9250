"""Writes a run as a folder of the transformers library, with its card: architecture, training, measurements, use."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamscope.cli.disk import Config, read_json, write_text
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import cell, code, visible, without_html, yaml
from streamscope.models import checkpoint
from streamscope.models.checkpoint import ZOO, load, read_manifest, run_folder, snapshot_step
from streamscope.models.config import ModelConfig
from streamscope.models.config.serialization import to_dict
from streamscope.models.describe import parameters_by_part
from streamscope.models.hooks import check_weights
from streamscope.models.interop.huggingface.families import FAMILIES, native
from streamscope.models.interop.huggingface.generation import read_generation
from streamscope.models.interop.tables import give, shapes_of
from streamscope.models.run_names import read_metrics
from streamscope.models.tensors import GENERATION, OTHER_SAMPLING, new_folder, read_tensors, write_tensors
from streamscope.models.training.config import tokens_seen
from streamscope.models.transformer import StreamTransformer
from streamscope.text.shards import document_count
from streamscope.text.tokenizer import Tokenizer

AUTO = {
    "AutoConfig": "configuration_streamscope.StreamscopeConfig",
    "AutoModelForCausalLM": "modeling_streamscope.StreamscopeForCausalLM",
}
CODE = """# pip install streamscope
from streamscope.models.interop.export.{module} import {name}  # noqa: F401
"""
"""A file of the folder, by which the library finds a class of ours."""


def export(
    run: str, out: Path, *, native: bool = False, snapshots: bool = False, license: str = ""
) -> list[tuple[Path, str]]:
    """Write everything or nothing; returns (folder, its content) of each model."""
    with new_folder(out) as part:
        rows = checkpoint.snapshots(run_folder(run)) if snapshots else []
        if snapshots and not rows:
            raise InputError(f"{run} has no snapshots: train with --snapshots log, or export without --snapshots")
        license = license or ("mit" if run_folder(run).parent == ZOO else "")
        contents = [(out, _write(run, part, native, license))]
        for row in rows:
            name = f"step-{row['step']:06d}"
            contents.append((out / name, _write(f"{run}@{row['step']}", part / name, native, license)))
    return contents


def _write(run: str, folder: Path, as_native: bool, license: str) -> str:
    """Write one model to a new folder; returns a short description."""
    model = load(run)
    check_weights(model)
    config = model.config
    tensors = read_tensors(run_folder(run) / "model.safetensors")[0]
    exported = {"parts": to_dict(config), "auto_map": AUTO, "use_cache": False}
    kind, output, target_config = native(config) if as_native else ("streamscope", exported, config)
    family = FAMILIES[kind]
    described = {"architectures": [family.architecture], "model_type": kind, "dtype": "float32", **output}
    folder.mkdir(exist_ok=True)
    tokenizer, ids = model.tokenizer, dict[str, Any]()
    if tokenizer is not None:
        ids = dict.fromkeys(("bos_token_id", "pad_token_id"), tokenizer.bos_id)
        _write_tokenizer(tokenizer, model.eos_ids, folder, config.n_ctx)
    if model.eos_ids:
        ids["eos_token_id"] = model.eos_ids[0] if len(model.eos_ids) == 1 else list(model.eos_ids)
    _write_json(folder / "config.json", described | ids)
    sampling = read_generation(run_folder(run))  # as its makers do; llama.cpp's own fields mean nothing to the library
    generation = {name: x for name, x in sampling.items() if not name.startswith(OTHER_SAMPLING)} | ids
    _write_json(folder / GENERATION, generation | ({} if as_native else {"use_cache": False}))
    output = give(family.names(target_config, family.prefix), tensors, shapes_of(target_config))
    write_tensors(folder / "model.safetensors", output, {"format": "pt"})
    for module, name in (place.split(".") for place in AUTO.values()) if not as_native else ():
        write_text(folder / f"{module}.py", CODE.format(module=module, name=name))
    write_text(folder / "README.md", model_card(model, run, family.architecture, license))
    return f"{family.architecture}, {model.n_params():,} parameters{', no tokenizer' if tokenizer is None else ''}"


def _write_tokenizer(tokenizer: Tokenizer, eos: tuple[int, ...], folder: Path, n_ctx: int) -> None:
    """Write our tokenizer.json, and the options with which the library's fast tokenizer gives our ids."""
    tokenizer.save(folder / "tokenizer.json")
    end_id = eos[0] if eos and eos[0] < tokenizer.d_vocab else tokenizer.bos_id
    bos, end = tokenizer.pieces([tokenizer.bos_id, end_id])
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": n_ctx,
        "split_special_tokens": tokenizer.chat_template is None,  # a chat names its special tokens in the text
        "clean_up_tokenization_spaces": False, "bos_token": bos, "eos_token": end, "pad_token": bos,
        "model_input_names": ["input_ids", "attention_mask"], "padding_side": "left",
    }  # fmt: skip
    _write_json(folder / "tokenizer_config.json", options)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


# ---- the card ------------------------------------------------------------------------------------


def model_card(model: StreamTransformer, run: str, architecture: str, license: str) -> str:
    """README.md of an exported model; unknown facts are stated as unknown."""
    folder, config = run_folder(run), model.config
    manifest = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    head = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:", "- streamscope"]
    head += [f"- {yaml(config.name)}", *([f"license: {yaml(license)}"] if license else []), "---"]
    native = architecture.startswith("Streamscope")
    parts = [
        "\n".join(head),
        f"# {cell(run.replace('hf:', ''))}",
        f"A causal language model of {model.n_params():,} parameters, the architecture {code(config.name)} of "
        "streamscope" + ("." if native else f", written as `{architecture}`, which computes the same."),
        "## Architecture\n\n" + _table(("part", "value"), _architecture(config)),
        _table(("parameters", "count"), [(f"`{part}`", f"{n:,}") for part, n in parameters_by_part(model)]),
        "## Training\n\n" + _training(folder, manifest, config),
        "## Measured\n\n" + _measured(folder, run),
        "## Use\n\n" + _use(model, native),
        f"## Licence\n\n{cell(license) or 'Not stated by who exported it.'}",
    ]
    return "\n\n".join(parts) + "\n"


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _architecture(config: ModelConfig) -> list[tuple[str, str]]:
    attention, mlp, readout = config.attention, config.mlp, config.readout
    gate, rule = attention.gate, readout.supervision
    rows = {
        "layers, heads, width": f"{config.n_layers}, {config.n_heads}, {config.d_model}",
        "vocabulary, context": f"{config.d_vocab:,}, {config.n_ctx:,}",
        "residual": config.residual.kind,
        "norm": f"{config.norm.kind}, before the head {readout.norm.kind}",
        "positions": config.positions.kind,
        "mixing of V-O/up-down": config.mixing,
        "FFN": f"{config.d_mlp} wide, {mlp.activation}{', gated' if mlp.gate is not None else ''}",
        "head": "tied to the embedding" if readout.tied else "untied",
        "head gates": gate and f"{gate.shape}, from the {gate.source}",
        "key-value heads": str(config.kv_heads) if config.kv_heads != config.n_heads else "",
        "Canon layers": config.canon and config.canon.places,
        "trained on every layer": rule and f"{rule.weights}, strength {rule.strength}",
    }
    return [(name, value) for name, value in rows.items() if value]


def _training(folder: Path, manifest: dict[str, Any], config: ModelConfig) -> str:
    if "argv" not in manifest:
        if source := manifest.get("source"):
            return f"Not trained here; converted from {code(Path(source).name)}."
        return "Its training is unknown."
    lines, saved = list[str](), read_json(folder / "config.json", Config)
    train, step = manifest.get("data", {}).get("train"), manifest.get("step")
    if "sft" in saved:
        parent = read_manifest(folder, ("parent",))["parent"]["run"]
        lines.append(f"Fine-tuned on {code(saved['sft']['data'])}, from {code(parent)}, whose data come next.")
    if train is not None:
        documents = document_count(train["n_documents"], manifest["data"]["valid"])
        lines.append(
            f"Data: {code(train['source']['source'])}, {documents}, {train['n_tokens']:,} tokens, "
            f"fingerprint {code(train['corpus'][:12])}."
        )
    training = saved.get("training", {})
    if step is not None and "batch_size" in training:
        of = f" of {manifest['of_steps']:,}" if manifest.get("of_steps") else ""
        padding = " and padding" if training.get("packing") == "document" else ""
        seen = f", {tokens_seen(training, config.n_ctx, step):,} tokens seen, including repetitions{padding}"
        lines.append(f"{step:,} steps{of}{'' if 'sft' in saved else seen}.")
    commit = str(manifest.get("commit") or "unknown")[:12]
    device = manifest.get("device", "device unknown")
    lines.append(f"Seed {manifest.get('seed')}, commit {cell(commit)}, {cell(device)}.")
    return "\n".join(lines) + f"\n\n    {visible(shlex.join(manifest['argv']))}"


def _measured(folder: Path, run: str) -> str:
    step = snapshot_step(folder)
    rows = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    losses = [row for row in rows if row["kind"] == "eval" and (step is None or row["step"] == step)]
    lines = []
    if losses:
        last = losses[-1]
        manifest = read_manifest(folder)
        valid = manifest.get("data", {}).get("valid", {}).get("source", {}).get("source", "its validation data")
        if sft := read_json(folder / "config.json", dict[str, Any]).get("sft"):
            valid = sft["valid"] or f"held-out pairs of {sft['data']}"
        over = f"{int(last['tokens']):,} tokens of " if "tokens" in last else ""
        where = (f"{over}{code(valid)}", f"{run}, step {last['step']:,}")
        loss, perplexity = f"{last['loss']:.4f}", f"{last['perplexity']:.3f}"
        values = [("loss, nats/token", loss, *where), ("perplexity", perplexity, *where)]
        lines.append(_table(("measured", "value", "on", "run"), values))
    card = folder / "README.md"
    if step is None and card.is_file():
        text = card.read_text(encoding="utf-8")
        _, has_table, tail = text.partition("\n|")
        table = tail.partition("\nLicence:")[0]  # and the explanation of its rows
        if has_table:
            if "| loss " in table and lines:
                lines.append(
                    "The loss below differs, because it is over documents, each read from its beginning and cut at the "
                    "context; the loss above is the training's last evaluation, over windows of its validation data."
                )
            lines.append(f"From the card of the run {code(run)}:\n\n|{without_html(table.rstrip())}")
    return "\n\n".join(lines) or "Nothing was measured on this run."


def _use(model: StreamTransformer, native: bool) -> str:
    """Code to open the model, and its differences from other models of the library."""
    trust, text = ", trust_remote_code=True" if native else "", ""
    lines = [
        *["# pip install streamscope"] * native, "from transformers import AutoModelForCausalLM, AutoTokenizer", "",
        f'model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})',
    ]  # fmt: skip
    if model.tokenizer is not None:
        lines += [
            f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})',
            'text = tokenizer("Once upon a time", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**text, max_new_tokens=20)[0]))",
        ]
        token_ids = range(model.tokenizer.d_vocab)
        bos, *ends = model.tokenizer.pieces([model.tokenizer.bos_id, *(i for i in model.eos_ids if i in token_ids)])
        ending = "it also" if ends == [bos] else " or ".join(map(code, ends)) or "no token"
        text = f"Every text begins with {code(bos)}, which the tokenizer adds; {ending} ends a generated text. "
    if native:
        text += (
            "There is no cache of keys and values: `use_cache` changes nothing. The modules named `hook_*` are "
            "identities, where forward hooks of torch can read and replace activations. "
        )
    return "```python\n" + "\n".join(lines) + f"\n```\n\n{text}The context is {model.config.n_ctx:,} tokens."
