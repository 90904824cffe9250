from streamscope.cli.parse import command
from streamscope.probes.direct_logit_attribution import main

if __name__ == "__main__":
    command(main)
