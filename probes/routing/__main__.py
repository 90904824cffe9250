from streamscope.cli.parse import command
from streamscope.probes.routing import main

if __name__ == "__main__":
    command(main)
