"""Training windows of prompts with responses; by default, only the responses are targets.

    data = read_pairs(Path("pairs.jsonl"))                       [("How many legs has a dog?", "Four."), …]
    rows = encode_pairs(data, tokenizer, n_ctx=256)              token ids, where the response begins
    windows = PairWindows(rows, n_ctx=256, packing="document")   what a `Trainer` reads

A row is BOS, the prompt in its template, the response and BOS, at which sampling stops. Padding is never a target; with
`masked`, neither is the prompt (SPEC §1.10 c).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.errors import InputError, unknown
from streamscope.text.shards import NO_TARGET, PACKINGS
from streamscope.text.tokenizer import Tokenizer

TEMPLATE = "User: {prompt}\nAssistant: {response}"
Pair = tuple[str, str]


def read_pairs(path: Path) -> list[Pair]:
    """Read (prompt, response) from a JSONL file; other fields are ignored.

    Raises `InputError` with the line that is not an object, lacks a field, or has an empty prompt or response.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the file to UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; check the path") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f'{path}:{number}: expected {{"prompt": …, "response": …}}, found {line[:60]!r}')
        for name in ("prompt", "response"):
            value = row.get(name)
            if not isinstance(value, str) or not value.strip():
                raise InputError(
                    f"{path}:{number}: {name!r} is {'missing' if value is None else 'empty or not a text'}"
                )
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise InputError(f"{path}:{number}: {name!r} holds a lone surrogate, which UTF-8 cannot hold")
        pairs.append((row["prompt"], row["response"]))
    if not pairs:
        raise InputError(f"{path}: the file has no pairs")
    return pairs


def check_template(template: str) -> None:
    """Raise `InputError` unless the template has {prompt} and {response} once each, in this order."""
    once = template.count("{prompt}") == template.count("{response}") == 1
    if not once or template.index("{prompt}") > template.index("{response}"):
        raise InputError(f"template {template!r} must hold {{prompt}} and then {{response}}, once each")


@dataclass(frozen=True)
class EncodedPairs:
    """Rows (token ids, first position of the response), and the numbers of truncated and dropped pairs."""

    rows: list[tuple[list[int], int]]
    truncated: int
    dropped: int


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, n_ctx: int, template: str = TEMPLATE) -> EncodedPairs:
    """Encode the pairs in their template, at most n_ctx + 1 tokens each (inputs and the last target).

    A token belongs to the response if it covers one of its characters, or of the template after it. Longer rows lose
    their end, including the closing BOS; pairs without a remaining response token are dropped. Raises `InputError` for
    a bad template, and if no pair remains.
    """
    check_template(template)
    before, rest = template.split("{prompt}")
    between, after = rest.split("{response}")
    rows, truncated, dropped = [], 0, 0
    for prompt, response in pairs:
        start = len(before) + len(prompt) + len(between)
        ids, spans = tokenizer.spans(before + prompt + between + response + after)
        first = next(i for i, (_, end) in enumerate(spans) if end > start)
        ids = [*ids, tokenizer.bos_id]
        if first >= n_ctx + 1:
            dropped += 1
            continue
        truncated += len(ids) > n_ctx + 1
        rows.append((ids[: n_ctx + 1], first))
    if not rows:
        raise InputError(f"no pair has a response within the context of {n_ctx} tokens: shorten the prompts")
    return EncodedPairs(rows, truncated, dropped)


def hold_out(pairs: Sequence[Pair], fraction: float) -> tuple[list[Pair], list[Pair]]:
    """Split into (training, validation): the share of prompts with the smallest sha256, at least one, is held out.

    All responses to a prompt are on one side. Raises `InputError` for a single prompt.
    """
    keys = {prompt: hashlib.sha256(prompt.encode()).hexdigest() for prompt, _ in pairs}
    if len(keys) < 2:
        raise InputError("a file with one prompt cannot be split: give --valid FILE")
    n = min(max(1, round(fraction * len(keys))), len(keys) - 1)
    held = set(sorted(keys, key=keys.__getitem__)[:n])
    return [p for p in pairs if p[0] not in held], [p for p in pairs if p[0] in held]


class PairWindows:
    """Windows of pairs, with the interface of `text.shards.Windows`.

    document: one pair per window. stream: as many whole pairs as fit, in the order of the file; the BOS that ends one
    starts the next, and attention sees earlier pairs, as in packed pretraining. Inputs are padded on the right with the
    padding token, targets with −100.
    """

    def __init__(
        self, pairs: EncodedPairs, n_ctx: int, pad_id: int, *, packing: str = "document", masked: bool = True
    ) -> None:
        if packing not in PACKINGS:
            raise unknown("packing", packing, list(PACKINGS))
        self.n_ctx, self.pad_id, self.masked = n_ctx, pad_id, masked
        self.windows: list[list[tuple[list[int], int]]] = []
        room = 0
        for ids, first in pairs.rows:
            if packing == "document" or len(ids) - 1 > room:
                self.windows.append([])
                room = n_ctx
            self.windows[-1].append((ids, first))
            # a truncated row has no closing BOS for the next one, but it also fills the window
            room -= len(ids) - 1

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Inputs and targets (int64) of the windows `indices`, else IndexError."""
        inputs = torch.full((len(indices), self.n_ctx), self.pad_id)
        targets = torch.full((len(indices), self.n_ctx), NO_TARGET)
        for row, index in enumerate(indices):
            at = 0
            for ids, first in self.windows[int(index)]:
                n = len(ids) - 1
                begin = first if self.masked else 1
                inputs[row, at : at + n] = torch.tensor(ids[:-1])
                targets[row, at + begin - 1 : at + n] = torch.tensor(ids[begin:])
                at += n
        return inputs, targets

    @property
    def n_targets(self) -> int:
        """Number of targets in all windows."""
        return sum(len(ids) - (first if self.masked else 1) for window in self.windows for ids, first in window)
