"""`python -m features.cluster`."""

from streamscope.features.cluster import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
