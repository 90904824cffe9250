"""What the clusters are: profiles, samples in their texts, and a map to explore (PLS §4.3, App. C.5).

    python -m features.extract --out features.parquet
    python -m features.cluster features.parquet --out clusters
    python -m features.profile features.parquet clusters/labels.parquet --out profiles
    python -m features.profile a.parquet clusters/labels.parquet --also b.parquet       clusters of several tables

Writes into --out: profiles.parquet (a row per cluster: size, depth, tokens, predictions, mean attention of heads,
probability by layer), kinds.parquet (which kinds of tokens it holds more or less often), samples.parquet (tokens
nearest to its centre, and diverse ones by farthest point, in their texts), profiles.md to read, and map.html, where the
pointer shows each token in its text (if the clusters have coordinates). Texts come from the feature table itself.
Of several tables profiles and samples say which one tokens are from; documents are numbered on from table to table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from streamscope.models.bounds import Count
from streamscope.models.cli import command, parse

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.features.profile.profiles import Clustered

SHOWN = 15
"""Clusters on the screen."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m features.profile`."""

    features: Annotated[Path, tyro.conf.Positional]
    """Table of `features.extract`."""
    labels: Annotated[Path, tyro.conf.Positional]
    """labels.parquet of `features.cluster`, of the same features."""
    also: tuple[Path, ...] = ()
    """The other tables, where several were clustered together."""
    out: Path = Path("profiles")
    """Folder to write into."""
    representative: Count = 8
    """Tokens nearest to the centre, per cluster."""
    diverse: Count = 15
    """Tokens by farthest point, per cluster; 15 in the paper."""
    show: Count = 30
    """Clusters in profiles.md, the largest."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, profile, write, print."""
    options = parse(Options, argv, __doc__)

    from streamscope.features.profile.enrichment import UNITS as KIND_UNITS
    from streamscope.features.profile.map import write_map
    from streamscope.features.profile.profiles import UNITS, profiles, read_clusters, samples
    from streamscope.features.profile.report import report
    from streamscope.models.provenance import provenance
    from streamscope.probes.tables import write_atomically, write_table

    clustered = read_clusters((options.features, *options.also), options.labels)
    table, kinds = profiles(clustered)
    some = samples(clustered, representative=options.representative, diverse=options.diverse)
    of, made = clustered.features.about, provenance("cpu")
    about = {
        "format": 1,
        "run": of["run"],
        "checkpoint": of["checkpoint"],
        "clusters": clustered.about,
        "left_out": clustered.left_out,
        **made,
    }
    units = {c.name: c.unit for c in clustered.features.columns}
    units = {c: UNITS.get(c, units.get(c.removeprefix("mean_"), "")) for c in table.columns}
    written = {"profiles": (table, units), "kinds": (kinds, KIND_UNITS), "samples": (some, {"distance": "sds"})}
    for name, (one, known) in written.items():
        kept = {c: unit for c, unit in known.items() if unit}
        write_table(one, options.out / f"{name}.parquet", units=kept, about={"kind": name, **about})
    title = f"{of['preset']}: {len(clustered.labels):,} tokens in {(table['cluster'] >= 0).sum()} clusters"
    text = report(table, kinds, some, title=title, about=clustered.features.about, show=options.show)
    write_atomically(options.out / "profiles.md", lambda part: part.write_text(text, encoding="utf-8"))
    names = [*(f"{name}.parquet" for name in written), "profiles.md"]
    if {"x", "y"} <= set(clustered.labels):
        tier = of["tier"]
        subtitle = f"Features of tier {tier}, {clustered.about['method']}, UMAP. "
        subtitle += "Scroll to zoom, drag to move, click a point to see its cluster alone."
        depths = max(of["n_layers"], int(clustered.labels["k_star"].max()))
        write_map(clustered, options.out / "map.html", title=title, subtitle=subtitle, depths=depths)
        names.append("map.html")
    elif (options.out / "map.html").exists():
        (options.out / "map.html").unlink()
        print(f"deleted, of an earlier run: {options.out / 'map.html'}")
    _print(clustered, table, title)
    print(f"in {options.out}: {', '.join(names)}")
    if "map.html" not in names:
        print("no map: these clusters have no coordinates (--no-umap)")


def _print(clustered: "Clustered", table: "pd.DataFrame", title: str) -> None:
    """The largest clusters, and what was left out."""
    import json

    from streamscope.probes.command import show

    shown = table.head(SHOWN).reset_index(drop=True)
    shown["share"] = [f"{share:.1%}" for share in shown["share"]]
    shown["k*"] = [f"{m:.1f} ± {s:.1f}" for m, s in zip(shown["depth_mean"], shown["depth_sd"], strict=True)]
    for name in ("tokens", "predictions"):
        shown[name] = [" ".join(repr(token) for token in list(json.loads(text))[:4]) for text in shown[name]]
    if clustered.left_out:
        title += f"; {clustered.left_out:,} rows of the features have no label"
    show(shown, title, ("cluster", "n", "share", "k*", "documents", "tokens", "predictions"))


if __name__ == "__main__":
    command(main)
