"""`python -m benchmarks.hooks`."""

from streamscope.benchmarks.hooks import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
