"""`python -m features.extract`."""

from streamscope.features.extract import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
