from streamscope.cli.parse import command
from streamscope.probes.coreference import main

if __name__ == "__main__":
    command(main)
