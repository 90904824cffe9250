"""Interventions: measurements that change the forward pass.

    from streamscope.interventions import Ablate

`listed` has every instrument of this package; they are imported at the first use of one.
"""

from typing import TYPE_CHECKING

from streamscope.aliases import lazy

if TYPE_CHECKING:
    from streamscope.interventions.listed import *  # noqa: F403

__getattr__, __dir__ = lazy(__name__, "streamscope.interventions.listed")
