"""`python -m benchmarks.clustering`."""

from streamscope.benchmarks.clustering import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
