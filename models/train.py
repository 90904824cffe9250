"""Train a preset on a corpus and save it as a run folder.

python -m models.train lfa --data stories --scale zoo --out runs/lfa
python -m models.train lfa --data train.txt --valid valid.txt --scale small --out runs/lfa --epochs 4
python -m models.train lfa --data "stories*.5 + tinystories.txt*.5" --scale zoo --out runs/mixed
python -m models.train lfa --data stories --scale zoo --phases 18000:8x64,2000:8x128 --out runs/phases
python -m models.train lfa --data book.txt --valid-blocks 20 --out runs/book
python -m models.train pls --data corpus/ --tokenizer gpt2/ --scale paper --out runs/pls
python -m models.train lfa --start runs/lfa@6000 --data stories --scale zoo --steps 500 --out runs/on
python -m models.train --resume --out runs/lfa
torchrun --nproc-per-node 4 -m models.train lfa --data stories --scale paper --out runs/lfa

With torchrun, each process computes a part of every batch (`models.training.parallel`).
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from annotated_types import Gt, Lt

from streamscope.cli.bounds import Count
from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.provenance import check_device, pick_device
from streamscope.cli.terminal import counted, visible
from streamscope.models.config import ModelConfig
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import override, parse_set, to_dict
from streamscope.models.run_names import run_folder
from streamscope.models.training.config import Training, check_given, destination, saved_training, with_recipe
from streamscope.text import SplitAt
from streamscope.text.corpus import open_corpus

SOURCE = ("data", "valid", "text_field", "max_documents", "split_at", "valid_fraction", "valid_blocks")
LEAST_VOCABULARY = 300
"""Minimum number of entries of a tokenizer that is trained here; bytes alone need 256."""


@dataclass(frozen=True, kw_only=True)
class Options:
    preset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")] = ""
    """std-t d-cas lfa cfm · dst-dense dst-kron dst-ind dst-full-ind · pls c2 · llama hdpl · gpt2 canon kromhc
    kromcanon."""
    data: str | None = None
    """Training SOURCE: a .txt, .jsonl, .json, .csv or .parquet file, a folder of them (its train split, if it has
    splits), a Hugging Face id, stories, echo, or a mixture with weights by tokens, "A*.5 + B*.5"."""
    valid: str | None = None
    """Validation SOURCE; default: a held-out part of --data."""
    valid_fraction: Annotated[float, Gt(0), Lt(1)] | None = None
    """Fraction of the documents of --data to hold out, chosen by a hash of their text; default: 0.05."""
    valid_blocks: Count | None = None
    """Number of blocks per document whose ends are held out instead of whole documents; no training window reads them.
    Default: 10 if whole documents would leave one side empty, as for a single book."""
    text_field: str = "text"
    """Field or column with the text in JSON, CSV, parquet and Hugging Face sources; if there is no field text, chats in
    a field messages are read."""
    split_at: SplitAt = "separator"
    """Separator of the documents in a text file: lines <|endoftext|> (separator), blank lines (blank), or none
    (file)."""
    max_documents: Count | None = None
    """Read at most this many documents."""
    scale: Literal["paper", "small", "zoo", "tiny"] = "small"
    """paper: as printed; small: width 192; zoo: width 96; tiny: for tests."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Change the model, for example --set attention.v=kron --set n_layers=4 --set mixing=kron-kron/dns-dns."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder with encoder.json and vocab.bpe, a run or a bundled model; default: BPE trained on the
    data."""
    start: str | None = None
    """Start from the weights and tokenizer of this run, snapshot (RUN@STEP) or bundled model with the same
    configuration; default: random weights. Optimiser and schedule start anew."""
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its own options."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=Training)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    out, resume = destination(options, "begin a new run from its weights with --start")
    if resume:
        _resume(out)
    else:
        _start(options, out)


def _start(options: Options, out: Path) -> None:
    if not options.preset or options.data is None:
        raise InputError("give a preset and --data SOURCE, for example: lfa --data stories --out runs/lfa")
    changes = parse_set(options.set)
    config = preset(options.preset, options.scale, **changes)
    training = with_recipe(options.training, options.preset, options.scale)
    check_given(options.training, training, config, Training())
    check_device(training.device)
    for source in filter(None, (options.data, options.valid)):
        open_corpus(source, text_field=options.text_field, split_at=options.split_at)
    if options.start:
        run_folder(options.start)
    training = replace(training, device=pick_device(training.device))

    from streamscope.models.training.run import check_startable

    check_startable(out)
    tokenizer = options.tokenizer or (options.start and str(run_folder(options.start) / "tokenizer.json"))
    d_vocab = config.d_vocab if "d_vocab" in changes else max(config.d_vocab, LEAST_VOCABULARY)
    data, group, device = _prepare(training, {name: getattr(options, name) for name in SOURCE}, tokenizer, d_vocab)
    reached, given = data.tokenizer.d_vocab, "d_vocab" in changes
    if tokenizer is None and reached < d_vocab:
        line = f"the data fills a vocabulary of {reached}"
        if given:
            raise InputError(f"{line}, not {d_vocab}: give more text, or --set d_vocab={reached}")
        if group.leader:
            print(f"{line}, less than {d_vocab}: d_vocab is {reached}", file=sys.stderr)
    if not given:
        config = override(config, {"d_vocab": reached})
    elif reached > config.d_vocab:
        raise InputError(f"the tokenizer has {reached} entries, but d_vocab is {config.d_vocab}")
    _fit(_trainer(config, training, data, out, options.scale, group, device, options.start), data)


def _resume(out: Path) -> None:
    from streamscope.cli.disk import Config, Manifest, TrainedConfig, read_json
    from streamscope.models.checkpoint import model_config, unchanged_parent, whole_run
    from streamscope.models.training.run import none_yet

    folder = whole_run(out)
    config = model_config(folder)
    if "sft" in read_json(folder / "config.json", Config):
        raise InputError(f"{folder} is a fine-tuning: use python -m models.sft --resume --out {folder}")
    saved = read_json(folder / "config.json", TrainedConfig)
    training, source = saved_training(saved["training"], config.d_model), saved["data"]
    data, group, device = _prepare(training, source, str(folder / "tokenizer.json"), config.d_vocab)
    manifest = read_json(folder / "manifest.json", Manifest, needs=("argv", "data"))
    for part, dataset in (("train", data.train), ("valid", data.valid)):
        was = manifest["data"][part]["corpus"]
        if was != dataset.meta["corpus"]:
            raise InputError(f"the {part} data changed since the run began: a resumed run would not be the same run")
    if manifest["data"]["tokenizer"]["sha256"] != data.tokenizer.sha256:
        raise InputError(f"{folder / 'tokenizer.json'} changed since the run began: restore it, or train a new run")
    starts_again = "parent" in manifest and none_yet(folder, training.checkpoint_every)
    start = str(unchanged_parent(manifest)) if starts_again else None
    trainer = _trainer(config, training, data, folder, None, group, device, start)
    trainer.resume()
    _fit(trainer, data)


def _prepare(training: Training, source: dict[str, Any], tokenizer: str | None, d_vocab: int) -> tuple[Any, Any, str]:
    """(data, processes, device): process 0 prepares the data first, the others read its cache."""
    from streamscope.models.training.parallel import ranks
    from streamscope.models.training.prepare import prepare

    group, device = ranks(training.device, training.parallel)
    if group.leader:
        print(visible(f"reading {source['data']}"), file=sys.stderr)
    with group.leader_first():
        return prepare(tokenizer=tokenizer, d_vocab=d_vocab, **source), group, device


def _trainer(
    config: ModelConfig, training: Training, data: Any, out: Path, scale: str | None, group: Any, device: str,
    start: str | None = None,
) -> Any:  # fmt: skip
    """Make the model, the windows and, after all checks and unless it is resumed (`scale` None), the run folder."""
    from streamscope.cli.provenance import provenance
    from streamscope.models.checkpoint import parent_of
    from streamscope.models.training.loop import Trainer
    from streamscope.models.training.prepare import windows
    from streamscope.models.training.run import Reader, Run
    from streamscope.models.transformer import StreamTransformer

    group.seed_noise(training.seeds["noise"])
    model = StreamTransformer(config, data.tokenizer, seed=training.seeds["weights"])
    if start is not None:
        model.load_state_dict(_same_model(start, config, data.tokenizer).state_dict())
    train, valid = (windows(shards, config.n_ctx, training.packing) for shards in (data.train, data.valid))
    trainer = Trainer(model, training, train, valid, Run(out) if group.leader else Reader(out), device, group)
    if scale is not None and group.leader:
        manifest = {
            "preset": config.name, "scale": scale, "seed": training.seed, "seeds": training.seeds,
            "parameters": model.n_params(), "data": data.description, "processes": group.size,
            **({} if start is None else {"parent": parent_of(run_folder(start))}),
            **provenance(device),
        }  # fmt: skip
        saved = {"model": to_dict(config), "training": asdict(trainer.training), "data": data.source}
        trainer.run = Run.create(out, saved, data.tokenizer, manifest)
    return trainer


def _same_model(start: str, config: ModelConfig, tokenizer: Any) -> Any:
    """The model of --start. Raises `InputError` if its configuration or tokenizer differs, and for NaN weights."""
    from streamscope.models.checkpoint import load
    from streamscope.models.hooks import check_weights
    from streamscope.models.runs import flatten

    model = load(start)
    check_weights(model)
    new_config, start_config = (flatten(to_dict(item)) for item in (config, model.config))
    names = [name for name in {**new_config, **start_config} if "init" not in name]  # initial weights are replaced
    if differences := [name for name in names if new_config.get(name) != start_config.get(name)]:
        values = ", ".join(
            f"{name} is {start_config.get(name)} there, {new_config.get(name)} here" for name in differences[:3]
        )
        raise InputError(f"--start {start} is another model: {values}; give its preset, --scale and --set")
    if model.tokenizer is None or model.tokenizer.sha256 != tokenizer.sha256:
        raise InputError(f"--start {start} has another tokenizer than --tokenizer: leave out --tokenizer")
    return model


def _fit(trainer: Any, data: Any) -> None:
    from streamscope.models.training.loop import run_to_end
    from streamscope.models.training.prepare import parts_not_held_out, repeated_documents
    from streamscope.text.shards import document_count

    model, folder = trainer.model, trainer.run.folder
    if trainer.ranks.leader:
        lengths = ", then ".join(f"{phase.batch_size} x {phase.n_ctx}" for phase in trainer.phases)
        print(
            f"{visible(model.config.name)} {model.config.mixing}: {model.n_params():,} parameters; "
            f"{data.train.n_tokens:,} training tokens in {document_count(data.train.n_documents, data.valid.meta)}, "
            f"{data.valid.n_tokens:,} for validation ({data.valid.meta['rule']}); "
            f"{counted(trainer.steps, 'step')} of {lengths} tokens -> {visible(folder)}",
            file=sys.stderr,
        )
        late = trainer.training.late_positions(model.config.n_ctx)
        if late and model.config.positions.table:
            print(late, file=sys.stderr)
        if data.source["valid"] is not None and (repeated := repeated_documents(data)):
            print(f"{repeated:,} of {data.valid.n_documents:,} validation documents are also in the training text: "
                  "their loss says nothing of unseen text", file=sys.stderr)  # fmt: skip
        if unread := parts_not_held_out(data):
            print(f"no document of {visible(' and '.join(unread))} is held out, so validation does not read it: give "
                  "--valid-blocks 10 to hold out parts of documents", file=sys.stderr)  # fmt: skip
        steps = trainer.training.snapshots.split(",")
        if lost := [step for step in steps if step.isdecimal() and int(step) > trainer.steps]:
            print(f"--snapshots: no step {', '.join(lost)}, the run ends at {trainer.steps}", file=sys.stderr)
    run_to_end(trainer)


if __name__ == "__main__":
    command(main)
