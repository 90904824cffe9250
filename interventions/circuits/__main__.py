from streamscope.cli.parse import command
from streamscope.interventions.circuits import main

if __name__ == "__main__":
    command(main)
