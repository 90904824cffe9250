"""`python -m benchmarks.clustering`."""

from streamscope.benchmarks.clustering import main
from streamscope.cli.parse import command

if __name__ == "__main__":
    command(main)
