"""The live page: type a text, change a part of a model, see what happens.

    from streamscope.viewer import View
    View("stories/lfa", "Lily had a red ball. She")      # in a notebook

One front end (`static/`) has three hosts: a file that opens from disk (`page`), a local server (`server`) and a
notebook (`widget`). All ask an engine for the same outputs: a graph that is exported from the model's own forward pass
(`export`), or that forward pass itself (`engine`).
"""

from typing import TYPE_CHECKING

from streamscope.aliases import lazy

if TYPE_CHECKING:
    from streamscope.viewer.widget import View as View

__getattr__, __dir__ = lazy(__name__, {"View": "streamscope.viewer.widget"})
