"""A run as a Hugging Face folder, which opens where streamscope is not installed: `python -m models.interop.export`."""

from streamscope.cli.parse import command
from streamscope.models.interop.export import main

if __name__ == "__main__":
    command(main)
