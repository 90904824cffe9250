"""The pages of results and the interactive page of claims: `python -m papers --out site`."""

from streamscope.cli.parse import command
from streamscope.papers.pages import main

if __name__ == "__main__":
    command(main)
