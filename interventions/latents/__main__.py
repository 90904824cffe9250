from streamscope.cli.parse import command
from streamscope.interventions.latents import main

if __name__ == "__main__":
    command(main)
