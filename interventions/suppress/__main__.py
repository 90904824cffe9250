"""`python -m interventions.suppress`."""

from streamscope.interventions.suppress import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
