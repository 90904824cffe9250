"""A command imports what it uses: every other library would cost its user a second or more at each call."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNUSED = {"torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.sparse.csgraph",
          "statsmodels", "sklearn", "sympy", "plotly", "transformer_lens.model_bridge",
          "transformers.core_model_loading"}  # fmt: skip
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
