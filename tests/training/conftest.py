"""A small corpus and a trained tiny run, shared by the tests of training and of the commands."""

import random
from pathlib import Path

import pytest

WORDS = "the cat dog bird sat ran flew to from on under big small red blue house tree river and then she he it was".split()


def corpus_text(documents: int, seed: int) -> str:
    """Documents of random words, 20 to 60 each."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(20, 60))) + "." for _ in range(documents)]
    return "\n<|endoftext|>\n".join(texts)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(training file, validation file)."""
    folder = tmp_path_factory.mktemp("corpus")
    train, valid = folder / "train.txt", folder / "valid.txt"
    train.write_text(corpus_text(120, 0))
    valid.write_text(corpus_text(20, 1))
    return train, valid


def arguments(corpus: tuple[Path, Path], out: Path, *more: str, preset: str = "lfa") -> list[str]:
    """A training of a tiny model that takes a second."""
    train, valid = corpus
    return [
        *(preset, "--data", str(train), "--valid", str(valid), "--scale", "tiny", "--set", "d_vocab=300"),
        *("--out", str(out), "--steps", "12", "--batch-size", "4", "--log-every", "3", "--eval-every", "6"),
        *("--checkpoint-every", "4", "--sample-every", "6", "--device", "cpu", *more),
    ]


@pytest.fixture(scope="session")
def tiny_run(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    from models.train import main

    out = tmp_path_factory.mktemp("runs") / "lfa"
    main(arguments(corpus, out))
    return out
