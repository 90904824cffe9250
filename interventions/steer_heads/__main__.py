"""`python -m interventions.steer_heads`."""

from streamscope.interventions.steer_heads import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
