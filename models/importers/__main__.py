"""`python -m models.importers`."""

from streamscope.models.cli import command
from streamscope.models.importers import main

if __name__ == "__main__":
    command(main)
