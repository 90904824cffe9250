"""`python -m probes.linear`."""

from streamscope.models.cli import command
from streamscope.probes.linear import main

if __name__ == "__main__":
    command(main)
