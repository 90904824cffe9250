"""`python -m benchmarks.gpu`."""

from streamscope.benchmarks.gpu import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
