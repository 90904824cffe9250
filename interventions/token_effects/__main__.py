"""`python -m interventions.token_effects`."""

from streamscope.interventions.token_effects import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
