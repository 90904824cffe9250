"""The import hook of the tests checks the shapes and types of the rooms, not only those of what names shapes."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, TypeCheckError

from models.head_spec import parse_heads
from models.readout import token_losses
from models.training.config import Training

Rows = Float[torch.Tensor, "B T"]


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
