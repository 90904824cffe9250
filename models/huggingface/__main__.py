"""`python -m models.huggingface`."""

from streamscope.models.cli import command
from streamscope.models.huggingface import main

if __name__ == "__main__":
    command(main)
