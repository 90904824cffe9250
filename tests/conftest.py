"""Every test runs with jaxtyping shapes checked by beartype, two threads, and a cache of its own."""

from pathlib import Path

import jaxtyping
import pytest

import tests.typecheck  # noqa: F401  found by name below

# before any test module imports the rooms
jaxtyping.install_import_hook(["models", "probes", "interventions", "benchmarks"], "tests.typecheck.checked")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    patch = pytest.MonkeyPatch()
    patch.setenv("STREAMSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the clone; tests that need them skip where there are none."""
    if not SHARED.is_dir():
        pytest.skip(f"no real corpora at {SHARED}")
    return SHARED
