from streamscope.cli.parse import command
from streamscope.interventions.steer_heads import main

if __name__ == "__main__":
    command(main)
