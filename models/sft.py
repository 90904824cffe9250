"""Fine-tune a trained model on prompts with responses; only the responses count in the loss.

    python -m models.sft runs/lfa --data pairs.jsonl --out runs/lfa-sft
    python -m models.sft runs/lfa --data pairs.jsonl --valid held-out.jsonl --out runs/chat --epochs 3 --packing stream
    python -m models.sft runs/lfa --data pairs.jsonl --template "Q: {prompt}\\nA: {response}" --out runs/qa
    python -m models.sft runs/smollm2 --data chats.jsonl --lora 8 --lr 5e-4 --context 256 --out runs/smollm2-sft
    python -m models.sft --resume --out runs/lfa-sft

A line of the data is {"prompt": …, "response": …}, or a chat {"messages": [{"role": …, "content": …}, …]} for a model
with a chat template. The loss is the mean over the tokens of the responses (of a chat, the assistant's turns) and the
token that ends each, with --unmasked also over the prompts; padding is never a target. Batches are padded to their
longest row. Those of a large model are split into micro-batches, which changes the gradient only by rounding. Before
the training, one line says how much memory it will take.

--lora RANK freezes the model's weights W and trains W + (α / RANK) B A in their place, in the projections --lora-on
(Hu et al. 2021, LoRA). The run holds the merged weights, so it is an ordinary run.

Defaults are those of SPEC §1.7: AdamW 6e-5, constant, decay 0.01, clip 1, batches of 16 windows. Training starts from
the run's weights; the manifest names the parent run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from streamscope.cli.bounds import Count, Positive
from streamscope.cli.errors import InputError, near_files
from streamscope.cli.parse import command, parse
from streamscope.models.run_names import run_folder
from streamscope.models.training.config import Training, destination


def recipe() -> Training:
    """Training options with the defaults of SPEC §1.7."""
    return Training(
        lr=6e-5, lr_floor=1.0, warmup=0, weight_decay=0.01, beta2=0.999, optimizer="adamw", hc_lr=6e-5, hc_decay=0.01,
        batch_size=16, epochs=1.0, packing="document", eval_every=100, sample_every=0, checkpoint_every=100,
        snapshots="none",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    run: Annotated[str, tyro.conf.Positional] = ""
    """Run folder, or a bundled model, to start from."""
    data: Path | None = None
    """JSONL with prompt and response, or the messages of a chat, on each line."""
    valid: Path | None = None
    """JSONL for validation; default: 5 % of the prompts of --data, held out."""
    template: str | None = None
    """Template of a pair, with {prompt} and {response}; \\n is a new line. Default: the model's chat template if it has
    one, else User: {prompt}\\nAssistant: {response}."""
    unmasked: bool = False
    """Also train on the prompts."""
    context: Count | None = None
    """Cut rows after this many tokens; default: the context of the model."""
    lora: Count | None = None
    """Train adapters of this rank instead of the whole model. They need a higher rate: --lr 5e-4."""
    lora_on: str | None = None
    """Names of the dense projections with an adapter, such as q,k,v,o,up,down,gate, or all; default: those of q and v
    that are dense."""
    lora_alpha: Positive = 16.0
    """α: adapters are multiplied by α / RANK."""
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its own options."""
    training: Annotated[Training, tyro.conf.OmitArgPrefixes] = field(default_factory=recipe)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    out, resuming = destination(options, "tune its weights anew by naming it as RUN")
    for path in filter(None, (options.data, options.valid)):
        if not path.exists():
            raise InputError(f"{path} does not exist; {near_files(path) or 'check the path'}")
    if options.run:
        run_folder(options.run)

    from streamscope.models.training.tuning import resume, start

    if resuming:
        resume(out)
    else:
        start(options, out)


if __name__ == "__main__":
    command(main)
