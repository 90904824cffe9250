"""`python -m papers.demo`."""

from streamscope.models.cli import command
from streamscope.papers.demo import main

if __name__ == "__main__":
    command(main)
