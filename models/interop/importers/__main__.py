from streamscope.cli.parse import command
from streamscope.models.interop.importers import main

if __name__ == "__main__":
    command(main)
