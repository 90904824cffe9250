"""Reads and writes models of other libraries: Hugging Face, checkpoints of the papers' authors, TransformerLens."""
