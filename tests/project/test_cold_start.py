"""A command imports what it uses: every other library would cost its user a second or more at each call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import some

ROOT = Path(__file__).resolve().parents[2]
UNUSED = {"torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.sparse.csgraph",
          "statsmodels", "sklearn", "sympy", "plotly", "transformer_lens", "transformers", "datasets",
          "huggingface_hub"}  # fmt: skip
CODES = {
    "ablate": f"""
import sys
from interventions.ablate import main
main(["--heads", "L0.H0", "--max-documents", "2"])
assert not {UNUSED!r} & set(sys.modules), {UNUSED!r} & set(sys.modules)
""",
    "later": """
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
""",
    "first": """
import transformer_lens
from streamscope.models.interop import transformer_lens_core as core
assert transformer_lens.HookedRootModule is core.HookedRootModule
""",
    "submodule": """
import sys
import streamscope.models.interop.transformer_lens_core
from transformer_lens.model_bridge import TransformerBridge
assert sys.modules["transformer_lens"].ActivationCache
""",
}
"""Each runs in a process of its own."""


@pytest.mark.parametrize("name", some(CODES, ["ablate", "later"]))
def test_what_is_imported_and_when(name: str) -> None:
    """Our models need TransformerLens' hook points only; the rest is there for who imports it, of the same classes."""
    done = subprocess.run([sys.executable, "-c", CODES[name]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MISTAKES = """
cluster --features no.parquet | no.parquet does not exist
cluster --features {file} --fitted no.parquet | no.parquet does not exist
profile --features no.parquet | no.parquet does not exist
profile --labels no.parquet | no.parquet does not exist
predict_effects --effects no.parquet | no.parquet does not exist
token_effects --modes no.parquet | no.parquet does not exist
features.card no.parquet | no.parquet does not exist
pds --n 5 | n and seed belong to the generated suites
pds --suite coreferrence | did you mean coreference
pds --suite winobias:no.txt | no.txt is missing:
pds --reference no/run | no/run is not a run folder
suppress --rank-on no.jsonl | no.jsonl
circuits --task no.jsonl | no.jsonl
ablation_effects --tasks gendre | did you mean gender
ablate --data no.txt | no.txt is not an existing file
features.extract --data no.txt | no.txt is not an existing file
directions --a no.txt | no.txt is missing:
steer --direction no.safetensors | no.safetensors is not a file of directions
abliterate --direction no.safetensors | no.safetensors is not a file of directions
ablate no/run | no/run is not a run folder
ablate --control no/run | no/run is not a run folder
ablate stories/lfa@7 | has no snapshot '7'
ablate --device gpu | device 'gpu' is unknown
ablate no/run --out {folder}/new/a/x.csv | no/run is not a run folder
ablate --figure {folder}/x.svg | needs kaleido and a Chrome
ablate --figure {folder}/x.jpg | a figure is a file that ends in .html
ablate --out {folder}/x.txt | a table is parquet or CSV
train lfaa --data stories --out {folder}/run | did you mean lfa
train lfa --data no.txt --out {folder}/run | no.txt is not an existing file
sft no/run --data {file} --out {folder}/run | no/run is not a run folder
sft stories/lfa --data no.jsonl --out {folder}/run | no.jsonl
grid no.toml --out {folder}/runs | no.toml is missing
describe lfaa | did you mean lfa
export no/run --out {folder}/hf | no/run is not a run folder
view no/run | no/run is not a run folder
"""
ROWS = MISTAKES.strip().split("\n")
EARLY = """
import json, sys

class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "scipy", "transformers"):
            raise RuntimeError(f"imports {name}")

sys.meta_path.insert(0, Heavy())
sys.modules["kaleido"] = None
from streamscope.__main__ import main
answers = {}
for line in json.loads(sys.argv[1]):
    try:
        main(line.split())
    except Exception as error:
        answers[line] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Command line -> its error, and the heavy libraries that were imported before."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "a.txt").write_text("a")
    lines = {row: row.rpartition(" | ")[0].format(folder=folder, file=folder / "a.txt") for row in ROWS}
    argv = [sys.executable, "-c", EARLY, json.dumps([*lines.values()])]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt"], "nothing is left behind"
    return {row: found[line] for row, line in lines.items()}


@pytest.mark.parametrize("row", ROWS)
def test_a_mistake_is_refused_before_anything_heavy_is_imported(row: str, early: dict[str, str]) -> None:
    assert early[row].startswith("InputError: ") and row.rpartition(" | ")[2] in early[row]
