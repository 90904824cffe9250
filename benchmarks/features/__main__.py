"""`python -m benchmarks.features`."""

from streamscope.benchmarks.features import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
