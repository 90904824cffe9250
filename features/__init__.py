"""Feature vectors per token that describe how the model processed it: extraction, clusters, profiles (PLS §2).

    from streamscope.features import Extract

`listed` has every instrument of this package; they are imported at the first use of one.
"""

from typing import TYPE_CHECKING, Any

from streamscope.aliases import alias

if TYPE_CHECKING:
    from streamscope.features.listed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamscope.features import listed

    return getattr(listed, name)


def __dir__() -> list[str]:
    from streamscope.features import listed

    return sorted({*globals(), *vars(listed)})


alias(__name__)
