"""The card of an exported model: architecture, training, measurements and use."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamscope.cli.disk import Config, TunedManifest, read_json
from streamscope.cli.terminal import cell, code, visible, without_html, yaml
from streamscope.models.checkpoint import read_manifest, run_folder, snapshot_step
from streamscope.models.config import ModelConfig
from streamscope.models.describe import parameters_by_part
from streamscope.models.training.config import tokens_seen
from streamscope.models.training.run import read_metrics
from streamscope.text.shards import document_count

if TYPE_CHECKING:
    from streamscope.models.transformer import StreamTransformer


def model_card(model: "StreamTransformer", run: str, architecture: str, license: str) -> str:
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


def _architecture(config: ModelConfig) -> list[tuple[str, ...]]:
    attention, mlp, readout = config.attention, config.mlp, config.readout
    rows: list[tuple[str, ...]] = [
        ("layers, heads, width", f"{config.n_layers}, {config.n_heads}, {config.d_model}"),
        ("vocabulary, context", f"{config.d_vocab:,}, {config.n_ctx:,}"),
        ("residual", config.residual.kind), ("norm", f"{config.norm.kind}, before the head {readout.norm.kind}"),
        ("positions", config.positions.kind), ("mixing of V-O/up-down", config.mixing),
        ("FFN", f"{config.d_mlp} wide, {mlp.activation}{', gated' if mlp.gate is not None else ''}"),
        ("head", "tied to the embedding" if readout.tied else "untied"),
    ]  # fmt: skip
    if attention.gate is not None:
        rows.append(("head gates", f"{attention.gate.shape}, from the {attention.gate.source}"))
    if config.kv_heads != config.n_heads:
        rows.append(("key-value heads", str(config.kv_heads)))
    if config.canon is not None:
        rows.append(("Canon layers", config.canon.places))
    if readout.supervision is not None:
        rule = readout.supervision
        rows.append(("trained on every layer", f"{rule.weights}, strength {rule.strength}"))
    return rows


def _training(folder: Path, manifest: dict[str, Any], config: ModelConfig) -> str:
    if "argv" not in manifest:
        if source := manifest.get("source"):
            return f"Not trained here; converted from {code(Path(source).name)}."
        return "Its training is unknown."
    lines, saved = list[str](), read_json(folder / "config.json", Config)
    train, step = manifest.get("data", {}).get("train"), manifest.get("step")
    if "sft" in saved:
        parent = read_manifest(folder, TunedManifest)["parent"]["run"]
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


def _use(model: "StreamTransformer", native: bool) -> str:
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
