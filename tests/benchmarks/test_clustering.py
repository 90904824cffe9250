"""The clustering benchmark runs and compares labels."""

import pytest

from benchmarks.clustering import main


def test_ours_beside_the_peers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hdbscan")
    main(["--tokens", "3000", "--jobs", "1", "--predict"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ours", "hdbscan", "sklearn", "new"]
    assert [line.split()[-1] for line in lines[2:]] == ["1.0000"] * 3
