"""The benchmark of the live page: texts of the lengths asked for, and a row for the server without a browser."""

import re

import pytest

from streamscope.benchmarks.viewer import Options
from streamscope.benchmarks.viewer.measure import server_row, text_of
from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load


@pytest.mark.parametrize("length", [2, 32, 128])
def test_a_text_has_the_length_asked_for(length: int) -> None:
    model = load("stories/lfa")
    assert len(model.tokenizer.encode(text_of(model, length))) == length


def test_a_text_beyond_the_context_is_refused() -> None:
    with pytest.raises(InputError, match="--lengths 129 is beyond the model's context of 128"):
        text_of(load("stories/lfa"), 129)


def test_the_server_is_timed() -> None:
    what, *times = server_row(Options(rounds=2, threads=1))
    assert what == "server at 32 tokens, stories/lfa" and all(re.fullmatch(r"\d+\.\d ms", one) for one in times)
