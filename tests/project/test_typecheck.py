"""The import hook of the tests checks the shapes and types of the rooms, not only those of what names shapes."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, TypeCheckError

from streamscope.models.head_spec import parse_heads
from streamscope.models.readout import token_losses
from streamscope.models.training.config import Training

Rows = Float[torch.Tensor, "B T"]
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


def test_so_are_shapes_in_quotes_and_inside_other_types() -> None:
    def quoted(x: "Rows", y: "Float[torch.Tensor, 'B D']") -> None: ...
    def inside(x: list[Rows] | None, y: Callable[[int], Rows]) -> None: ...

    def plain(x: list[int], y: "pd.DataFrame") -> None: ...  # type: ignore[name-defined] # noqa: F821

    from tests.typecheck import _checked, checked, jaxtyped

    assert _checked(quoted) is None and _checked(inside) is None and _checked(plain) is not None
    both = jaxtyped(quoted, typechecker=checked)
    both(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TypeCheckError):
        both(torch.zeros(2, 3), torch.zeros(3, 4))


def test_so_are_types_without_shapes() -> None:
    with pytest.raises(TypeCheckError, match="n_layers"):
        parse_heads("all", "6", 6)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError, match="steps"):
        Training(steps="many")  # type: ignore[arg-type]


def test_a_kind_of_call_is_checked_once_and_another_result_anew() -> None:
    from tests.typecheck import checked, jaxtyped

    shapes = iter([(2, 3), (2, 3), (2, 4)])

    def rows(x: Rows, width: int) -> Rows:
        return torch.zeros(next(shapes))

    both = jaxtyped(rows, typechecker=checked)
    for _ in range(2):
        assert both(torch.zeros(2, 3), 1).shape == (2, 3)
    with pytest.raises(TypeCheckError, match="return value"):
        both(torch.zeros(2, 3), 1)
    with pytest.raises(TypeCheckError, match="width"):
        both(torch.zeros(2, 3), "1")
    with pytest.raises(TypeCheckError, match="'x'"):
        both(torch.zeros(2, 3).long(), 1)


def test_every_closure_is_checked_and_called_itself() -> None:
    from tests.typecheck import checked, jaxtyped

    def plus(n: int) -> Callable[[int], int]:
        def add(x: int, *, y: int = 0) -> int:
            return x + n + y

        return jaxtyped(add, typechecker=checked)

    first, second = plus(1), plus(2)
    assert (first(1), second(1), second(1, y=3), first(x=4)) == (2, 3, 6, 5)
    for one in (first, second):
        with pytest.raises(TypeCheckError, match="x"):
            one("1")

    def shaped(n: int) -> Callable[[Rows], Rows]:
        def add(x: Rows) -> Rows:
            return x + n

        return jaxtyped(add, typechecker=checked)

    first_rows, second_rows = shaped(1), shaped(2)
    assert first_rows(torch.zeros(1, 1)).item() == 1 and second_rows(torch.zeros(1, 1)).item() == 2
    with pytest.raises(TypeCheckError):
        second_rows(torch.zeros(1))


def test_classes_with_equal_code_keep_their_own_types() -> None:
    from tests.typecheck import checked, jaxtyped

    @dataclass(frozen=True)
    class Whole:
        x: int

    @dataclass(frozen=True)
    class Text:
        x: str

    assert Whole.__init__.__code__ == Text.__init__.__code__
    for cls, right, wrong in ((Whole, 1, "1"), (Text, "1", 1)):
        jaxtyped(cls, typechecker=checked)
        assert cls(right).x == right
        with pytest.raises(TypeCheckError):
            cls(wrong)
