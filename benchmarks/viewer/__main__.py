from streamscope.benchmarks.viewer import main
from streamscope.cli.parse import command

if __name__ == "__main__":
    command(main)
