"""Feature vectors per token that describe how the model processed it: extraction, clusters, profiles (PLS §2).

    from streamscope.features import Extract

`listed` has every instrument of this package; they are imported at the first use of one.
"""

from typing import TYPE_CHECKING

from streamscope.aliases import lazy

if TYPE_CHECKING:
    from streamscope.features.listed import *  # noqa: F403

__getattr__, __dir__ = lazy(__name__, "streamscope.features.listed")
