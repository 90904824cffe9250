"""What `python -m papers.krom` can be told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.krom`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Run folders of gpt2, canon, kromhc and kromcanon."""
    out: Path | None = None
    """Folder for README.md, tables (.parquet) and the figure."""
    html: bool = True
    """Write the interactive figure.html (5 MB) as well."""
    tables: Path | None = None
    """Folder of an earlier comparison: its tables are judged and its page is written again, without any model."""
