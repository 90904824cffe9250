from streamscope.cli.parse import command
from streamscope.interventions.ablation_effects import main

if __name__ == "__main__":
    command(main)
