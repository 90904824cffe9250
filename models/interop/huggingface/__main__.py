from streamscope.cli.parse import command
from streamscope.models.interop.huggingface import main

if __name__ == "__main__":
    command(main)
