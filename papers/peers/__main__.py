from streamscope.cli.parse import command
from streamscope.papers.peers import main

if __name__ == "__main__":
    command(main)
