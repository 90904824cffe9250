"""Training windows of prompts with responses, or of chats; by default, only the responses are targets.

    data = read_pairs(Path("pairs.jsonl"))                       [("How many legs has a dog?", "Four."), …]
    rows = encode_pairs(data, tokenizer, n_ctx=256)              token ids, and which are of a response
    windows = PairWindows(rows, n_ctx=256, packing="document")   what a `Trainer` reads

A row is BOS, the prompt in its template, the response and a token at which sampling stops (`model.eos_ids`). A chat is
what the model's chat template writes; its responses are the assistant's turns. Padding is never a target; with
`masked`, neither is the prompt (SPEC §1.10 c).
"""

import hashlib
import json
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.text.readers import checked_text, json_lines
from streamscope.text.shards import NO_TARGET, Packing
from streamscope.text.tokenizer import Tokenizer

TEMPLATE = "User: {prompt}\nAssistant: {response}"
Pair = tuple[str, str]
Chat = list[dict[str, str]]  # messages {"role", "content"}
Row = Pair | Chat
MESSAGE = ("role", "content")


def read_pairs(path: Path) -> list[Row]:
    """Read (prompt, response), or a chat from the field messages, from each line of a JSONL file; other fields are
    ignored.
    """
    rows = json_lines(path, '{"prompt": …, "response": …}')
    return [_chat(row["messages"], at) if "messages" in row else _pair(row, at) for at, row in rows]


def _pair(row: dict[str, Any], place: str) -> Pair:
    for name in ("prompt", "response"):
        if not _has_text(row, name):
            raise InputError(f"{place}: {name!r} is {'missing' if row.get(name) is None else 'empty or not a text'}")
        checked_text(row[name], f"{place}: {name!r}")
    return row["prompt"], row["response"]


def _has_text(row: Any, name: str) -> bool:
    return isinstance(row, dict) and isinstance(row.get(name), str) and bool(row[name].strip())


def _chat(messages: Any, place: str) -> Chat:
    if not isinstance(messages, list) or not all(_has_text(row, name) for row in messages for name in MESSAGE):
        raise InputError(f'{place}: messages must be a list of {{"role": …, "content": …}}, neither of them empty')
    chat = [{name: message[name] for name in MESSAGE} for message in messages]
    checked_text("".join(text for message in chat for text in message.values()), f"{place}: 'messages'")
    if "assistant" not in [message["role"] for message in chat[1:]] or chat[0]["role"] == "assistant":
        raise InputError(f"{place}: messages need a turn of the assistant after one of another role")
    return chat


def check_template(template: str) -> None:
    """Raise `InputError` unless the template has {prompt} and {response} once each, in this order."""
    is_unique = template.count("{prompt}") == template.count("{response}") == 1
    if not is_unique or template.index("{prompt}") > template.index("{response}"):
        raise InputError(f"template {template!r} must hold {{prompt}} and then {{response}}, once each")


EncodedPairs = namedtuple("EncodedPairs", ("rows", "truncated", "dropped"))
"""Rows (token ids, whether each is of a response); how many pairs were truncated, and how many dropped."""


def encode_pairs(
    pairs: Sequence[Row], tokenizer: Tokenizer, n_ctx: int, template: str | None = TEMPLATE, ends: Sequence[int] = ()
) -> EncodedPairs:
    """Encode the rows, at most n_ctx + 1 tokens each (inputs and the last target).

    Pairs are written in the template, or by the tokenizer's chat template if it is None. A token belongs to the
    response if it covers one of its characters, or of the template after it. A row ends with the first of `ends`
    (default: BOS). Longer rows lose their end; rows without a remaining response token are dropped.
    """
    if template is not None:
        check_template(template)
    ends = ends or (tokenizer.bos_id,)
    rows, truncated, dropped = [], 0, 0
    for row in pairs:
        if isinstance(row, tuple) and template is not None:
            ids, flags = _encode_pair(row, tokenizer, template, ends)
        else:
            if isinstance(row, tuple):
                row = [{"role": "user", "content": row[0]}, {"role": "assistant", "content": row[1]}]
            ids, flags = _encode_chat(row, tokenizer, ends)
        if not any(flags[1 : n_ctx + 1]):
            dropped += 1
            continue
        truncated += len(ids) > n_ctx + 1
        rows.append((ids[: n_ctx + 1], flags[: n_ctx + 1]))
    if not rows:
        raise InputError(f"no pair has a response within the context of {n_ctx} tokens: shorten the prompts")
    return EncodedPairs(rows, truncated, dropped)


def _encode_pair(pair: Pair, tokenizer: Tokenizer, template: str, ends: Sequence[int]) -> tuple[list[int], list[bool]]:
    prefix, tail = template.split("{prompt}")
    middle, suffix = tail.split("{response}")
    prompt, response = pair
    ids, spans = tokenizer.spans(prefix + prompt + middle + response + suffix)
    start = len(prefix) + len(prompt) + len(middle)
    return [*ids, ends[0]], [*(end > start for _, end in spans), True]


def _encode_chat(chat: Chat, tokenizer: Tokenizer, ends: Sequence[int]) -> tuple[list[int], list[bool]]:
    """(ids, whether each is of an assistant's turn) of a chat by the tokenizer's chat template.

    A turn is what the template writes after the place where the model answers, up to the first of `ends`.
    """
    text = tokenizer.chat_text(chat, reply=False)
    ids, spans = tokenizer.spans(text, bos=False, special=True)
    flags = [False] * len(ids)
    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        start, stop = tokenizer.chat_text(chat[:i]), tokenizer.chat_text(chat[: i + 1], reply=False)
        if not text.startswith(stop) or not stop.startswith(start):
            raise InputError(f"the chat template writes turn {i + 1} differently in a longer chat: give each answer "
                             "its own row")  # fmt: skip
        for k, (first, last) in enumerate(spans):
            if last > len(start) and first < len(stop):
                flags[k] = True
                if ids[k] in ends:
                    break
    if not any(i in ends for i, flag in zip(ids, flags, strict=True) if flag):  # a template that ends no turn
        ids, flags = [*ids, ends[0]], [*flags, True]
    return ids, flags


def prompt_of(row: Row) -> str:
    """The prompt of a pair; of a chat, what precedes the first answer, as JSON."""
    if isinstance(row, tuple):
        return row[0]
    first = next(i for i, message in enumerate(row) if message["role"] == "assistant")
    return json.dumps(row[:first])


def hold_out(pairs: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """Split into (training, validation): the share of prompts with the smallest sha256, at least one, is held out.

    All responses to a prompt are on one side.
    """
    keys = {prompt: hashlib.sha256(prompt.encode()).hexdigest() for prompt in map(prompt_of, pairs)}
    if len(keys) < 2:
        raise InputError("a file with one prompt cannot be split: give --valid FILE")
    n = min(max(1, round(fraction * len(keys))), len(keys) - 1)
    held_out = set(sorted(keys, key=keys.__getitem__)[:n])
    return [p for p in pairs if prompt_of(p) not in held_out], [p for p in pairs if prompt_of(p) in held_out]


class PairWindows:
    """Windows of pairs, with the interface of `text.windows.Windows`.

    document: one pair per window. stream: as many whole pairs as fit into n_ctx, in the order of the file. The token
    that ends a pair is only a target; the next input is the BOS of the next pair. Attention sees earlier pairs, as in
    packed pretraining. Inputs are padded on the right with the padding token, targets with −100: to the longest window
    of the batch, or to n_ctx if `fixed`.
    """

    def __init__(
        self, pairs: EncodedPairs, n_ctx: int, pad_id: int, *, packing: Packing = "document", masked: bool = True,
        fixed: bool = False,
    ) -> None:  # fmt: skip
        self.pad_id, self.masked, self.fixed = pad_id, masked, fixed
        self.windows: list[list[tuple[list[int], list[bool]]]] = []
        room = 0
        for ids, flags in pairs.rows:
            if packing == "document" or len(ids) - 1 > room:
                self.windows.append([])
                room = n_ctx
            self.windows[-1].append((ids, flags))
            room -= len(ids) - 1  # a truncated row has no end for the next one, but it also fills the window
        self.n_ctx = n_ctx if fixed else max(map(_length, self.windows))

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        windows = [self.windows[int(index)] for index in indices]
        shape = len(windows), self.n_ctx if self.fixed else max(map(_length, windows), default=0)
        inputs, targets = torch.full(shape, self.pad_id), torch.full(shape, NO_TARGET)
        for row, window in enumerate(windows):
            start = 0
            for ids, flags in window:
                end = start + len(ids) - 1
                inputs[row, start:end] = torch.tensor(ids[:-1])
                real = torch.tensor(flags[1:]) | (not self.masked)
                targets[row, start:end] = torch.where(real, torch.tensor(ids[1:]), NO_TARGET)
                start = end
        return inputs, targets

    @property
    def n_targets(self) -> int:
        """Number of targets in all windows."""
        return sum(sum(flags[1:]) if self.masked else len(ids) - 1 for window in self.windows for ids, flags in window)


def _length(window: list[tuple[list[int], list[bool]]]) -> int:
    return sum(len(ids) - 1 for ids, _ in window)
