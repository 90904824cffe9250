"""`python -m interventions.amplify`."""

from streamscope.interventions.amplify import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
