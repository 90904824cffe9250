"""The card of feature tables says every column with its unit, and `datasets` opens a folder by it."""

import re
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest

from streamscope import Documents, InputError
from streamscope.features.card import main
from streamscope.features.extract import main as extract
from streamscope.features.store import read_features
from streamscope.probes import Heads
from tests.tiny import untrained


def test_card(tiny_run: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    run, folder = untrained("pls", tiny_run, tmp_path / "pls"), tmp_path / "shared"
    table = folder / "features.parquet"
    extract([str(run), "--data", str(corpus[1]), "--max-tokens", "60", "--out", str(table), "--device", "cpu"])
    main([str(table), str(folder / "features-depth.parquet"), "--license", "cc-by-4.0"])
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlicense: cc-by-4.0\n") and "60 rows, by `extract`" in text
    told = text.partition("## features-depth")[0]
    found = read_features(table)
    rows = dict(re.findall(r"^\| `(\w+)`.*? \| (.+?) \|", told, re.MULTILINE))
    stems = {re.sub(r"\d+", "#", name): unit for name, unit in rows.items()}
    for column in found.columns:
        assert stems[re.sub(r"\d+", "#", column.name)] == column.unit
    assert {"document", "position", "token", "target", "prediction"} <= rows.keys()
    n = int(re.search(r"`head_act_stable_L0H0` … `head_act_stable_L1H3` \((\d+)\)", told)[1])  # type: ignore[index]
    assert n == 8, "heads of two layers in one row"
    assert found.about["checkpoint"] in told and "`tier=structural`" in told
    for name, path in (("features", table), ("features-depth", folder / "features-depth.parquet")):
        read = datasets.load_dataset(str(folder), name, split="train", cache_dir=str(tmp_path / "cache"))
        assert read.column_names == pq.read_schema(path).names and len(read) == pq.read_metadata(path).num_rows
    with pytest.raises(InputError, match="exists already; --force overwrites it"):
        main([str(table)])
    main([str(table), "--force"])
    assert "Not stated" in (folder / "README.md").read_text()


def test_the_card_of_another_instrument_names_the_text_that_it_measured(tmp_path: Path) -> None:
    out = tmp_path / "theirs" / "heads.parquet"
    (tmp_path / "a.txt").write_text("Tom saw a ball. Mia saw it.")
    source = Documents(str(tmp_path / "a.txt"))
    result = Heads(sequences=2).measure("stories/lfa", source)
    result.save(out)
    main([str(out)])
    digest = result.about["data"]["Documents"]["source"]["fingerprint"]
    assert f"a.txt`, fingerprint `{digest}`" in (out.parent / "README.md").read_text()
