"""How much memory a training will take, before it takes it.

    weights + gradients + moments of the optimiser + activations of the longest micro-batch + logits of one chunk
    + the program on a CPU

Activations are the tensors that autograd keeps for the backward pass. They are counted by running the training loss on
tensors that have shapes and no content (`FakeTensorMode`), so the count is exact for every architecture. What
exists for a moment only, such as a product's scratch space, is not included: some 0.3 GB for a model of 135 M.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from streamscope.cli.errors import InputError
from streamscope.models.decoder import machine_memory
from streamscope.models.readout import loss_rows
from streamscope.models.training.optim import Muon

PROGRAM = 400_000_000
"""Bytes of Python and torch themselves, once they have computed on a CPU."""


def activations(trainer: Any, batch: int, length: int) -> int:
    """Bytes that autograd keeps after the loss of tokens [batch, length], without parameters and buffers."""
    model = trainer.model.train()
    kept: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage._cdata] = storage  # held, so that no other storage gets its address
        return x

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    constant = [*model.parameters(), *model.buffers()]
    constant += [mode.from_tensor(x) for x in constant]
    own = {x.untyped_storage()._cdata for x in constant}
    with torch.random.fork_rng(), mode, saved_tensors_hooks(pack, lambda x: x), trainer.autocast():
        tokens = torch.zeros(batch, length, dtype=torch.long, device=trainer.device)
        model.loss(tokens, tokens)
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


def estimate(trainer: Any, batch: int, length: int) -> dict[str, int]:
    """Bytes of a training by what holds them, with micro-batches of [batch, length] tokens."""
    model, config = trainer.model, trainer.model.config

    def size(parameters: Any) -> int:
        return sum(p.numel() * p.element_size() for p in parameters)

    trained = [p for p in model.parameters() if p.requires_grad]
    moments = sum(
        (1 if isinstance(part, Muon) else 0 if isinstance(part, torch.optim.SGD) else 2) * size(group["params"])
        for part in trainer.optimizer.parts
        for group in part.param_groups
    )
    chunk = min(batch * length, loss_rows(config.d_vocab, trainer.device.type))
    head = config.d_model * config.d_vocab * 4 if model.head.requires_grad else 0  # the gradient of a second chunk
    return {
        "weights": size(model.parameters()), "gradients": size(trained), "moments": moments,
        "activations": activations(trainer, batch, length), "logits": 4 * chunk * config.d_vocab + head,
        "program": PROGRAM if trainer.device.type == "cpu" else 0,
    }  # fmt: skip


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of the device's memory that are free, and all of them."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    meminfo, total = Path("/proc/meminfo"), machine_memory()
    if not meminfo.is_file():
        return total, total
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024, total


def announce(trainer: Any, length: int) -> None:
    """Print the estimate for windows of up to `length` tokens on stderr, with a warning if less memory is free.

    Raises `InputError` if the device does not have this memory at all.
    """
    batch = trainer.batch // trainer.training.accumulate
    parts = estimate(trainer, batch, length)
    needed, (free, total) = sum(parts.values()), free_and_total(trainer.device)
    detail = ", ".join(f"{size / 1e9:.2f} {name}" for name, size in parts.items())
    line = f"about {needed / 1e9:.1f} GB for {batch} x {length} tokens at once ({detail})"
    remedy = "choose --lora 8, a smaller --context, or more micro-batches (--accumulate)"
    if needed > total:
        raise InputError(f"{line}, but {trainer.device} has {total / 1e9:.1f} GB: {remedy}")
    print(line, file=sys.stderr)
    if needed > free:
        print(f"warning: only {free / 1e9:.1f} GB are free: {remedy}", file=sys.stderr)
