from streamscope.cli.parse import command
from streamscope.features.cluster import main

if __name__ == "__main__":
    command(main)
