"""`python -m interventions.steer`."""

from streamscope.interventions.steer import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
