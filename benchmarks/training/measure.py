"""Measurements of `python -m benchmarks.training`: a line for each ratio, above 1 where ours is faster."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from streamscope.benchmarks.inputs import random_tokens
from streamscope.benchmarks.timing import interleaved, machine
from streamscope.benchmarks.training import PARTS, Options, Part
from streamscope.benchmarks.training.peers import PlainGPT, without_hooks
from streamscope.cli.errors import InputError
from streamscope.models import build, preset
from streamscope.models.config import ModelConfig
from streamscope.models.tensors import keep_memory
from streamscope.models.training.config import Training, with_recipe
from streamscope.models.training.optim import make_optimizer
from streamscope.models.transformer import StreamTransformer

Step = Callable[[], None]


def measure(options: Options) -> None:
    o = options
    if o.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no CUDA device here")
    how = f"{o.dtype}, {'compiled blocks' if o.compile else 'eager'}, {o.clock} time"
    print(f"{machine(o.device)}; {how}, {o.batch} x {o.context} tokens, {o.rounds} rounds", flush=True)
    for part in sorted(o.parts, key=PARTS.index):
        if part in ("presets", "pairs"):  # both sides are trainings; what another side does with its memory is its own
            keep_memory()
        for peer, peer_step, name, step in compared(part, o):
            times = interleaved({"theirs": peer_step, "ours": step}, rounds=o.rounds, warmup=2, clock=o.clock)
            speed = f"{o.batch * o.context / times.median('ours'):,.0f} tokens/s"
            print(f"{part}: {name}: {times.ratio('theirs', 'ours')} x {peer}, {speed}", flush=True)


def compared(part: Part, o: Options) -> Iterator[tuple[str, Step, str, Step]]:
    """(peer, its step, ours, our step) of every line of a part."""
    width, vocabulary = o.widths[0], o.vocabularies[0]
    if part == "hooks":
        for name in dict.fromkeys(["std-t", *o.presets]):
            c = shape(name, o, width, vocabulary, **{"dropout": 0.0, "attention.dropout": 0.0})
            model = build(c).to(o.device).train()
            bare = forward_backward(without_hooks(model), o)
            yield "the same without hooks", bare, f"{name}, width {c.d_model}, eager", forward_backward(model, o)
    elif part == "gpt":
        for width, vocabulary in itertools.product(o.widths, o.vocabularies):
            c = shape("std-t", o, width, vocabulary)
            name = f"std-t, width {width}, V {vocabulary:,}"
            yield "plain GPT", plain_step(c, o), name, training_step(c, "std-t", o)
    elif part == "presets":
        peer = training_step(shape("std-t", o, width, vocabulary), "std-t", o)
        for name in o.presets:
            step = training_step(shape(name, o, width, vocabulary), name, o)
            yield "std-t", peer, f"{name}, width {width}, V {vocabulary:,}", step
    else:
        for name, peer_name in (pair.split(":") for pair in o.pairs):
            c, peer_c = (shape(n, o, None, vocabulary) for n in (name, peer_name))
            peer, step = training_step(peer_c, peer_name, o), training_step(c, name, o)
            yield peer_name, peer, f"{name}, width {c.d_model}", step


def shape(name: str, o: Options, width: int | None, vocabulary: int, **change: Any) -> ModelConfig:
    """A preset's configuration with this width and vocabulary; the number of heads stays."""
    change |= {"d_vocab": vocabulary, "n_ctx": o.context}
    change |= {"d_model": width, "mlp.d_mlp": 0} if width is not None else {}
    return preset(name, "paper", **change, **({"n_layers": o.layers} if o.layers else {}))


def forward_backward(model: StreamTransformer, o: Options) -> Step:
    x, y = random_tokens(model.config.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(model, None, lambda: model.loss(x, y)[0], o)


def training_step(c: ModelConfig, name: str, o: Options) -> Step:
    """A whole training step of a model, as in `models.train`, on random tokens."""
    model: StreamTransformer = build(c).to(o.device).train()
    optimizer = make_optimizer(model, with_recipe(Training(), name, "paper"))
    blocks = [torch.compile(block.forward) for block in model.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(model, optimizer, lambda: model.loss(x, y, blocks=blocks)[0], o)


def plain_step(c: ModelConfig, o: Options) -> Step:
    plain = PlainGPT(c).to(o.device)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4, fused=True)
    blocks: Any = [torch.compile(block.forward) for block in plain.blocks] if o.compile else None
    x, y = random_tokens(c.d_vocab, o.batch, o.context, o.device)
    return optimizer_step(plain, optimizer, lambda: plain.loss(x, y, blocks=blocks), o)


def optimizer_step(model: Any, optimizer: Any, loss: Callable[[], Any], o: Options) -> Step:
    """Forward (in autocast, by --dtype), backward, with an optimiser clipping to 1 and its step; zeroed gradients."""

    def step() -> None:
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16"):
            value = loss()
        value.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if o.device == "cuda":
            torch.cuda.synchronize()

    return step
