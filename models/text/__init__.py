"""Text in, tokens out: tokenizers, corpora and packed token shards."""

END_OF_TEXT = "<|endoftext|>"  # separates documents in text files; BOS of the tokenizers trained here
