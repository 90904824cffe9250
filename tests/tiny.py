"""A corpus of random words and the arguments of a training that takes a second."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamscope.cli.errors import InputError

WORDS = [
    "the", "cat", "dog", "bird", "sat", "ran", "flew", "to", "from", "on", "under", "big", "small", "red", "blue",
    "house", "tree", "river", "and", "then", "she", "he", "it", "was",
]  # fmt: skip


PARTS = ("std-t", "lfa", "dst-kron", "pls", "hdpl", "kromcanon")
"""Presets that have every part between them: one stream, a frozen and a moving token stream, readouts of every layer,
gates, dual paths, RMSNorm with RoPE and SwiGLU, Canon layers and hyper-connections."""

FOUR = ("std-t", "pls", "hdpl", "kromcanon")
"""The four of them that differ most."""

MOST_PARTS = ("pls", "kromcanon")
"""The two of them that have most of the parts, for what is a command on each."""


def some(names: Iterable[Any], fast: Collection[Any] = PARTS) -> list[Any]:
    """Parameters of a test: the names, those that are not among `fast` in `make test-slow`."""
    names = list(names)
    assert set(fast) & set(names), "one of a kind runs always"
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def randomise(model: Any, std: float = 0.3, seed: int = 0) -> Any:
    """The same model after N(0, std) was added to every parameter.

    Norm weights then are not 1 and biases, gates and what mixes streams not 0, so that a test sees who leaves them out.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape, dtype=torch.float64).normal_(std=std, generator=generator)
            parameter += noise.to(parameter)
    return model


def model_of(name: str = "lfa", **changes: Any) -> Any:
    """A tiny model of random weights, with the tokenizer of the bundled stories."""
    from streamscope.models import build, load

    tokenizer = load("stories/lfa").tokenizer
    assert tokenizer is not None
    return randomise(build(name, "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab, **changes))


def assert_gradients(ours: Any, theirs: Any, inputs: Sequence[Any], atol: float = 1e-12, rtol: float = 0.0) -> None:
    """Two results have the same gradients at all inputs, for random weights of their numbers."""
    import torch

    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(ours)
    pairs = [torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True) for y in (ours, theirs)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def corpus_text(documents: int, seed: int, least: int = 20) -> str:
    """Documents of random words, `least` to 60 each: with 20, all are longer than a tiny context."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(least, 60))) + "." for _ in range(documents)]
    return "\n<|endoftext|>\n".join(texts)


def with_options(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """A command with further options. Of an option that is there twice the last is kept, except --set."""
    parts: list[list[str]] = [[]]
    for word in (*words, *more):
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    names = [part[0].partition("=")[0] if part else "" for part in parts]
    kept = [part for i, part in enumerate(parts) if names[i] == "--set" or names[i] not in names[i + 1 :]]
    return [word for part in kept for word in part]


def arguments(corpus: tuple[Path, Path], out: Path, *more: str, preset: str = "lfa") -> list[str]:
    """Arguments of `models.train` for a tiny model and twelve steps."""
    train, valid = corpus
    usual = [
        *(preset, "--data", str(train), "--valid", str(valid), "--scale", "tiny", "--set", "d_vocab=300"),
        *("--out", str(out), "--steps", "12", "--batch-size", "4", "--log-every", "3", "--eval-every", "6"),
        *("--checkpoint-every", "4", "--sample-every", "0", "--device", "cpu"),
    ]
    return with_options(usual, more)


def untrained(preset: str, run: Path, out: Path, **overrides: Any) -> Path:
    """A run folder of a tiny model that never trained, with the tokenizer of a finished `run`."""
    from streamscope.models.checkpoint import load
    from streamscope.models.make import build

    tokenizer = load(run).tokenizer
    assert tokenizer is not None
    build(preset, "tiny", tokenizer=tokenizer, init_std=0.3, d_vocab=tokenizer.d_vocab, **overrides).save(out)
    return out


@contextmanager
def refused(line: str) -> Iterator[None]:
    """The block raises `InputError` with a message of one line that matches."""
    with pytest.raises(InputError, match=line) as error:
        yield
    assert "\n" not in str(error.value)


def assert_refused(line: str, call: Callable[..., Any], /, *args: Any, **options: Any) -> None:
    """The call raises `InputError` with a message of one line that matches."""
    with refused(line):
        call(*args, **options)
