"""`python -m features.predict_effects`."""

from streamscope.features.predict_effects import main
from streamscope.models.cli import command

if __name__ == "__main__":
    command(main)
