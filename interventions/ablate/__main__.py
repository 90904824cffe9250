from streamscope.cli.parse import command
from streamscope.interventions.ablate import main

if __name__ == "__main__":
    command(main)
