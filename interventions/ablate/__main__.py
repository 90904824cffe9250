"""`python -m interventions.ablate`."""

from interventions.ablate import main
from models.cli import command

if __name__ == "__main__":
    command(main)
