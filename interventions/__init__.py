"""Interventions: measurements that change the forward pass.

    from streamscope.interventions import Ablate

`listed` has every instrument of this package; they are imported at the first use of one.
"""

from typing import TYPE_CHECKING, Any

from streamscope.aliases import alias

if TYPE_CHECKING:
    from streamscope.interventions.listed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamscope.interventions import listed

    return getattr(listed, name)


def __dir__() -> list[str]:
    from streamscope.interventions import listed

    return sorted({*globals(), *vars(listed)})


alias(__name__)
