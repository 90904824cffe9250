"""`python -m probes.prompts`."""

from streamscope.models.cli import command
from streamscope.probes.prompts import main

if __name__ == "__main__":
    command(main)
