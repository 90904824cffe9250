"""From SOURCE names to token shards: the tokenizer, the training part, the validation part."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamscope.models.checkpoint import bundled_folder
from streamscope.models.disk import Trained, Validated, read_json
from streamscope.models.errors import InputError
from streamscope.models.text import SplitAt
from streamscope.models.text.cache import cache_root, cached
from streamscope.models.text.corpus import Corpus, MixtureCorpus, open_corpus
from streamscope.models.text.mixture import MixedWindows, Mixture
from streamscope.models.text.shards import TokenShards, Windows, pack
from streamscope.models.text.tokenizer import Tokenizer

VALID_FRACTION = 0.05


@dataclass(frozen=True)
class Data:
    """What a run trains and evaluates on."""

    tokenizer: Tokenizer
    train: TokenShards | Mixture
    valid: TokenShards
    description: dict[str, Any]


def prepare(
    source: str,
    valid: str | None,
    tokenizer: str | None,
    d_vocab: int,
    *,
    text_field: str = "text",
    max_documents: int | None = None,
) -> Data:
    """Open the corpora, train or load the tokenizer, tokenize; all of it is cached by content.

    Without `valid`, documents are held out by a hash of their text (`models.text.shards.in_validation`). The parts of a
    mixture are packed each for itself for training; those held out are one text, mixed as the weights say.
    """
    corpus = open_corpus(source, text_field=text_field, max_documents=max_documents)
    held_out = open_corpus(valid, text_field=text_field) if valid is not None else None
    tok = Tokenizer.load(_tokenizer_path(tokenizer)) if tokenizer is not None else trained_bpe(corpus, d_vocab)
    if held_out is not None:
        train, val = _packed(corpus, tok, "all"), pack(held_out, tok)
    else:
        train = _packed(corpus, tok, "train")
        val = pack(corpus, tok, part="valid", valid_fraction=VALID_FRACTION)
    description = {
        "train": {**train.meta, "n_tokens": train.n_tokens, "n_documents": train.n_documents},
        "valid": {**val.meta, "n_tokens": val.n_tokens, "n_documents": val.n_documents},
        "tokenizer": {"sha256": tok.sha256, "d_vocab": tok.d_vocab, "source": tokenizer or "BPE trained on the data"},
    }
    return Data(tok, train, val, description)


def _packed(corpus: Corpus, tok: Tokenizer, part: str) -> TokenShards | Mixture:
    if isinstance(corpus, MixtureCorpus):
        shards = [pack(one, tok, part=part, valid_fraction=VALID_FRACTION) for one in corpus.parts]
        return Mixture(corpus, shards)
    return pack(corpus, tok, part=part, valid_fraction=VALID_FRACTION)


def windows(shards: TokenShards | Mixture, n_ctx: int, packing: str = "stream") -> Windows | MixedWindows:
    """Training windows of `n_ctx` tokens."""
    kind = MixedWindows if isinstance(shards, Mixture) else Windows
    return kind(shards, n_ctx, packing=packing)  # type: ignore[arg-type]


def trained_bpe(corpus: Corpus, d_vocab: int) -> Tokenizer:
    """A byte-level BPE of `d_vocab` entries trained on the corpus; cached by content."""
    key = hashlib.sha256(f"bpe-1 {d_vocab} {corpus.fingerprint()}".encode()).hexdigest()

    def build(folder: Path) -> None:
        Tokenizer.train(corpus.documents(), d_vocab).save(folder / "tokenizer.json")

    return cached(cache_root() / f"bpe-{key}", build, lambda folder: Tokenizer.load(folder / "tokenizer.json"))


def _tokenizer_path(name: str) -> Path:
    path = Path(name)
    if not path.exists() and (folder := bundled_folder(name)) is not None:
        return folder
    if not name or not path.exists():
        raise InputError(
            f"tokenizer {name or repr(name)} does not exist: give a tokenizer.json, a folder that holds one, a run, or "
            "a bundled model"
        )
    return path


def evaluation_shards(
    folder: Path,
    tokenizer: Tokenizer,
    source: str | None,
    *,
    text_field: str = "text",
    split_at: SplitAt = "separator",
) -> TokenShards:
    """Documents to measure a run on: `source`, read so, or what the run was validated on, read as then.

    Raises `InputError` when the run's validation source is not there any more, or holds something else than then.
    """
    if source is not None:
        return pack(open_corpus(source, text_field=text_field, split_at=split_at), tokenizer)
    saved = read_json(folder / "config.json", Validated).get("data")
    if saved is None:
        raise InputError(f"{folder} does not say what it was trained on; give --data SOURCE")
    try:
        if saved["valid"] is not None:
            shards = pack(open_corpus(saved["valid"], text_field=saved["text_field"]), tokenizer)
        else:
            corpus = open_corpus(saved["data"], text_field=saved["text_field"], max_documents=saved["max_documents"])
            shards = pack(corpus, tokenizer, part="valid", valid_fraction=VALID_FRACTION)
    except InputError as error:
        raise InputError(f"the run's own validation data cannot be read ({error}); give --data SOURCE") from None
    was = (
        read_json(folder / "manifest.json", Trained)["data"]["valid"]["corpus"]
        if (folder / "manifest.json").exists()
        else None
    )
    if was not in (None, shards.meta["corpus"]):
        raise InputError(f"the validation data of {folder} changed since it was trained; give --data SOURCE")
    return shards
