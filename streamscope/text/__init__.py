"""Text in, tokens out: tokenizers, corpora and packed token shards."""

from streamscope.cli.bounds import SplitAt as SplitAt

END_OF_TEXT = "<|endoftext|>"  # separates documents in text files; BOS of the tokenizers trained here
