"""Fine-tune a trained model on prompts with responses; the loss is that of the responses.

    python -m models.sft runs/lfa --data pairs.jsonl --out runs/lfa-sft
    python -m models.sft runs/lfa --data pairs.jsonl --valid held-out.jsonl --out runs/chat --epochs 3 --packing stream
    python -m models.sft runs/lfa --data pairs.jsonl --template "Q: {prompt}\\nA: {response}" --out runs/qa
    python -m models.sft --resume --out runs/lfa-sft

A line of the data is {"prompt": …, "response": …}. The loss is the mean over the tokens of the responses and the BOS
that ends each (--unmasked: of the prompts as well; padding is never a target). Defaults are those of SPEC §1.7: AdamW
6e-5, constant, decay 0.01, clip 1, batches of 16 windows. Weights start as the run's; the manifest names the parent.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamscope.models.cli import command, parse
from streamscope.models.config.serialization import from_dict
from streamscope.models.errors import InputError
from streamscope.models.provenance import pick_device
from streamscope.models.training.config import Training, with_recipe

VALID_FRACTION = 0.05


def recipe() -> Training:
    """The options of a training with SPEC §1.7's defaults."""
    return Training(
        lr=6e-5, lr_floor=1.0, warmup=0, weight_decay=0.01, beta2=0.999, optimizer="adamw", hc_lr=6e-5, hc_decay=0.01,
        batch_size=16, epochs=1.0, packing="document", eval_every=100, sample_every=0, checkpoint_every=100,
        snapshots="none",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m models.sft`."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder, or a bundled model, to start from."""
    data: Path | None = None
    """JSONL with prompt and response on each line."""
    valid: Path | None = None
    """JSONL to validate on; without it 5 % of the prompts of --data are held out."""
    template: str = "User: {prompt}\nAssistant: {response}"
    """Text of a pair; \\n is a new line."""
    unmasked: bool = False
    """Train on the prompts as well."""
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; everything else is read from there."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=recipe)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, check everything, train."""
    options = parse(Options, argv, __doc__)
    if options.out is None:
        raise InputError("--out RUN is missing: say where the run folder goes")
    if options.resume:
        if options != replace(Options(), out=options.out, resume=True):
            raise InputError("--resume takes everything from the run in --out: leave out the other arguments")
        _go_on(options.out)
    else:
        _start(options, options.out)


def _start(options: Options, out: Path) -> None:
    from streamscope.models.text.pairs import check_template

    if not options.run or options.data is None:
        raise InputError("give a run and --data FILE, for example: runs/lfa --data pairs.jsonl --out runs/lfa-sft")
    template = options.template.replace("\\n", "\n")
    check_template(template)
    training = with_recipe(options.training, "", "small")
    training = replace(training, device=pick_device(training.device))

    from streamscope.models.checkpoint import run_folder
    from streamscope.models.config.serialization import to_dict
    from streamscope.models.derived import inherited, parent_of
    from streamscope.models.provenance import provenance
    from streamscope.models.training.run import Run, check_startable

    check_startable(out)

    folder = run_folder(options.run)
    sft = {
        "data": str(options.data), "valid": None if options.valid is None else str(options.valid),
        "template": template, "masked": not options.unmasked,
    }  # fmt: skip
    trainer, counts = _trainer(folder, out, sft, training)
    config, manifest = inherited(folder)
    saved = {"model": to_dict(trainer.model.config), "training": asdict(training), **config, "sft": sft}
    manifest = {"preset": trainer.model.config.name, "scale": "", **manifest}
    manifest |= {
        "seed": training.seed, "parameters": trainer.model.n_params(), "parent": parent_of(folder), "sft": counts,
        **provenance(training.device),
    }  # fmt: skip
    trainer.run = Run.create(out, saved, trainer.model.tokenizer, manifest)
    _fit(trainer, counts)


def _go_on(out: Path) -> None:
    from streamscope.models.checkpoint import whole_run
    from streamscope.models.disk import Config, Tuned, TunedConfig, read_json
    from streamscope.models.training.checkpoints import none_yet

    folder = whole_run(out)
    if "sft" not in read_json(folder / "config.json", Config):
        raise InputError(f"{folder} is no fine-tuning: resume it with python -m models.train --resume --out {folder}")
    saved, manifest = read_json(folder / "config.json", TunedConfig), read_json(folder / "manifest.json", Tuned)
    training = from_dict(Training, saved["training"])
    again = none_yet(folder, training.checkpoint_every)
    start = _parent(manifest) if again else folder
    trainer, counts = _trainer(start, folder, saved["sft"], training, fresh=not again)
    if counts["tokenizer"] != manifest["sft"].get("tokenizer", counts["tokenizer"]):
        raise InputError(f"{folder / 'tokenizer.json'} changed since the run began: restore it, or tune a new run")
    for name in ("data", "valid"):
        if counts[name] != manifest["sft"][name]:
            raise InputError(f"the {name} pairs changed since the run began: a resumed run would not be the same run")
    trainer.resume()
    done = " (the run is complete)" if trainer.step == trainer.steps else ""
    print(f"resuming at step {trainer.step} of {trainer.steps}{done}", file=sys.stderr)
    _fit(trainer, counts)


def _parent(manifest: dict[str, Any]) -> Path:
    """The run that the fine-tuning started from. Raises `InputError` when it has other weights now."""
    from streamscope.models.checkpoint import run_folder
    from streamscope.models.derived import parent_of

    parent = run_folder(manifest["parent"]["run"])
    if parent_of(parent)["sha256"] != manifest["parent"]["sha256"]:
        raise InputError(f"{parent} has other weights than when the fine-tuning began; start it anew")
    return parent


def _trainer(
    start: Path, out: Path, sft: dict[str, Any], training: Training, *, fresh: bool = False
) -> tuple[Any, dict[str, Any]]:
    """(trainer, counts of the pairs). The model is that of `start`; `fresh`: its shape only, a checkpoint fills it."""
    import torch

    from streamscope.models.checkpoint import load, model_config
    from streamscope.models.text.pairs import PairWindows, encode_pairs, hold_out, read_pairs
    from streamscope.models.text.tokenizer import Tokenizer
    from streamscope.models.training.loop import Trainer
    from streamscope.models.training.run import Run
    from streamscope.models.transformer import StreamTransformer

    pairs = read_pairs(Path(sft["data"]))
    if sft["valid"] is not None:
        train, valid = pairs, read_pairs(Path(sft["valid"]))
    else:
        train, valid = hold_out(pairs, VALID_FRACTION)
    torch.manual_seed(training.seed_of("noise"))
    if fresh:
        model = StreamTransformer(model_config(start), Tokenizer.load(start / "tokenizer.json"))
    else:
        model = load(start)
    tokenizer, n_ctx = model._text(), model.config.n_ctx
    windows: dict[str, PairWindows] = {}
    counts: dict[str, Any] = {"template": sft["template"], "masked": sft["masked"]}
    counts["tokenizer"] = tokenizer.sha256
    for name, some in (("data", train), ("valid", valid)):
        rows = encode_pairs(some, tokenizer, n_ctx, sft["template"])
        w = PairWindows(rows, n_ctx, tokenizer.pad_id, packing=training.packing, masked=sft["masked"])
        windows[name] = w
        counts[name] = {
            "pairs": len(some), "used": len(rows.rows), "truncated": rows.truncated, "dropped": rows.dropped,
            "targets": w.n_targets, "windows": len(w), "sha256": _digest(some),
        }  # fmt: skip
    return Trainer(model, training, windows["data"], windows["valid"], Run(out), training.device), counts


def _digest(pairs: Sequence[tuple[str, str]]) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()


def _fit(trainer: Any, counts: dict[str, Any]) -> None:
    from streamscope.models.training.loop import run_to_end

    n_ctx = trainer.model.config.n_ctx
    for name, part in (("data", "training"), ("valid", "validation")):
        c = counts[name]
        print(
            f"{part}: {c['used']} of {c['pairs']} pairs ({c['truncated']} cut at {n_ctx} tokens, {c['dropped']} "
            f"without a response within them), {c['targets']:,} targets in {c['windows']} windows",
            file=sys.stderr,
        )
    run_to_end(trainer)


if __name__ == "__main__":
    command(main)
