"""Training: options, optimiser, loop, run folders. The command is `python -m models.train`."""
