"""The version number, from pyproject.toml or the metadata of the installed package."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version() -> str:
    """The version of this package: that of the clone, or that of the installed package outside a clone.

    "unknown" for a copy of the package that no installer put there.
    """
    if PROJECT.is_file():
        import tomllib

        project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "streamscope":
            return str(project["version"])
    from importlib import metadata

    try:
        return metadata.version("streamscope")
    except metadata.PackageNotFoundError:
        return "unknown"
