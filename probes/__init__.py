"""Probes: measurements that only observe.

    from streamscope.probes import Pds

`listed` has every instrument of this package; they are imported at the first use of one.
"""

from typing import TYPE_CHECKING

from streamscope.aliases import lazy

if TYPE_CHECKING:
    from streamscope.probes.listed import *  # noqa: F403

__getattr__, __dir__ = lazy(__name__, "streamscope.probes.listed")
