"""Turns text into tokens: corpora, tokenizers and packed token shards."""

from streamscope.cli.bounds import SplitAt as SplitAt

END_OF_TEXT = "<|endoftext|>"  # separates documents in text files; BOS of tokenizers trained here
