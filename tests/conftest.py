"""Every test runs with the shapes that annotations name checked, and a cache of its own."""

import gc
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: one thread a process, as the processes that tests start

import jaxtyping
import plotly.io._html
import plotly.offline.offline
import pytest

import tests.tiny
import tests.typecheck

gc.disable()  # until all is imported: a million objects that stay are not looked through again and again

# before any test module imports the rooms
jaxtyping.jaxtyped = tests.typecheck.jaxtyped  # what the hook puts before every function
jaxtyping.install_import_hook(
    [
        f"streamscope.{room}"
        for room in ("cli", "text", "instruments", "models", "probes", "interventions", "features", "benchmarks")
    ],
    "tests.typecheck.checked",
)

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


PLOTLY = plotly.offline.get_plotlyjs

LONG = [
    "documents", "faults", "parallel", "causal_commands", "lfa", "pls", "dst", "krom", "demo", "zoo", "compile",
    "nnsight", "grid", "start", "launch", "update_arithmetic", "watch", "parity",
]  # fmt: skip
"""Files of a quarter of a minute and more: first, so that no worker ends with one while the other has nothing left."""


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a tenth of the tests' time went into collecting
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    patch = pytest.MonkeyPatch()
    patch.setenv("STREAMSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _files_are_not_synced():
    """Tests kill processes, but cut no power: nobody waits for the disk."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda descriptor: None)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _pages_without_plotly():
    """The tests write hundreds of pages: each holds a line in the place of plotly's own 4.6 MB (see `own_plotly`)."""
    patch = pytest.MonkeyPatch()
    for module in (plotly.offline, plotly.offline.offline, plotly.io._html):
        patch.setattr(module, "get_plotlyjs", lambda: "/* plotly.js */")
    yield
    patch.undo()


@pytest.fixture
def own_plotly(monkeypatch: pytest.MonkeyPatch) -> str:
    """plotly.js, as pages hold it outside the tests."""
    for module in (plotly.offline, plotly.offline.offline, plotly.io._html):
        monkeypatch.setattr(module, "get_plotlyjs", PLOTLY)
    return PLOTLY()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the clone; tests that need them skip where there are none."""
    if not SHARED.is_dir():
        pytest.skip(f"no real corpora at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(training file, validation file) of random words."""
    folder = tmp_path_factory.mktemp("corpus")
    train, valid = folder / "train.txt", folder / "valid.txt"
    train.write_text(tests.tiny.corpus_text(120, 0))
    valid.write_text(tests.tiny.corpus_text(20, 1))
    return train, valid


@pytest.fixture(scope="session")
def tiny_run(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder of a tiny LFA."""
    from streamscope.models.train import main

    out = tmp_path_factory.mktemp("runs") / "lfa"
    main(tests.tiny.arguments(corpus, out, "--sample-every", "6"))
    return out
