from streamscope.cli.parse import command
from streamscope.probes.specialization import main

if __name__ == "__main__":
    command(main)
