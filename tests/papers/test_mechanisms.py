"""The command that measures a real model: the cost comes first, parts are kept, only missing ones are measured."""

import re
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result
from streamscope.papers.mechanisms import main
from streamscope.papers.mechanisms import measure as body

QUICK = ("pds", "sps")


def test_parts_are_kept_and_the_missing_ones_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "PARTS", {name: body.PARTS[name] for name in QUICK})
    monkeypatch.setattr(body, "seconds_per_token", lambda model: 0.01)
    argv = ["stories/lfa", "--out", str(tmp_path / "x")]
    main(argv)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"about 40 s for pds, sps; \d+\.\d GB of memory so far", lines[0])
    assert not list((tmp_path / "x").glob("*observations*")), "the tables alone, which are small"
    whole = Result.load(tmp_path / "x" / "sps.parquet")
    assert whole.about["run"] == "stories/lfa" and whole.table().frame["sps"].notna().all()
    (tmp_path / "x" / "pds.parquet").unlink()
    main(argv)
    assert "about 20 s for pds" in capsys.readouterr().err
    main(argv)
    assert "has every part: pds, sps" in capsys.readouterr().out


def test_heads_of_hydra_are_chosen_on_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head is measured on prompts that did not choose it."""
    from streamscope.models import load

    monkeypatch.setattr(body, "CASES", 8)
    monkeypatch.setattr(body, "HEADS", 2)
    seen, load_suite = [], body.load_suite
    monkeypatch.setattr(body, "load_suite", lambda *name, **how: seen.append(load_suite(*name, **how)) or seen[-1])
    table = body.PARTS["hydra"].measure(load("stories/gpt2"), iter).table("effects").frame
    choice, measured = ({p.text for p in suite.prompts} for suite in seen)
    assert len(table) == 2 and measured and not choice & measured


def test_a_folder_that_is_a_file_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text("")
    monkeypatch.setattr(body, "load_for_instruments", lambda run: pytest.fail("loaded"))
    with pytest.raises(InputError, match=f"^--out {tmp_path / 'x'} is a file: give a folder$"):
        main(["stories/lfa", "--out", str(tmp_path / "x")])
