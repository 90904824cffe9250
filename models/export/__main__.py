"""A run as a Hugging Face folder, which opens where streamscope is not installed: `python -m models.export`."""

from streamscope.models.cli import command
from streamscope.models.export import main

if __name__ == "__main__":
    command(main)
