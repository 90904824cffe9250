"""Converts text to token ids and back; the rule for BOS is stored in the tokenizer's file.

Every document and prompt starts with BOS: the token that the file's post-processor puts first, else that of the other
files (`special_tokens`), else the first of `BOS_NAMES`. The rule is a post-processor inside `tokenizer.json`, so other
libraries get the same ids from it. A token that the file's post-processor appends is omitted, because our texts
continue.

Special tokens are read from text only on request (`special=True`, and in a chat's template): otherwise `<|endoftext|>`
is thirteen ordinary characters. So no text can fake the start of a document, and a byte-level tokenizer returns exactly
the given text.

    tokenizer = Tokenizer.train(corpus.documents(), d_vocab=4096)
    tokenizer.save("tokenizer.json")
    Tokenizer.load("tokenizer.json").encode("Once upon a time")
"""

import copy
import hashlib
import json
import os
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, SupportsInt

import tokenizers
import torch
from jaxtyping import Bool, Int
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from streamscope.cli.disk import read_bytes, read_json, write_text
from streamscope.cli.errors import InputError, reading
from streamscope.text import END_OF_TEXT, BosChoice
from streamscope.text.readers import first_line

CONFIG, MAP, ADDED = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
TEMPLATE = "chat_template.jinja"
"""File of a run or Hugging Face folder with its chat template."""
BESIDES = (CONFIG, MAP, ADDED, TEMPLATE)
"""Files that the transformers library reads besides a vocabulary."""
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The roles that a special token can have."""
REMEDY = "download it again"
PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized", "special")
BOS_NAMES = (END_OF_TEXT, "<s>", "<|bos|>", "<bos>", "<|begin_of_text|>")
PAIRS = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}  # vocabulary file: its merges file


SpecialTokens = namedtuple("SpecialTokens", ("roles", "source", "added", "prefix_space"), defaults=({}, "", {}, False))
"""Special tokens, and tokens outside the vocabulary file.

`roles` are tokens by role (bos_token begins a text, eos_token ends it), `source` the file that should name them, or "",
and `added` the additional tokens by id. With `prefix_space` a space is added before a text (for a pair of files;
tokenizer.json has its own setting).
"""


def special_tokens(folder: Path) -> SpecialTokens:
    """Read the transformers library's files about special tokens in a folder.

    tokenizer_config.json      `ROLES`, added_tokens_decoder, add_prefix_space
    special_tokens_map.json    `ROLES`, if the first file does not name them or has no added_tokens_decoder
    added_tokens.json          tokens besides vocab.json, if the first file does not list them
    """
    config, token_map = _read(folder / CONFIG), _read(folder / MAP)
    decoded = "added_tokens_decoder" in config
    # as in the library: a configuration with added_tokens_decoder has priority over the map
    files = (token_map, config) if decoded else (config, token_map)
    named_in = [(role, _contents(fields.get(role))) for fields in files for role in ROLES]
    roles = {role: names[0] for role, names in named_in if len(names) == 1}
    special = {name for fields in files for value in fields.values() for name in _contents(value)}
    rows: Any = config["added_tokens_decoder"] if decoded else {
        i: {"content": name, "special": name in special, "normalized": name not in special}
        for name, i in _read(folder / ADDED).items()
    }  # fmt: skip
    try:
        added = {
            int(i): AddedToken(row["content"], **{name: row[name] for name in PROPERTIES if name in row})
            for i, row in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: its added tokens are damaged ({error}); {REMEDY}") from None
    return SpecialTokens(
        roles=roles, added=added,
        source=CONFIG if (folder / CONFIG).is_file() else MAP if (folder / MAP).is_file() else "",
        prefix_space=config.get("add_prefix_space") is True,
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any], REMEDY, any_int=True) if path.is_file() else {}


def _contents(value: Any) -> list[str]:
    """The tokens in a field: a name, a token with properties, or a list of either."""
    if isinstance(value, list):
        return [name for item in value for name in _contents(item)]
    if isinstance(value, Mapping):
        value = value.get("content")
    return [value] if isinstance(value, str) else []


def read_template(folder: Path) -> str | None:
    """The chat template of a folder, from chat_template.jinja, else tokenizer_config.json (of several the one named
    default); or None."""
    if (folder / TEMPLATE).is_file():
        return read_bytes(folder / TEMPLATE, REMEDY).decode("utf-8-sig", errors="replace")
    template = _read(folder / CONFIG).get("chat_template")
    if isinstance(template, list):
        templates = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = templates.get("default")
    return template if isinstance(template, str) else None


@contextmanager
def _encoding() -> Iterator[None]:
    """The library raises TypeError for what is no text, and bare Exception where a word has no token."""
    try:
        yield
    except TypeError as error:
        line = "a text to encode is not a str, or holds lone surrogates, which UTF-8 cannot encode: fix the text"
        raise InputError(line) from error
    except Exception as error:
        line = f"the tokenizer has no token for a part of a text ({first_line(error)}); its vocabulary lacks the "
        raise InputError(f"{line}unk_token") from error


class Tokenizer:
    """A subword tokenizer: text <-> ids in [0, d_vocab), BOS first.

    Attributes:
        d_vocab: number of ids, one more than the largest.
        bos_id: the token that starts every document and prompt; also `pad_id`, because padding is masked.
        eos_id: the token that ends a text according to its files, or None.
        note: deviations from the files, or "".
        roles: the special tokens of a chat template by role (`ROLES`), as its files name them.
        bos_policy: the token that begins every text, and whether its own files add it.
        adds_bos: whether `encode` puts BOS first, which `with_bos` turns off.
        chat_template: the Jinja template of a conversation, or None; it and its roles are saved next to tokenizer.json.
    """

    adds_bos: bool = True
    _usual: "Tokenizer"
    chat_template: str | None = None

    def __init__(self, backend: tokenizers.Tokenizer, specials: SpecialTokens | None = None):
        """Wrap `backend`, and write the BOS rule into its post-processor. `specials` comes from other files."""
        backend.no_truncation()
        backend.no_padding()
        specials = specials or SpecialTokens()
        names = {token.content for token in backend.get_added_tokens_decoder().values()} if specials.added else ()
        for i, token in sorted(specials.added.items()):
            if token.content not in names:
                backend.add_tokens([token])
            if (got := backend.token_to_id(token.content)) != i:
                raise InputError(f"its added token {token.content!r} should have id {i}, but has {got} in the "
                                 "vocabulary: the files belong to different tokenizers")  # fmt: skip
        self.bos_id, self.eos_id, self.note, self._own_bos = _ends(backend, specials)
        if specials.prefix_space and "add_prefix_space=False" in repr(backend.pre_tokenizer):
            space = f"{specials.source} puts a space before a text, but tokenizer.json does not: none is put"
            self.note = f"{self.note}; {space}" if self.note else space
        self.pad_id, bos = self.bos_id, str(backend.id_to_token(self.bos_id))
        self.bos_policy = f"{bos!r}, which its own files {'' if self._own_bos else 'do not '}add"
        backend.add_special_tokens([bos])
        backend.encode_special_tokens = True  # the library's name for "specials in text are plain text"
        # replacing the post-processor also drops ByteLevel's trimming of offsets, so spans include leading spaces
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, self.bos_id)]
        )
        self.roles = dict(specials.roles) if specials.source else {"bos_token": bos, **specials.roles}
        self.d_vocab = self._ids = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self._backend = backend
        self._added = set(backend.get_added_tokens_decoder())
        self._byte_level = "ByteLevel" in repr(backend.decoder)

    @classmethod
    def train(cls, documents: Iterable[str], d_vocab: int) -> "Tokenizer":
        """Train a byte-level BPE of `d_vocab` entries, or of those that the documents fill; BOS, `<|endoftext|>`, is 0.

        The same documents give the same file; a merge must occur twice. `d_vocab` is at least
        257: 256 bytes and BOS.
        """
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        least = len(alphabet) + 1
        if d_vocab < least:
            raise InputError(f"d_vocab={d_vocab} is too small: 256 bytes and BOS need at least {least}")
        backend = _byte_level_bpe(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=d_vocab, min_frequency=2, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet,
            show_progress=False,
        )  # fmt: skip
        backend.train_from_iterator(iter(documents), trainer)
        if backend.get_vocab_size() == least < d_vocab:
            raise InputError("the corpus is too small for a vocabulary: no pair of characters occurs twice")
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer from a file or folder.

        `path` is a `tokenizer.json` (any name), one file of a GPT-2 style pair (`encoder.json` + `vocab.bpe`,
        `vocab.json` + `merges.txt`), or a folder with either. For a pair, and a file named tokenizer.json, files in the
        same folder are read too (`special_tokens`).
        """
        path = Path(path).expanduser()
        if not path.exists():
            raise InputError(f"{path}: this tokenizer file or folder does not exist")
        if path.is_dir():
            names = [name for name in ("tokenizer.json", *PAIRS) if (path / name).is_file()]
            if not names:
                pairs = ", ".join(map(" + ".join, PAIRS.items()))
                raise InputError(f"{path} has no tokenizer: add tokenizer.json, {pairs}")
            path = path / names[0]
        pair: list[Path] = []
        for vocab, merges in PAIRS.items():
            if path.name in (vocab, merges):
                pair = [path.with_name(vocab), path.with_name(merges)]
        for file in pair:
            if not file.is_file():
                raise InputError(f"{file} is missing: put {pair[0].name} and {pair[1].name} into one folder")
        has_others = pair or path.name == "tokenizer.json"
        has_others = has_others and any(map(os.path.isfile, map(path.with_name, BESIDES)))
        specials = special_tokens(path.parent) if has_others else SpecialTokens()
        with reading(path, "give a BPE vocabulary with its merges" if pair else "give a tokenizer.json"):
            if pair:
                backend = _byte_level_bpe(models.BPE.from_file(*map(str, pair)), specials.prefix_space)
            else:
                backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
            tokenizer = cls(backend, specials)
        tokenizer.chat_template = read_template(path.parent) if has_others else None
        return tokenizer

    @classmethod
    def from_transformers(cls, original: Any) -> "Tokenizer":
        """Convert a fast tokenizer of the transformers library."""
        if not hasattr(original, "backend_tokenizer"):
            raise InputError(f"the tokenizer is a {type(original).__name__} without offsets: use a fast tokenizer")
        roles = {role: str(name) for role in ROLES if (name := getattr(original, role, None)) is not None}
        specials = SpecialTokens(roles=roles, source=type(original).__name__)
        tokenizer = cls.from_json(original.backend_tokenizer.to_str(), specials)
        template = getattr(original, "chat_template", None)
        tokenizer.chat_template = template if isinstance(template, str) else None
        return tokenizer

    @classmethod
    def from_json(cls, text: str, specials: SpecialTokens | None = None) -> "Tokenizer":
        """Read the text of a `tokenizer.json`; `InputError` if it is invalid or has no BOS."""
        with reading("the text of a tokenizer", "give that of a tokenizer.json"):
            backend = tokenizers.Tokenizer.from_str(text)
        return cls(backend, specials)

    def padded_to(self, size: int) -> "Tokenizer":
        """This tokenizer for a model with `size` ids; ids beyond `d_vocab` are unused."""
        if size == self._ids:
            return self
        padded = copy.copy(self)
        padded._ids = max(size, self.d_vocab)
        return padded

    def with_bos(self, bos: BosChoice) -> "Tokenizer":
        """This tokenizer with BOS before every text, without, or as its own files do (model)."""
        if self.adds_bos == (bos == "yes" or (bos == "model" and self._own_bos)):
            return self
        if not self.adds_bos:
            return self._usual.with_bos(bos)
        bare = copy.copy(self)
        for name in ("sha256", "_special_backend"):  # of the usual one
            vars(bare).pop(name, None)
        bare._backend = tokenizers.Tokenizer.from_str(self.to_json())
        bare._backend.encode_special_tokens = True
        bare._backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        bare.adds_bos, bare.bos_policy, bare._usual = False, "none", self
        return bare

    def to_json(self) -> str:
        """The text of `tokenizer.json`, including the BOS rule."""
        return self._backend.to_str()

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json` to the file or folder `path`, atomically, and next to it the chat template and the
        special tokens that it may name."""
        path = Path(path).expanduser()
        if path.is_dir():
            path = path / "tokenizer.json"
        write_text(path, self.to_json())
        if self.chat_template:
            write_text(path.with_name(TEMPLATE), self.chat_template)
        if self.chat_template or self.roles.keys() - {"bos_token"}:
            write_text(path.with_name(MAP), json.dumps(self.roles))

    @cached_property
    def sha256(self) -> str:
        """sha256 of `to_json()` as hex digits: equal digests give equal ids."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def encode(self, text: str, *, bos: bool = True, special: bool = False) -> list[int]:
        """The ids of `text`, with BOS unless `bos` is False; see `encode_batch`."""
        return self.encode_batch([text], bos=bos, special=special)[0]

    def encode_batch(self, texts: Sequence[str], *, bos: bool = True, special: bool = False) -> list[list[int]]:
        """`[encode(text) for text in texts]`, faster.

        With `special`, names of special tokens in a text are those tokens, and a text that begins with BOS gets no
        second one.
        """
        backend = self._special_backend if special else self._backend
        with _encoding():
            rows = [*map(attrgetter("ids"), backend.encode_batch_fast(list(texts), add_special_tokens=bos))]
        if special and bos:
            rows = [row[1:] if row[:2] == [self.bos_id] * 2 else row for row in rows]
        return rows

    @cached_property
    def _special_backend(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self.to_json())
        backend.encode_special_tokens = False
        return backend

    def chat(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True) -> list[int]:
        """The ids of a conversation ({"role", "content"}) by the chat template, with `reply` up to the answer.

        The template writes its own special tokens; nothing is put in front.
        """
        return self.encode(self.chat_text(messages, reply=reply), bos=False, special=True)

    def chat_text(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True) -> str:
        if self.chat_template is None:
            raise InputError("this tokenizer has no chat template: its folder lacks chat_template.jinja")
        from streamscope.text.chat import render

        return render(self.chat_template, messages, reply=reply, **self.roles)

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of `ids` without special and unused ones; `InputError` for an id out of range."""
        return self._backend.decode(list(self._checked(ids)), skip_special_tokens=True)

    def pieces(self, ids: Iterable[SupportsInt]) -> list[str]:
        """The text of each token, including a leading space; special tokens by name.

        Bytes of an incomplete character are written `\\xf0\\x9f`, an unused id `<unused 7>`. An id out of range raises
        `InputError`.
        """
        texts = []
        for i in self._checked(ids):
            token = self._backend.id_to_token(i)
            if token is None:
                token = f"<unused {i}>"
            elif i not in self._added and self._byte_level and BYTE_OF.keys() >= set(token):
                token = bytes(map(BYTE_OF.__getitem__, token)).decode("utf-8", errors="backslashreplace")
            elif i not in self._added:
                token = token.replace("▁", " ")
            texts.append(token)
        return texts

    def spans(self, text: str, *, bos: bool = True, special: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text`, and the characters [start, end) that each covers; (0, 0) for BOS. With `special`, names of
        special tokens are those tokens.

        In a byte-level tokenizer a span includes the leading space, and tokens that share a character (an emoji) all
        cover it.
        """
        with _encoding():
            encoding = (self._special_backend if special else self._backend).encode(text, add_special_tokens=bos)
        return encoding.ids, encoding.offsets

    def align(self, text: str, start: int, end: int, *, bos: bool = True) -> list[int]:
        """Positions in `encode(text, bos=bos)` of the tokens that cover characters [start, end).

        A token must cover at least one character other than whitespace: " cat" counts for "cat", the token after "cat "
        does not.
        """
        characters = {i for i in range(max(start, 0), min(end, len(text))) if not text[i].isspace()}
        _, spans = self.spans(text, bos=bos)
        positions = [p for p, (first, last) in enumerate(spans) if not characters.isdisjoint(range(first, last))]
        if not positions:
            raise InputError(f"no token covers characters {start} to {end} of {text[:60]!r}: check the span")
        return positions

    def batch(
        self, texts: Sequence[str], *, bos: bool = True, special: bool = False
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Ids padded on the right to the longest text, and a mask that is True on real tokens."""
        if not texts:
            raise InputError("a batch needs at least one text")
        rows = self.encode_batch(texts, bos=bos, special=special)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.full(mask.shape, self.pad_id)
        ids[mask] = torch.tensor([i for row in rows for i in row], dtype=ids.dtype)
        return ids, mask

    def _checked(self, ids: Iterable[SupportsInt]) -> Iterator[int]:
        for i in map(int, ids):
            if not 0 <= i < self._ids:
                raise InputError(f"token id {i} is outside this tokenizer's 0 to {self._ids - 1}")
            yield i

    def __repr__(self) -> str:
        bos = self._backend.id_to_token(self.bos_id)
        return f"Tokenizer(d_vocab={self.d_vocab}, bos={bos!r}, sha256={self.sha256[:12]})"


def _byte_level_bpe(model: models.BPE, prefix_space: bool = False) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _ends(backend: tokenizers.Tokenizer, specials: SpecialTokens) -> tuple[int, int | None, str, bool]:
    """(BOS, EOS or None, deviations from the files, whether the files put BOS first)."""
    with _encoding():
        encoding = backend.encode("a", add_special_tokens=True)
    plain = [*encoding.special_tokens_mask, 0].index(0)  # the first token that the post-processor did not add
    prefix_ids, tail = encoding.ids[:plain], encoding.ids[plain:]
    suffix_ids = tail[len(backend.encode("a", add_special_tokens=False).ids) :]
    if len(prefix_ids) > 1:
        raise InputError("its post-processor puts several tokens first: remove it from the file")
    bos_name, eos_name = specials.roles.get("bos_token", ""), specials.roles.get("eos_token", "")
    bos, eos = backend.token_to_id(bos_name), backend.token_to_id(eos_name)
    notes = []
    if suffix_ids:
        eos = suffix_ids[-1] if eos is None else eos
        notes.append(f"its post-processor ends texts with {backend.id_to_token(suffix_ids[-1])!r}, which is omitted")
    if prefix_ids:
        bos = prefix_ids[0]
    elif bos is None:
        bos = next((i for name in BOS_NAMES if (i := backend.token_to_id(name)) is not None), eos)
        if bos is None:
            raise InputError(f"the vocabulary has no BOS token: add one of {' '.join(BOS_NAMES)}")
        if specials.source or suffix_ids:
            lacks = f"names {bos_name!r} as BOS, which the vocabulary lacks" if bos_name else "names no BOS"
            notes.append(f"{specials.source or 'its file'} {lacks}: texts begin with {backend.id_to_token(bos)!r}")
    return bos, eos, "; ".join(notes), bool(prefix_ids)


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = (*range(0x21), *range(0x7F, 0xA1), 0xAD)  # written as characters from 256
BYTE_OF = dict(zip(map(chr, (*_PRINTABLE, *range(256, 256 + len(_HIDDEN)))), _PRINTABLE + _HIDDEN, strict=True))
"""The byte of each character in a byte-level vocabulary (inverse of GPT-2's `bytes_to_unicode`)."""
