"""`python -m features.needed_context`."""

from streamscope.features.needed_context import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
