from streamscope.cli.parse import command
from streamscope.probes.head_groups import main

if __name__ == "__main__":
    command(main)
