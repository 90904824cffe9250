"""TransformerLens' hook points and tensor functions, without its `__init__`, which takes two seconds of every command.

That `__init__` imports transformers, datasets and pytest. It runs at the first `import transformer_lens` of anybody
else, on the same modules: the classes exist once.
"""

import sys
from importlib.util import find_spec, module_from_spec

from streamscope.aliases import BARE

__all__ = ["FactoredMatrix", "HookPoint", "HookedRootModule", "Slice", "lm_cross_entropy_loss"]

# Here packages are only folders of their modules; those that are already imported do not change.
for name in ("transformer_lens", "transformer_lens.utilities", "transformer_lens.conversion_utils"):
    if name not in sys.modules and (spec := find_spec(name)) is not None:
        BARE[name] = sys.modules[name] = module_from_spec(spec)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, BARE[name])
try:
    from transformer_lens.utilities.devices import warn_if_mps
    from transformer_lens.utilities.slice import Slice, SliceInput
    from transformer_lens.utilities.tensors import remove_batch_dim

    if "transformer_lens.utilities" in BARE:  # the names that HookedRootModule imports from there
        vars(BARE["transformer_lens.utilities"]).update(
            Slice=Slice, SliceInput=SliceInput, remove_batch_dim=remove_batch_dim, warn_if_mps=warn_if_mps
        )
    from transformer_lens.FactoredMatrix import FactoredMatrix
    from transformer_lens.hook_points import HookPoint
    from transformer_lens.HookedRootModule import HookedRootModule
    from transformer_lens.utilities.lm_utils import lm_cross_entropy_loss
finally:
    for name in BARE:
        del sys.modules[name]
