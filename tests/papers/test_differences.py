"""What is measured on the grid of differences: choices by hand, plain loops on a bundled model, the table."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.stats.held_out import halves
from streamscope.interventions.edits import scale_heads
from streamscope.models.checkpoint import run_folder
from streamscope.models.grid import cells_of, read_grid
from streamscope.models.head_spec import Head
from streamscope.papers import differences
from streamscope.papers.differences import _held_out_best, coreference, main, position
from streamscope.papers.paper import Run
from streamscope.papers.primary import PAPERS, registered
from streamscope.probes.coherence.measure import rows as coherence_rows
from streamscope.probes.pds import Pds
from tests.papers.plain import Place, by_pair, looks, moved, small


def test_the_grid_trains_every_arm_that_a_claim_compares() -> None:
    names = {cell.name for cell in cells_of(read_grid(PAPERS / "differences.toml"))}
    for paper in ("dst", "lfa", "hdpl", "pls", "krom"):
        claims, seeds, _ = registered(paper)
        assert {f"{arm}-s{seed}" for claim in claims for arm in claim["arms"] for seed in seeds} <= names, paper


def test_the_best_head_has_its_sign_from_the_half_that_chose_it() -> None:
    heads = pd.Index([(0, 0), (0, 1), (1, 0)])
    first = pd.Series([0.1, -0.4, 0.2], heads)
    second = pd.Series([0.3, 0.1, -0.05], heads)
    assert _held_out_best([first, second]) == pytest.approx((-0.1 + 0.1) / 2)
    assert _held_out_best([second, first]) == _held_out_best([first, second])
    assert _held_out_best([first, second], 2) == pytest.approx(((-0.1 - 0.05) / 2 + (0.1 - 0.4) / 2) / 2)


@pytest.fixture(scope="module")
def measured() -> tuple[Run, dict[str, float]]:
    run = small("stories/lfa")
    coreference(run)
    position(run)
    return run, {row["quantity"]: row["value"] for row in run.rows}


def test_quantities_are_those_of_plain_loops(measured: tuple[Run, dict[str, float]]) -> None:
    """Stable heads, late share of squared PDS and heads over the threshold, one prompt and head at a time."""
    run, found = measured
    seen, hits = looks(run), dict[str, list[set[Place]]]()
    for prompt, heads in zip(run.pairs.prompts, seen, strict=True):
        hits.setdefault(prompt.pair, []).append({place for place, head in heads.items() if head["hit"]})
    assert found["stable"] == pytest.approx(np.mean([len(a & b) for a, b in hits.values()]), abs=1e-6)
    sizes = pd.Series(moved(seen, [*by_pair(run).values()])).abs()
    assert found["pds.over075"] == (sizes > 0.075).sum()
    assert found["pds.over_own"] == (sizes > sizes.mean() + sizes.std()).sum()


def test_suppressed_heads_are_measured_on_pairs_that_did_not_rank_them(measured: tuple[Run, dict[str, float]]) -> None:
    run, found = measured
    pds = run.probe(Pds()).query("category == 'competing-nouns'")
    pds = pds.assign(side=halves(pds, 0)[0])

    def preferences(heads: list[Head]) -> pd.Series:
        rows = coherence_rows(run.model, run.pairs, None, run.tokenizer, scale_heads(heads, 0.0))
        return rows.set_index("id")["log_odds"]

    changes = []
    for ranked, tested in ((0, 1), (1, 0)):
        scores = pds[pds["side"] == ranked].groupby(["layer", "index"])["difference"].mean()
        heads = [Head(*place) for place in scores.abs().nlargest(3).index]
        pairs = set(pds[pds["side"] == tested]["pair"])
        ids = [prompt.id for prompt in run.pairs.prompts if prompt.pair in pairs]
        changes.append((preferences(heads) - preferences([]))[ids].mean())
    assert found["suppress.top3.preference"] == pytest.approx(sum(changes) / 2, abs=1e-6)


def test_every_category_has_its_rows(measured: tuple[Run, dict[str, float]]) -> None:
    _, found = measured
    for name in ("gender", "number", "nouns"):
        assert {f"{name}.preference", f"{name}.top1", f"{name}.both"} <= set(found)
        assert 0 <= found[f"{name}.both"] <= 1


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(differences, "measure_run", lambda folder: [{"quantity": "x", "value": 1.5, "unit": "heads"}])
    folders = []
    for name in ("lfa-s20", "std-t-printed-s21"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "manifest.json"):
            shutil.copy(run_folder("stories/lfa") / file, folder / file)
        folders.append(folder)
    return folders


def test_the_table_grows_and_what_is_there_is_not_measured_again(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "measured.csv"
    main([str(runs[1]), "--out", str(out)])
    main([*map(str, runs), "--out", str(out)])
    table = pd.read_csv(out)
    assert table[["arm", "seed", "quantity", "value"]].to_numpy().tolist() == [
        ["lfa", 20, "x", 1.5], ["std-t-printed", 21, "x", 1.5],
    ]  # fmt: skip
    assert table["tokens"].nunique() == 1 and table["tokens"][0] > 1e6
    monkeypatch.setattr(differences, "measure_run", lambda folder: pytest.fail("measured again"))
    main([*map(str, runs), "--out", str(out)])
    manifest = json.loads((runs[0] / "manifest.json").read_text()) | {"outcome": "running"}
    (runs[0] / "manifest.json").write_text(json.dumps(manifest))
    main([str(runs[0]), "--out", str(out)])
    assert "lfa-s20 has not ended: left out" in capsys.readouterr().err
    with pytest.raises(InputError, match="a run is called ARM-sSEED"):
        main([str(tmp_path), "--out", str(out)])
