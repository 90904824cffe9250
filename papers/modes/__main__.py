"""`python -m papers.modes`."""

from streamscope.models.cli import command
from streamscope.papers.modes import main

if __name__ == "__main__":
    command(main)
