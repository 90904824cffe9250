from streamscope.cli.parse import command
from streamscope.probes.check import main

if __name__ == "__main__":
    command(main)
