"""`python -m interventions.streams`."""

from streamscope.interventions.streams import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
