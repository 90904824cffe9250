"""`python -m probes.pds`."""

from models.cli import command
from probes.pds import main

if __name__ == "__main__":
    command(main)
