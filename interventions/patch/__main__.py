"""`python -m interventions.patch`."""

from streamscope.interventions.patch import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
