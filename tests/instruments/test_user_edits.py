"""Every instrument measures a model under an edit of a user's own as it measures weights that do the same."""

from pathlib import Path

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.features.profile import main as profile
from streamscope.instruments.command import Job
from streamscope.instruments.registry import discover
from streamscope.instruments.result import Result
from streamscope.models.checkpoint import load
from streamscope.probes.pds import main as pds
from streamscope.probes.phenomena import main as phenomena
from tests.tiny import refused

INSTRUMENTS = discover()
QUICK = {"logit_lens", "pds"}
REFUSING = {
    "mixing_monitor": "did not fire",
    "routing": "did not fire",
    "abliterate": "abliterate projects weights",
    "circuits": "circuits run a model in parts",
}
"""Instruments that read or change weights or run a model in parts, and what they say."""
PARTS = {"picture": {"heads": ("L5.*",)}, "mixing": {"where": ("L1.*", "everywhere")}}
"""What some measure here: of mixing, modules that can act by construction, for under an edit nothing is known by it."""
OF_FILES = {"cluster", "predict_effects", "profile"}
CODE = """
def halve(x, hook):
    return x * 0.5
"""
HOOK = "blocks.*.hook_mlp_out"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "halve.py"
    path.write_text(CODE)
    return f"{path}:halve@{HOOK}"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in INSTRUMENTS if n not in OF_FILES]
)
def test_an_edit_is_measured_as_the_weights_that_do_the_same(name: str, spec: str, tmp_path: Path) -> None:
    how = INSTRUMENTS[name](**{**INSTRUMENTS[name].quick, **PARTS.get(name, {})})
    small = [one.small() for one in how.takes]
    job = Job(how.runs[0], None, how, small, "cpu", (spec,))
    if name in REFUSING:
        with pytest.raises(InputError, match=REFUSING[name]):
            job.do()
        return
    edited, other = job.do(), load(how.runs[0])
    with torch.no_grad():
        for block in other.blocks:
            for parameter in block.mlp.down.parameters():  # type: ignore[union-attr]
                parameter *= 0.5
    changed, plain = how.measure(other, *small), how.measure(how.runs[0], *small)
    assert distance(edited, changed) <= 1e-3 < distance(plain, changed)
    assert edited.about["edits"][0]["edit"] == spec and ", edited" in edited.about["model"]
    assert len(edited.about["edited_at"]) == other.config.n_layers


def distance(a: Result, b: Result) -> float:
    """The largest difference of any observed value, as a share of the largest of its block; ∞ for other values."""
    found = []
    for x, y in zip(values(a), values(b), strict=True):
        if x.shape != y.shape or (np.isnan(x) != np.isnan(y)).any():
            return np.inf
        found.append(np.nan_to_num(np.abs(x - y)).max() / max(1.0, np.nan_to_num(np.abs(y)).max()))
    return float(max(found))


def values(result: Result) -> list[np.ndarray]:
    """Its observations; of a result without any (the attention picture) the numbers of its tables."""
    seen = [block.total for block in result.blocks.values()]
    return seen or [table.frame.select_dtypes("float").to_numpy() for table in result.tables.values()]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1]", "found.json is damaged .*should be an object.*give an object such as"),
        ("{}", "changes nothing: give at least one edit, such as"),
        ('{"heads": {"L9.H0": {"scale": 0}}}', "found.json: 'L9.H0': this model has layers 0 to 5"),
        ('{"heads": {"L0.H0": {"gate": "open"}}}', "found.json: L0.H0.gate cannot be changed: this model has no gates"),
        ("print(1)", "found.json is damaged .*give an object such as"),
    ],
)
def test_wrong_edits_of_a_file_are_one_line(text: str, line: str, tmp_path: Path) -> None:
    (path := tmp_path / "found.json").write_text(text)
    with refused(line):
        pds(["lfa", "--suite", "stories", "--n", "2", "--edit", str(path)])


def test_the_control_is_measured_as_it_is(spec: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "loss.parquet"
    argv = ["lfa", "--control", "lfa", "--only", "loss", "--max-documents", "3", "--out", str(out), "--edit", spec]
    phenomena(argv)
    said, result = capsys.readouterr().out, Result.load(out)
    assert "stories/lfa, edited minus stories/lfa" in said
    edited, plain = result.blocks["loss"].total, result.blocks["control-loss"].total
    assert (edited - plain > 1.0).all()  # the same documents, which the unedited model predicts far better
    assert result.about["control"]["edited_at"] == [] and len(result.about["edited_at"]) == 6


def test_features_of_an_edited_model_are_not_those_of_an_earlier_call(spec: str, tmp_path: Path) -> None:
    """The parts of a killed call are found again by what was measured, edits included; the rest is done."""
    how, small = INSTRUMENTS["extract"](), [one.small() for one in INSTRUMENTS["extract"].takes]
    jobs = [Job("lfa", None, how, small, "cpu", edits, tmp_path) for edits in ((), (spec,))]
    assert jobs[0].task != jobs[1].task
    plain, edited, again = (job.do().table("features").frame for job in (*jobs, jobs[1]))
    assert again.equals(edited), "the second time all is there, and nothing fires"
    assert list(plain) == list(edited) and not plain.equals(edited)


def test_an_edit_is_refused_where_no_model_runs(spec: str) -> None:
    with pytest.raises(InputError, match="reads files, and no model runs"):
        profile(["--features", __file__, "--clusters", __file__, "--edit", spec])
