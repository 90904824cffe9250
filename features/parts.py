"""A long computation in parts that survive being killed: finished parts lie beside the output until all are there.

    parts = Parts(out, identity)                  .NAME.parts/ with manifest.json: what is being computed
    for i in range(n):
        if not parts.done(i):
            parts.write(i, tables)                one Arrow table per output, under a temporary name, then renamed
    parts.assemble(n, [(path, metadata), …])      one row group per part, renamed when whole
    parts.remove()                                then the folder goes

A part is done when its last file is there. Whoever comes again with the same identity goes on; with another one
`InputError` says so.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamscope.models.errors import InputError
from streamscope.probes.tables import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa


class Parts:
    """The folder of parts of one output; see this module's docstring."""

    def __init__(self, out: Path, identity: Mapping[str, Any]) -> None:
        """Create the folder, or find that of an interrupted run; `InputError` if parts of something else are there."""
        self.folder = out.with_name(f".{out.name}.parts")
        manifest = self.folder / "manifest.json"
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found == digest:
            return
        if any(self.folder.glob("*.parquet")):
            raise InputError(
                f"{self.folder} holds an interrupted extraction of something else (see its manifest.json): "
                "finish that with its own command, choose another --out, or delete the folder"
            )
        text = json.dumps({"sha256": digest, **identity}, indent=1)

        own = manifest.with_name(f".{uuid.uuid4().hex}")  # workers may begin at the same moment
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            own.write_text(text, encoding="utf-8")
            os.replace(own, manifest)
        except OSError as error:
            raise InputError(f"cannot write {manifest}: {error.strerror or error}") from None

    def _path(self, i: int, output: int) -> Path:
        return self.folder / f"{i:06d}-{output}.parquet"

    def done(self, i: int) -> bool:
        """Whether part `i` is whole."""
        return self._path(i, 0).exists()

    def write(self, i: int, tables: "Sequence[pa.Table]") -> None:
        """Write one table per output; the first output last, for it says that the part is whole."""
        import pyarrow.parquet as pq

        for output, table in reversed(list(enumerate(tables))):

            def save(part: Path, table: "pa.Table" = table) -> None:
                pq.write_table(table, part, use_dictionary=_texts(table.schema))

            write_atomically(self._path(i, output), save)

    def assemble(self, n: int, outputs: Sequence[tuple[Path, Mapping[str, str]]]) -> None:
        """Write every output from its `n` parts, one at a time in memory, with its metadata.

        The first output comes last: where it is, the others are.
        """
        import pyarrow.parquet as pq

        for output, (path, metadata) in reversed(list(enumerate(outputs))):
            schema = pq.read_schema(self._path(0, output)).with_metadata(dict(metadata))

            def join(part: Path, output: int = output, schema: "pa.Schema" = schema) -> None:
                with pq.ParquetWriter(part, schema, use_dictionary=_texts(schema)) as writer:
                    for i in range(n):
                        writer.write_table(pq.read_table(self._path(i, output)).cast(schema))

            write_atomically(path, join)

    def remove(self) -> None:
        """Delete the folder: all is in the outputs."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _texts(schema: "pa.Schema") -> list[str]:
    """The columns of text, which are written as dictionaries."""
    return [field.name for field in schema if str(field.type) == "string"]
