"""Prepares the data of a run: tokenizer, training part and validation part as token shards."""

import hashlib
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.models.run_names import bundled_folder
from streamscope.models.training.data import VALID_FRACTION
from streamscope.text import SplitAt
from streamscope.text.cache import cache_root, cached
from streamscope.text.corpus import Corpus, open_corpus
from streamscope.text.shards import TokenShards, in_validation, pack
from streamscope.text.tokenizer import Tokenizer
from streamscope.text.windows import MixedWindows, Mixture, Windows

BLOCKS = 10
"""Number of blocks per document whose ends are held out if whole documents cannot be."""


@dataclass(frozen=True)
class Data:
    """Tokenizer, training data and validation data of a run."""

    tokenizer: Tokenizer
    train: TokenShards | Mixture
    valid: TokenShards
    description: dict[str, Any]
    source: dict[str, Any]
    """The arguments of `prepare`, including the chosen number of blocks, for config.json."""


def prepare(
    data: str, valid: str | None, tokenizer: str | None, d_vocab: int, *, text_field: str = "text",
    max_documents: int | None = None, split_at: SplitAt = "separator", valid_fraction: float | None = None,
    valid_blocks: int | None = None,
) -> Data:  # fmt: skip
    """Open the corpora, train or load the tokenizer, and tokenize; everything is cached by content.

    Without `valid`, documents are held out by a hash of their text (`text.shards.in_validation`). With `valid_blocks`,
    or if that leaves one side empty (`BLOCKS`), the ends of blocks of every document are held out. The training parts
    of a mixture are packed separately; their held-out parts are mixed by weight into one text.
    """
    if valid is not None and (valid_fraction is not None or valid_blocks is not None):
        raise InputError("--valid names the validation data: leave out --valid-fraction and --valid-blocks, or --valid")
    corpus = open_corpus(data, text_field=text_field, max_documents=max_documents, split_at=split_at)
    held_out = open_corpus(valid, text_field=text_field, split_at=split_at) if valid is not None else None
    fraction = valid_fraction or VALID_FRACTION
    if held_out is None and valid_blocks is None and not _divisible(corpus, fraction):
        valid_blocks = BLOCKS
    tok = Tokenizer.load(_tokenizer_path(tokenizer)) if tokenizer is not None else train_bpe(corpus, d_vocab)
    split: dict[str, Any] = {"valid_fraction": fraction, "valid_blocks": valid_blocks}
    split_train = split | {"part": "train" if held_out is None else "all"}
    train: TokenShards | Mixture
    if corpus.parts:
        train = Mixture(corpus, [pack(item, tok, **split_train) for item in corpus.parts])
    else:
        train = pack(corpus, tok, **split_train)
    val = pack(corpus, tok, part="valid", **split) if held_out is None else pack(held_out, tok)
    parts = {"train": train, "valid": val}
    description = {
        **{name: {**x.meta, "n_tokens": x.n_tokens, "n_documents": x.n_documents} for name, x in parts.items()},
        "tokenizer": {"sha256": tok.sha256, "d_vocab": tok.d_vocab, "source": tokenizer or "BPE trained on the data"},
    }
    source_options = {
        "data": data, "valid": valid, "text_field": text_field, "max_documents": max_documents, "split_at": split_at,
        "valid_fraction": valid_fraction, "valid_blocks": valid_blocks,
    }  # fmt: skip
    return Data(tok, train, val, description, source_options)


def repeated_documents(data: Data) -> int:
    """How many validation documents, token by token, are also in the training part."""

    def hashes(shards: TokenShards) -> list[int]:
        return [hash(shards.tokens[a:b].tobytes()) for a, b in zip(shards.begins, shards.ends, strict=True)]

    parts = data.train.parts if isinstance(data.train, Mixture) else [data.train]
    train_hashes = set(chain.from_iterable(map(hashes, parts)))
    return sum(value in train_hashes for value in hashes(data.valid))


def parts_not_held_out(data: Data) -> list[str]:
    """The sources of the parts of a mixture of which no document is held out, so validation never reads them."""
    source = data.source
    corpus = open_corpus(source["data"], **{name: source[name] for name in ("text_field", "max_documents", "split_at")})
    if not corpus.parts or (source["valid"], source["valid_blocks"]) != (None, None):
        return []
    is_held_out = partial(in_validation, valid_fraction=source["valid_fraction"] or VALID_FRACTION)
    return [part.source for part in corpus.parts if not any(map(is_held_out, part.documents()))]


def _divisible(corpus: Corpus, fraction: float) -> bool:
    """Whether splitting whole documents leaves both sides non-empty; reads until both are."""
    sides = (in_validation(document, fraction) for document in corpus.documents())
    first = next(sides, None)
    return first is not None and any(side != first for side in sides)


def windows(shards: TokenShards | Mixture, n_ctx: int, packing: str = "stream") -> Windows | MixedWindows:
    """Training windows of `n_ctx` tokens."""
    kind: Any = MixedWindows if isinstance(shards, Mixture) else Windows
    return kind(shards, n_ctx, packing=packing)


def train_bpe(corpus: Corpus, d_vocab: int) -> Tokenizer:
    """Train a byte-level BPE of `d_vocab` entries on the corpus; cached by content."""
    key = hashlib.sha256(f"bpe-1 {d_vocab} {corpus.fingerprint()}".encode()).hexdigest()

    def build(folder: Path) -> None:
        Tokenizer.train(corpus.documents(), d_vocab).save(folder / "tokenizer.json")

    return cached(cache_root() / f"bpe-{key}", build, lambda folder: Tokenizer.load(folder / "tokenizer.json"))


def _tokenizer_path(name: str) -> Path:
    path = Path(name) if Path(name).exists() else bundled_folder(name)
    if not name or path is None:
        raise InputError(f"tokenizer {name or repr(name)} does not exist: give a file, a run or a bundled model")
    return path
