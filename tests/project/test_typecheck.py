"""The import hook of the tests checks the shapes that the rooms name, and mypy reads the README as a user's code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from streamscope.models.readout import token_losses

ROOT = Path(__file__).resolve().parents[2]
THEIRS = (
    "torch", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "plotly", "transformers", "transformer_lens", "datasets",
)  # fmt: skip
"""Libraries that a user's mypy need not read to see our types."""


@pytest.mark.slow
def test_readmes_python_is_clean_for_a_users_mypy(tmp_path: Path) -> None:
    """`mypy --strict` on README's example as it stands, and on what is wrong in it."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None and 'heads="' in example[1]
    (tmp_path / "user.py").write_text(f"{example[1]}\nAblate(heads=['L5.H4', 'L4.*'])\nAblate(heads=5)\n")
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\n[mypy-{','.join(f'{name}.*' for name in THEIRS)}]\nfollow_imports = skip\n"
    )
    package = tmp_path / "streamscope"
    package.mkdir()
    for file in (
        *(ROOT / "streamscope").iterdir(),
        *(ROOT / room for room in ("models", "probes", "interventions", "features")),
    ):
        if file.name != "__pycache__":
            (package / file.name).symlink_to(file)
    argv = ["mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([sys.executable, "-m", *argv, "user.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "Found 1 error" in done.stdout, done.stdout + done.stderr
    assert 'Argument "heads" to "Ablate" has incompatible type "int"' in done.stdout


def test_shapes_are_held_against_each_other() -> None:
    h, head, targets = torch.zeros(3, 4), torch.zeros(7, 4), torch.zeros(3, dtype=torch.long)
    assert token_losses(h, head, targets).shape == (3,)
    with pytest.raises(TypeCheckError):
        token_losses(h, torch.zeros(7, 5), targets)
    with pytest.raises(TypeCheckError):
        token_losses(h, head, targets[:2])
