"""A command imports what it uses: every other library would cost its user a second or more at each call."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNUSED = {"torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.sparse.csgraph",
          "statsmodels", "sklearn", "sympy", "plotly", "transformer_lens", "transformers", "datasets",
          "huggingface_hub"}  # fmt: skip
RUN = f"""
import sys
from interventions.ablate import main
main(["--heads", "L0.H0", "--max-documents", "2"])
assert "torch" in sys.modules
print(sorted({UNUSED!r} & set(sys.modules)))
"""


def test_ablate_imports_only_what_it_uses() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


LATER = """
import sys
from streamscope.models.interop import transformer_lens_core as core
assert not {"transformer_lens", "transformers", "datasets"} & set(sys.modules)
import transformer_lens
import transformer_lens.utilities
assert transformer_lens.HookedRootModule is core.HookedRootModule
assert transformer_lens.hook_points.HookPoint is core.HookPoint
assert transformer_lens.FactoredMatrix is core.FactoredMatrix
assert transformer_lens.utilities.slice.Slice is transformer_lens.utilities.Slice is core.Slice
assert transformer_lens.utilities is sys.modules["transformer_lens.utilities"]
assert transformer_lens.ActivationCache and "datasets" in sys.modules
"""
FIRST = """
import transformer_lens
from streamscope.models.interop import transformer_lens_core as core
assert transformer_lens.HookedRootModule is core.HookedRootModule
"""
SUBMODULE = """
import sys
import streamscope.models.interop.transformer_lens_core
from transformer_lens.model_bridge import TransformerBridge
assert sys.modules["transformer_lens"].ActivationCache
"""


@pytest.mark.parametrize("code", [LATER, FIRST, SUBMODULE], ids=["later", "first", "submodule"])
def test_transformer_lens_is_whole_whoever_imports_it(code: str) -> None:
    """Our models need its hook points only; the rest is there at once for who imports it, on the same classes."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
