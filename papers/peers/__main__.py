"""`python -m papers.peers`."""

from streamscope.models.cli import command
from streamscope.papers.peers import main

if __name__ == "__main__":
    command(main)
