"""Rows with named fields, of JSON lines, CSV, parquet, or a Hugging Face dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.text.readers import check_content, first_line, json_lines

TABLES = (".csv", ".tsv", ".parquet")


def is_records(source: str) -> bool:
    """Whether the source is a dataset (hf:…) or a file that is there."""
    return source.startswith("hf:") or Path(source).expanduser().is_file()


def records(source: str, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", fields) of every row; `source` is a file, or hf:ID[:CONFIG][:SPLIT]. Cells of CSV are text, and
    empty ones are left out. Raises `InputError` for a file that cannot be read, and for JSON lines other than
    `expected`."""
    if source.startswith("hf:"):
        from streamscope.text.corpus import HubCorpus, open_corpus  # no command needs it for its help

        hub = open_corpus(source)
        assert isinstance(hub, HubCorpus)
        yield from ((f"{source}, row {i}", row) for i, row in enumerate(hub.records(), 1))
        return
    path = Path(source).expanduser()
    if path.suffix.lower() not in TABLES:
        yield from json_lines(path, expected)
        return
    import pandas as pd
    import pyarrow.parquet as pq

    check_content(path)
    try:
        if path.suffix.lower() == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            separator = "," if path.suffix.lower() == ".csv" else "\t"
            table = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
            rows = table.to_dict("records")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8; convert the file to UTF-8") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: the file is empty") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's errors are kinds of ValueError
        raise InputError(f"{path}: cannot be read ({first_line(error)})") from error
    for i, row in enumerate(rows, 1):
        yield f"{path}, row {i}", {str(name): value for name, value in row.items() if value not in (None, "")}
