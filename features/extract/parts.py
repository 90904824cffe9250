"""A long table in parts that survive being killed: finished parts lie in a folder until all are there.

    parts = Parts(folder)
    for i in range(n):
        if not parts.done(i):
            parts.write(i, tables)                one Arrow table per output, under a temporary name, then renamed
    LongTable(parts.files(n, 0), columns)         the rows of all parts, part after part

A part is done when its last file is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from streamscope.instruments.table import write_batches


@dataclass(frozen=True)
class Parts:
    """The folder of the parts of one or several tables with the same rows."""

    folder: Path

    def path(self, i: int, output: int) -> Path:
        """Where the rows of part i for an output lie."""
        return self.folder / f"{i:06d}-{output}.parquet"

    def done(self, i: int) -> bool:
        """Whether part `i` is whole."""
        return self.path(i, 0).exists()

    def write(self, i: int, tables: Sequence[pa.Table]) -> None:
        """Write one table per output; the first output last, for it says that the part is whole."""
        for output, table in reversed(list(enumerate(tables))):
            write_batches(self.path(i, output), [table], {})

    def files(self, n: int, output: int) -> list[Path]:
        """The files of an output in order."""
        return [self.path(i, output) for i in range(n)]
