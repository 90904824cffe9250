"""One module per paper: its runs, tables, figures and claims, measured with the instruments of the other rooms."""

from streamscope.aliases import lazy

__getattr__, __dir__ = lazy(__name__)
