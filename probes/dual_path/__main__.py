from streamscope.cli.parse import command
from streamscope.probes.dual_path import main

if __name__ == "__main__":
    command(main)
