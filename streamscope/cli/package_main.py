"""What `python -m PACKAGE` runs of a package that has a `main` (`streamscope.aliases`)."""

from importlib import import_module

from streamscope.cli.parse import command

if __name__ == "__main__":
    command(import_module(str(__package__)).main)
