"""`python -m interventions.ablation_effects`."""

from streamscope.interventions.ablation_effects import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
