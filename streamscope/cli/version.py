"""Which version this is. The number stands in pyproject.toml, and in the metadata of an installed package."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version() -> str:
    """The version of this package: that of the clone where the code lies in one, else that which was installed."""
    if PROJECT.is_file():
        import tomllib

        project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "streamscope":
            return str(project["version"])
    from importlib.metadata import version as installed

    return installed("streamscope")
