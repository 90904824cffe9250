from streamscope.cli.parse import command
from streamscope.probes.logit_lens import main

if __name__ == "__main__":
    command(main)
