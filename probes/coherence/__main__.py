"""`python -m probes.coherence`."""

from streamscope.models.cli import command
from streamscope.probes.coherence import main

if __name__ == "__main__":
    command(main)
