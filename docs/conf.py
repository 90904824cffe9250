"""Sphinx: `make docs` builds the documentation into docs/_build, warnings are errors."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

project = "streamscope"
extensions = ["myst_nb", "autodoc2"]
exclude_patterns = ["_build", "README.md"]
html_theme = "furo"
html_title = "streamscope"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]  # tables of columns and hooks
smartquotes = False  # -- is an option here
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True

ROOMS = ("models", "probes", "interventions", "features")
FRAMEWORK = ("cli", "text", "instruments")
autodoc2_packages = [{"path": f"../{room}", "module": f"streamscope.{room}"} for room in ROOMS]
autodoc2_packages += [{"path": f"../streamscope/{part}", "module": f"streamscope.{part}"} for part in FRAMEWORK]
autodoc2_docstring_parser_regexes = [(r".*", "myst")]
autodoc2_render_plugin = "myst"
autodoc2_hidden_objects = {"private", "inherited", "dunder", "undoc"}
autodoc2_index_template = None
autodoc2_output_dir = "api"
autodoc2_skip_module_regexes = [r".*\.__main__"]
suppress_warnings = [
    "autodoc2.dup_item",
    "ref.python",  # a type variable or a field of a name that several classes have
    "mystnb.unknown_mime_type",  # plotly's own type, beside the HTML that is shown
]


def setup(app: Any) -> None:
    """Write the pages that are generated from the code before Sphinx looks for pages."""
    from pages import write

    write(ROOT / "docs" / "reference")
