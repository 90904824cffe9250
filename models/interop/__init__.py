"""Models from elsewhere and for elsewhere: Hugging Face folders, checkpoints of other code, TransformerLens, export."""
