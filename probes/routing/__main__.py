"""`python -m probes.routing`."""

from streamscope.models.cli import command
from streamscope.probes.routing import main

if __name__ == "__main__":
    command(main)
