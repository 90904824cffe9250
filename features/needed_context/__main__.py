from streamscope.cli.parse import command
from streamscope.features.needed_context import main

if __name__ == "__main__":
    command(main)
