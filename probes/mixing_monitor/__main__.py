from streamscope.cli.parse import command
from streamscope.probes.mixing_monitor import main

if __name__ == "__main__":
    command(main)
