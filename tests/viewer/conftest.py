"""The Chromium of the tests of the live page: one of each file."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.viewer.pages import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found
