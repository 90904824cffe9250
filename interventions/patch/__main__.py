from streamscope.cli.parse import command
from streamscope.interventions.patch import main

if __name__ == "__main__":
    command(main)
