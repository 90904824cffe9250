"""`python -m probes.contraction`."""

from streamscope.models.cli import command
from streamscope.probes.contraction import main

if __name__ == "__main__":
    command(main)
