from streamscope.cli.parse import command
from streamscope.interventions.token_effects import main

if __name__ == "__main__":
    command(main)
