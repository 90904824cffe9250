"""A command imports what it uses: every other library would cost its user a second or more at each call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNUSED = {"torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.sparse.csgraph",
          "statsmodels", "sklearn", "sympy", "plotly", "transformer_lens", "transformers", "datasets",
          "huggingface_hub"}  # fmt: skip
CODES = {
    "ablate": f"""
from interventions.ablate import main
main(["--heads", "L0.H0", "--max-documents", "2"])
assert not {UNUSED!r} & set(sys.modules), {UNUSED!r} & set(sys.modules)
""",
    "later": """
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
""",
    "first": """
import transformer_lens
from streamscope.models.interop import transformer_lens_core as core
assert transformer_lens.HookedRootModule is core.HookedRootModule
""",
    "submodule": """
import streamscope.models.interop.transformer_lens_core
from transformer_lens.model_bridge import TransformerBridge
assert sys.modules["transformer_lens"].ActivationCache
""",
}
"""Each runs in a process of its own, where torch is imported and nothing else of `UNUSED`."""
FORKS = f"""
import json, os, sys, traceback
import torch
assert not {UNUSED!r} & set(sys.modules)
found = {{}}
for name, code in json.loads(sys.argv[1]).items():
    if not (child := os.fork()):
        try:
            exec(code)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    found[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, int], str]:
    """Name of a code -> exit code of its process; and what they wrote as errors."""
    argv = [sys.executable, "-c", FORKS, json.dumps(CODES)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", CODES)
def test_what_is_imported_and_when(name: str, outcomes: tuple[dict[str, int], str]) -> None:
    """Our models need TransformerLens' hook points only; the rest is there for who imports it, of the same classes."""
    found, errors = outcomes
    assert found[name] == 0, errors
