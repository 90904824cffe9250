"""The command layer: parsing, help, errors, bounds of options, files on disk, provenance. It imports no room."""
