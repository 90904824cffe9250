"""A run on a mixture: what it writes down, and that a stopped one goes on to the same weights."""

import json
import shutil
from pathlib import Path

import pytest

from streamscope.cli.errors import InputError
from streamscope.models.train import main
from tests.tiny import arguments, corpus_text
from tests.training.runs import cut, rows, same_weights


@pytest.fixture(scope="module")
def source(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    other = tmp_path_factory.mktemp("other") / "other.txt"
    other.write_text(corpus_text(30, 7))
    return f"{corpus[0]}*.75 + {other}*.25"


def test_a_run_writes_down_its_mixture_and_goes_on_bit_equal(source, corpus, tmp_path) -> None:
    argv = [source if word == str(corpus[0]) else word for word in arguments(corpus, tmp_path / "whole")]
    main(argv)
    config = json.loads((tmp_path / "whole/config.json").read_text())
    told = json.loads((tmp_path / "whole/manifest.json").read_text())["data"]["train"]
    assert config["data"]["data"] == source
    assert [part["weight"] for part in told["source"]["parts"]] == [0.75, 0.25]
    assert told["corpus"] == told["source"]["fingerprint"]
    out = tmp_path / "cut"
    cut(7, main, [str(out) if word == str(tmp_path / "whole") else word for word in argv])
    main(["--resume", "--out", str(out)])
    assert same_weights(tmp_path / "whole", out) and rows(tmp_path / "whole") == rows(out)


def test_a_changed_part_is_told_on_resume(source, corpus, tmp_path) -> None:
    part = tmp_path / "part.txt"
    shutil.copy(corpus[0], part)
    argv = arguments(corpus, tmp_path / "run")
    argv[argv.index("--data") + 1] = f"{part}*1 + {corpus[0]}*1"
    cut(5, main, argv)
    part.write_text(corpus_text(120, 9))
    with pytest.raises(InputError, match="the train data changed"):
        main(["--resume", "--out", str(tmp_path / "run")])
