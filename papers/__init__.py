"""One module per paper: its runs, tables, figures and claims, measured with the instruments of the other rooms."""

from streamscope.aliases import alias

alias(__name__)
