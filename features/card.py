"""Write the Hugging Face data card of feature tables: rows, columns with units, model and data.

    python -m features.extract runs/pls --out shared/features.parquet
    python -m features.card shared/features.parquet --license cc-by-4.0

The second writes shared/README.md, with the header by which datasets.load_dataset("shared") finds the tables. Several
tables of one folder become its configurations, by the names of their files. Tables of other instruments have cards too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse
from streamscope.cli.terminal import cell, code, counted, visible, yaml


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m features.card`."""

    tables: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Parquet files of one folder, as `features.extract` and every instrument write them."""
    license: str = ""
    """Licence of the tables, as the hub names it (mit, cc-by-4.0)."""
    force: bool = False
    """Overwrite an existing README.md."""


def card(tables: Sequence[Path], license: str = "") -> str:
    """The README.md for `tables`. Raises `InputError` for a file that no instrument wrote."""
    head = ["---", *([f"license: {yaml(license)}"] if license else []), "tags:", "- streamscope", "configs:"]
    parts = []
    for path in tables:
        about, columns, kinds, rows = _read(path)
        head += [f"- config_name: {yaml(path.stem)}", f"  data_files: {yaml(path.name)}"]
        parts += [f"## {cell(path.stem)}", _of(about, rows), _columns(columns, kinds)]
    names = ", ".join(cell(path.stem) for path in tables)
    licence = cell(license) or "Not stated by the author of this card."
    return "\n\n".join(["\n".join([*head, "---"]), f"# {names}", *parts, f"## Licence\n\n{licence}"]) + "\n"


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, str], int]:
    """What a file holds: (its metadata, its columns, their types, its number of rows)."""
    import pyarrow.parquet as pq

    from streamscope.instruments.table import read_about

    meta = read_about(path, ("about", "table"))
    if len(meta) < 2:
        raise InputError(f"{path} was not written by an instrument: python -m features.extract --out {path} writes one")
    about, table, file = meta["about"], meta["table"], pq.ParquetFile(path)
    kinds = {field.name: str(field.type) for field in file.schema_arrow}
    columns = [column for column in table["columns"] if column["name"] in kinds]
    if "undefined" in kinds:
        columns.append({"name": "undefined", "unit": "text", "doc": "why a value of the row is missing", "source": ""})
    return {**about, "title": table.get("title", "")}, columns, kinds, file.metadata.num_rows


def _of(about: dict[str, Any], rows: int) -> str:
    lines = [cell(about["title"]), f"{counted(rows, 'row', ',')}, by {code(about.get('instrument'))} of streamscope."]
    model = f"Model: {cell(about['model'])}" if about.get("model") else ""
    checkpoint = about.get("features", {}).get("checkpoint")
    lines.append(model + (f", weights of sha256 {code(checkpoint)}" if checkpoint and model else ""))
    for kind, data in (about.get("data") or {}).items():
        source = data.get("source") if isinstance(data, dict) else None
        if isinstance(source, dict):
            digest = data.get("corpus") or source.get("fingerprint")
            suffix = f", fingerprint {code(digest)}" if digest else ""
            lines.append(f"{cell(kind)}: {code(source.get('source'))}{suffix}")
    options = {name: value for name, value in (about.get("options") or {}).items() if value not in (None, [], "")}
    if options:
        lines.append("Options: " + ", ".join(code(f"{name}={value}") for name, value in options.items()))
    return "\n\n".join(line for line in lines if line)


def _columns(columns: list[dict[str, Any]], kinds: dict[str, str]) -> str:
    """One row per column; columns that differ only in numbers (layer, head) share a row."""

    def without_numbers(column: dict[str, Any]) -> tuple[str, ...]:
        texts = (re.sub(r"\d+", "#", str(column[field])) for field in ("name", "unit", "doc", "source"))
        return (*texts, kinds[column["name"]])

    rows = ["| column | unit | type | meaning | source |", "| --- | --- | --- | --- | --- |"]
    for _, group in groupby(columns, without_numbers):
        members = list(group)
        first, last = members[0], members[-1]
        name = code(first["name"]) + (f" … {code(last['name'])} ({len(members)})" if len(members) > 1 else "")
        cells = [name, first["unit"], kinds[first["name"]], first["doc"], first["source"]]
        rows.append("| " + " | ".join(map(cell, cells)) + " |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(Options, argv, __doc__)
    if not options.tables:
        raise InputError("give tables: python -m features.card FOLDER/features.parquet")
    if twice := [path for i, path in enumerate(options.tables) if path in options.tables[:i]]:
        raise InputError(f"{twice[0]} is named twice")
    if missing := [path for path in options.tables if not path.exists()]:
        raise InputError(f"{missing[0]} does not exist; check the path")
    if strays := [path for path in options.tables if path.parent.resolve() != options.tables[0].parent.resolve()]:
        raise InputError(f"{options.tables[0]} and {strays[0]} lie in different folders; write one card per folder")
    out, text = options.tables[0].parent / "README.md", card(options.tables, options.license)
    if out.exists() and not options.force:
        raise InputError(f"{out} exists already; --force overwrites it")

    from streamscope.cli.disk import write_text

    write_text(out, text)
    print(visible(f"written {out}"))


if __name__ == "__main__":
    command(main)
