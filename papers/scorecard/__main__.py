"""`python -m papers.scorecard`."""

from streamscope.models.cli import command
from streamscope.papers.scorecard import main

if __name__ == "__main__":
    command(main)
