"""Training: options, optimiser, loop and run folders. The command is `python -m models.train`."""
