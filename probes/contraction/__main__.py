from streamscope.cli.parse import command
from streamscope.probes.contraction import main

if __name__ == "__main__":
    command(main)
