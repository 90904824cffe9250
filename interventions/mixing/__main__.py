"""`python -m interventions.mixing`."""

from streamscope.interventions.mixing import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
