from streamscope.cli.parse import command
from streamscope.features.predict_effects import main

if __name__ == "__main__":
    command(main)
