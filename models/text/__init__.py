"""Text in, tokens out: tokenizers, corpora and packed token shards."""

from typing import Literal

END_OF_TEXT = "<|endoftext|>"  # separates documents in text files; BOS of the tokenizers trained here
SplitAt = Literal["separator", "blank", "file"]
"""Where a document of a text file ends: behind a line that holds `END_OF_TEXT`, before a blank line, with the file."""
