"""Turns text into tokens: corpora, tokenizers and packed token shards."""

import re
from typing import Literal

from streamscope.cli.bounds import SplitAt as SplitAt

BosChoice = Literal["yes", "no", "model"]  # whether texts begin with BOS; model: as the files of its tokenizer say
END_OF_TEXT = "<|endoftext|>"  # separates documents in text files; BOS of tokenizers trained here


def is_bos(piece: str, position: int) -> bool:
    """Whether the first token of a text looks like BOS (<|endoftext|>, [CLS]), and not like a word of the text."""
    return position == 0 and re.fullmatch(r"<[^<>]+>|\[[A-Z]+\]", piece) is not None
