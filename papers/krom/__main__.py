"""`python -m papers.krom`."""

from streamscope.models.cli import command
from streamscope.papers.krom import main

if __name__ == "__main__":
    command(main)
