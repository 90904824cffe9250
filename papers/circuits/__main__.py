from streamscope.cli.parse import command
from streamscope.papers.circuits import main

if __name__ == "__main__":
    command(main)
