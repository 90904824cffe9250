from streamscope.benchmarks.real_model import main
from streamscope.cli.parse import command

if __name__ == "__main__":
    command(main)
