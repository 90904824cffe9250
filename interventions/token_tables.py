"""The table of `interventions.token_effects`: its columns, its rows window by window, its file, its summary."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.interventions.token_sweep import TokenEffects
    from streamscope.models.text.shards import TokenShards

INDEX = {
    "document": ("int32", "number in the order of the data, from 0"),
    "position": ("int32", "tokens before it in its document"),
    "token_id": ("int32", "token at the position"),
    "target_id": ("int32", "token after it"),
    "prediction_id": ("int32", "token that the unedited model says"),
    "loss": ("float32", "nats, of the target, unedited"),
    "log_p": ("float32", "nats, of the prediction, unedited"),
}
"""Column -> type, unit."""
DELTAS = {"delta_loss": "nats, edited − unedited, of the target", "delta_log_p": "nats, edited − unedited, of ŷ"}
ENDS = ("ci_low", "ci_high")


class Document(NamedTuple):
    """Tokens of a document from its start: `ids`, the last of which is a target only, and how many it has in all."""

    document: int
    ids: list[int]
    length: int


def documents(shards: "TokenShards", n_ctx: int, max_tokens: int | None = None) -> Iterator[Document]:
    """The documents in order, cut to n_ctx + 1 tokens, until `max_tokens` rows; those without a target left out."""
    left = max_tokens if max_tokens is not None else shards.n_tokens
    for i in range(shards.n_documents):
        ids = shards.document(i)
        rows = min(len(ids) - 1, n_ctx, left)
        if rows > 0:
            left -= rows
            yield Document(i, ids[: rows + 1].tolist(), len(ids))


def table_of(found: Sequence[tuple[Document, "TokenEffects"]], names: Sequence[str]) -> "pd.DataFrame":
    """One row per position, float32; `names` are those of the edits."""
    import pandas as pd

    index = {
        "document": np.concatenate([np.full(len(s.ids) - 1, s.document) for s, _ in found]),
        "position": np.concatenate([np.arange(len(s.ids) - 1) for s, _ in found]),
        "token_id": np.concatenate([s.ids[:-1] for s, _ in found]),
        "target_id": np.concatenate([s.ids[1:] for s, _ in found]),
        "prediction_id": np.concatenate([e.prediction for _, e in found]),
        "loss": np.concatenate([e.loss for _, e in found]),
        "log_p": np.concatenate([e.log_p for _, e in found]),
    }
    values = {
        f"{measure}_{name}": np.concatenate([getattr(e, measure)[i] for _, e in found])
        for measure in DELTAS
        for i, name in enumerate(names)
    }
    types = {name: kind for name, (kind, _) in INDEX.items()}
    return pd.DataFrame({**index, **values}).astype({**types, **dict.fromkeys(values, "float32")})


def units(names: Sequence[str]) -> dict[str, str]:
    """Column -> unit."""
    return {n: unit for n, (_, unit) in INDEX.items()} | {f"{m}_{n}": unit for m, unit in DELTAS.items() for n in names}


def write_windows(
    tables: Iterable["pd.DataFrame"], path: Path, *, names: Sequence[str], about: Mapping[str, Any]
) -> None:
    """Write tables one after the other as row groups of one parquet file, under a temporary name until the last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from streamscope.probes.tables import write_atomically

    meta = {"units": json.dumps(units(names)), "about": json.dumps(dict(about))}

    def write(part: Path) -> None:
        writer: Any = None
        try:
            for table in tables:
                rows = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(meta)
                writer = writer or pq.ParquetWriter(part, rows.schema)
                writer.write_table(rows)
            writer.close()
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    write_atomically(path, write)


class Summary:
    """Moments of every change, added window by window: `for table in summary.added(tables)`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.columns = [f"{measure}_{name}" for measure, name in product(DELTAS, names)]
        self.totals: list[np.ndarray] = []
        """Sums [documents, columns] of each window."""
        self.counts: list[np.ndarray] = []
        self.squares, self.absolute = np.zeros((2, len(self.columns)))

    def added(self, tables: Iterable["pd.DataFrame"]) -> Iterator["pd.DataFrame"]:
        """The same tables, counted."""
        for table in tables:
            values = table[self.columns].to_numpy(float)
            starts = np.flatnonzero(np.diff(table["document"].to_numpy(), prepend=-1))
            self.totals.append(np.add.reduceat(values, starts))
            self.counts.append(np.diff(np.append(starts, len(table))))
            self.squares += np.square(values).sum(0)
            self.absolute += np.abs(values).sum(0)
            yield table

    def table(self) -> "pd.DataFrame":
        """One row per edit and measure: mean with a 95 % interval over documents, sd and mean |Δ| over tokens."""
        import pandas as pd

        from streamscope.probes.stats.estimators import ratio_of_sums
        from streamscope.probes.undefined import note

        totals, counts = np.concatenate(self.totals), np.concatenate(self.counts)
        n, rows = int(counts.sum()), []
        for i, (measure, name) in enumerate(product(DELTAS, self.names)):
            mean = totals[:, i].sum() / n
            sd = np.sqrt(max(self.squares[i] / n - mean**2, 0.0))
            row = {"edit": name, "measure": measure, "mean": mean, "sd": sd, "mean_abs": self.absolute[i] / n}
            found = ratio_of_sums(totals[:, i], counts) if len(counts) > 1 else None
            row |= {end: getattr(found, end) if found else np.nan for end in ENDS}
            why = {} if found else dict.fromkeys(ENDS, "one document")
            rows.append(row | {"n": n, "documents": len(counts), "undefined": note(why)})
        return pd.DataFrame(rows)
