"""The clustering benchmark runs and compares labels."""

import pytest

from streamscope.benchmarks.clustering import main


@pytest.mark.parametrize(
    ("tokens", "predict"), [(1500, False), pytest.param(3000, True, marks=pytest.mark.slow)], ids=["labels", "predict"]
)
def test_ours_beside_the_peers(tokens: int, predict: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The labels of both packages; so many tokens that those which come later fall into the same clusters."""
    pytest.importorskip("hdbscan")
    main(["--tokens", str(tokens), "--jobs", "1", *["--predict"] * predict])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ours", "hdbscan", "sklearn", *["new"] * predict]
    assert {line.split()[-1] for line in lines[2:]} == {"1.0000"} and " 0 clusters" not in lines[1]
