from streamscope.cli.parse import command
from streamscope.papers.dst import main

if __name__ == "__main__":
    command(main)
