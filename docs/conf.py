"""Sphinx: `make docs` builds the documentation into docs/_build, warnings are errors."""

import os
import shutil
import sys
from html import escape
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
nb_output_stderr = "remove"  # the bars of long measurements
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", 100)]  # no kernel answers here
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

ROOMS = ("models", "probes", "interventions", "features", "viewer")
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
    "mystnb.unknown_mime_type",  # plotly's own type; the HTML is shown
]


RENDERER = """
import plotly.io as pio
from plotly.io.base_renderers import HtmlRenderer

pio.renderers["page"] = HtmlRenderer(include_plotlyjs=False)
pio.renderers.default = "page"

from streamscope.viewer import View

View.frame = "../_static/live.html"
"""
"""What the kernels of the notebooks run first: figures bring no Plotly, their pages load one copy (`with_plotly`), and
the live page is one file that runs its model (`live_page`)."""


def with_plotly(app: Any, pagename: str, templatename: str, context: Any, doctree: Any) -> None:
    """Pages of notebooks load the copy of Plotly in their own folder, so that figures open offline."""
    if pagename.startswith("notebooks/"):
        app.add_js_file("plotly.min.js", priority=100)


def live_page(path: Path) -> None:
    """Write the page of stories/lfa that guide and tour embed; where ONNX Runtime was not fetched, what to do."""
    from streamscope.cli.errors import InputError
    from streamscope.viewer.page import write_page
    from streamscope.viewer.session import open_models

    try:
        write_page(open_models(["stories/lfa"]), path)
    except InputError as error:
        path.write_text(f"<p>This documentation was built without the live page: {escape(str(error))}</p>\n")


def setup(app: Any) -> None:
    """Write the pages that are generated from the code before Sphinx looks for pages."""
    import plotly
    from pages import write

    write(ROOT / "docs" / "reference")
    shutil.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", ROOT / "docs" / "_static")
    live_page(ROOT / "docs" / "_static" / "live.html")
    kernels = Path(app.outdir).parent / "ipython"
    startup = kernels / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "renderer.py").write_text(RENDERER, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(kernels)
    app.connect("html-page-context", with_plotly)
