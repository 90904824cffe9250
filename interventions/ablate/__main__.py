"""`python -m interventions.ablate`."""

from streamscope.interventions.ablate import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
