"""Fine-tunes a run on pairs, for `python -m models.sft`."""

import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device, provenance
from streamscope.models.checkpoint import inherited, load, model_config, parent_of, unchanged_parent, whole_run
from streamscope.models.config import Dense
from streamscope.models.config.serialization import to_dict
from streamscope.models.hooks import check_weights
from streamscope.models.interop.huggingface.generation import read_eos, read_generation
from streamscope.models.run_names import read_manifest, run_folder
from streamscope.models.training.config import Training, check_given, saved_training, with_recipe
from streamscope.models.training.loop import Trainer, run_to_end
from streamscope.models.training.lora import add_lora
from streamscope.models.training.run import Run, check_startable, none_yet
from streamscope.models.transformer import StreamTransformer
from streamscope.text.pairs import TEMPLATE, PairWindows, check_template, encode_pairs, hold_out, prompt_of, read_pairs
from streamscope.text.tokenizer import Tokenizer, read_template

VALID_FRACTION = 0.05
AT_ONCE = 2**25
"""Most values of the residual stream (tokens · layers · width) in a micro-batch, which are 1,941 tokens of
SmolLM2-135M. Its adapters then train in 3 GB, all its weights in 5 GB. Bundled models stay far below."""


def start(options: Any, out: Path) -> None:
    """Start the fine-tuning with these `models.sft.Options`."""
    if not options.run or options.data is None:
        raise InputError("give a run and --data FILE, for example: runs/lfa --data pairs.jsonl --out runs/lfa-sft")
    plain = type(options)()
    if options.lora is None and (options.lora_on, options.lora_alpha) != (plain.lora_on, plain.lora_alpha):
        raise InputError("--lora-on and --lora-alpha have no effect without --lora RANK: give it, or leave them out")
    training = with_recipe(options.training, "", "small")
    training = replace(training, device=pick_device(training.device))
    check_startable(out)
    folder = run_folder(options.run)
    check_given(options.training, training, model_config(folder), plain.training)
    attention = model_config(folder).attention
    dense = [name for name in ("q", "v") if isinstance(getattr(attention, name), Dense)]
    names = dense if options.lora_on is None else [name.strip() for name in options.lora_on.split(",")]
    if options.lora and not names:
        raise InputError("--lora: neither queries nor values of this model are dense; name others with --lora-on")
    template = None if options.template is None else options.template.replace("\\n", "\n")
    if template is not None:
        check_template(template)
    elif not read_template(folder):  # else None: the model's chat template
        template = TEMPLATE
    sft = {
        "data": str(options.data), "valid": None if options.valid is None else str(options.valid),
        "template": template, "masked": not options.unmasked, "context": options.context,
        "lora": options.lora and {"rank": options.lora, "alpha": options.lora_alpha, "names": names},
    }  # fmt: skip
    trainer, counts = _trainer(folder, out, sft, training)
    config, manifest = inherited(folder)
    saved = {"model": to_dict(trainer.model.config), "training": asdict(trainer.training), **config, "sft": sft}
    manifest = {"preset": trainer.model.config.name, "scale": "", **manifest}
    manifest |= {
        "seed": training.seed, "parameters": counts.pop("parameters"), "parent": parent_of(folder), "sft": counts,
        "step": 0, "steps": trainer.steps,
        **provenance(training.device),
    }  # fmt: skip
    trainer.run = Run.create(out, saved, trainer.model.tokenizer, manifest, read_generation(folder))
    _fit(trainer, counts)


def resume(out: Path) -> None:
    """Continue the fine-tuning in `out`; raises `InputError` if its data, parent or tokenizer changed."""
    folder = whole_run(out)
    if "sft" not in read_json(folder / "config.json", Config):
        raise InputError(f"{folder} is not a fine-tuning: resume it with python -m models.train --resume --out {out}")
    saved = read_json(folder / "config.json", Config, needs=("training",))
    manifest = read_manifest(folder, needs=("parent", "sft"))
    training = saved_training(saved["training"], model_config(folder).d_model)
    restarts = none_yet(folder, training.checkpoint_every)
    start = unchanged_parent(manifest) if restarts else folder
    trainer, counts = _trainer(start, folder, saved["sft"], training, load_weights=restarts)
    if counts["tokenizer"] != manifest["sft"].get("tokenizer", counts["tokenizer"]):
        raise InputError(f"{folder / 'tokenizer.json'} changed since the run began: restore it, or tune a new run")
    for name in ("data", "valid"):
        if counts[name] != manifest["sft"][name]:
            raise InputError(f"the {name} pairs changed since the run began: a resumed run would not be the same run")
    trainer.resume()
    _fit(trainer, counts)


def with_micro_batches(training: Training, row: int) -> Training:
    """Split a batch into micro-batches if its rows, each of `row` values (tokens · layers · width), exceed `AT_ONCE`.
    The gradient is the same up to rounding."""
    batch = training.batch_size
    if batch is None or training.accumulate > 1 or training.phases:
        return training
    parts = (n for n in range(1, batch + 1) if batch % n == 0 and (batch // n * row <= AT_ONCE or n == batch))
    return replace(training, accumulate=next(parts))


def _trainer(
    start: Path, out: Path, sft: dict[str, Any], training: Training, *, load_weights: bool = True
) -> tuple[Any, dict[str, Any]]:
    """(trainer, counts of the pairs) for the model of `start`, with or without its weights."""
    pairs, valid_file = read_pairs(Path(sft["data"])), sft["valid"]
    train, valid = hold_out(pairs, VALID_FRACTION) if valid_file is None else (pairs, read_pairs(Path(valid_file)))
    prompts = set(map(prompt_of, train))
    if repeated := sum(prompt_of(row) in prompts for row in valid):
        print(f"{repeated:,} of {len(valid):,} validation pairs have a prompt of the training pairs: their loss says "
              "nothing of unseen prompts", file=sys.stderr)  # fmt: skip
    torch.manual_seed(training.seeds["noise"])
    if load_weights:
        model = load(start)
        check_weights(model)
    else:  # a checkpoint will fill it
        model = StreamTransformer(model_config(start), Tokenizer.load(start / "tokenizer.json"), seed=None)
        model.eos_ids = read_eos(start, None) or model.eos_ids
    tokenizer, n_ctx = model._text(), sft.get("context") or model.config.n_ctx
    if n_ctx > model.config.n_ctx:
        raise InputError(f"--context {n_ctx} is more than the context of the model, {model.config.n_ctx}")
    windows: dict[str, PairWindows] = {}
    counts: dict[str, Any] = {
        "template": sft["template"], "masked": sft["masked"], "tokenizer": tokenizer.sha256,
        "parameters": model.n_params(), "context": n_ctx,
    }  # fmt: skip
    for name, examples in (("data", train), ("valid", valid)):
        rows = encode_pairs(examples, tokenizer, n_ctx, sft["template"], model.eos_ids)
        w = windows[name] = PairWindows(
            rows, n_ctx, tokenizer.pad_id,
            packing=training.packing, masked=sft["masked"], fixed=training.compile != "off",
        )  # fmt: skip
        counts[name] = {
            "pairs": len(examples), "used": len(rows.rows), "truncated": rows.truncated, "dropped": rows.dropped,
            "targets": w.n_targets, "windows": len(w),
            "sha256": hashlib.sha256(json.dumps(list(examples)).encode()).hexdigest(),
        }  # fmt: skip
    if lora := sft.get("lora"):
        adapters = add_lora(model, lora["rank"], lora["alpha"], lora["names"], training.seeds["weights"])
        counts["lora"] = {**lora, "parameters": adapters}
    longest = max(w.n_ctx for w in windows.values())
    training = with_micro_batches(training, longest * model.config.n_layers * model.config.d_model)
    trainer = Trainer(model, training, windows["data"], windows["valid"], Run(out), training.device)
    return trainer, counts


def _fit(trainer: Any, counts: dict[str, Any]) -> None:
    for name, part in (("data", "training"), ("valid", "validation")):
        c = counts[name]
        print(
            f"{part}: {c['used']} of {c['pairs']} pairs ({c['truncated']} cut at {counts['context']} tokens, "
            f"{c['dropped']} without a response within them), {c['targets']:,} targets in {c['windows']} windows",
            file=sys.stderr,
        )
    if counts["template"] is not None:
        print(f"each pair is written as {counts['template']!r}; --template changes it", file=sys.stderr)
    if lora := counts.get("lora"):
        print(f"LoRA of rank {lora['rank']}: {lora['parameters']:,} parameters are trained", file=sys.stderr)
    run_to_end(trainer)
