"""The live page in a notebook: the kernel answers, and what was set by hand can be read from Python.

    view = View("stories/lfa", "Lily had a red ball. She")
    view                          # shows the page
    view.edits                    # {"heads": {"L2.H3": {"scale": 0}}}, as set by hand
    view.save_edits("edits.json") # for --edit edits.json of an instrument
    with edit(view.model, view.hooks()):
        ...                       # or measured here

Where no kernel answers, as in a document on the web, the output shows a page that runs the model itself: View(…,
page="tour.html") writes it, and `View.frame` is the address of one that exists.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import anywidget
import traitlets

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edit
from streamscope.models.hooks.controls import control_values, edits_of, spelled_out
from streamscope.viewer import bundle
from streamscope.viewer.page import write_page
from streamscope.viewer.session import KINDS, Session, check_text, open_models, page_data
from streamscope.viewer.shown import latent_scale
from streamscope.viewer.view import check_words


class View(anywidget.AnyWidget):
    """The live page of one model or two in a notebook.

    `edits` (JSON without code) and `text` follow the page and can be set; wrong ones raise `InputError`.
    """

    frame: ClassVar[str] = ""
    """Address of a page of the same models, for outputs that no kernel answers; "" for none."""
    _esm = bundle.script("notebook.js")
    _css = bundle.style()
    data = traitlets.Dict().tag(sync=True)
    """What the page knows before it asks."""
    edits = traitlets.Dict().tag(sync=True)
    """The state of all controls, as `--edit FILE.json` of an instrument takes it."""
    text = traitlets.Unicode().tag(sync=True)
    """The text."""

    def __init__(
        self, runs: str | Sequence[str] = "stories/lfa", text: str | None = None, *, page: str | Path | None = None,
        device: str = "cpu", dtype: str = "fp32", circuit: str | Path | Sequence[str | Path] = (),
        lens: str | Sequence[str] = (), dictionary: str | Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Open one run or two, as commands do; `page` is written too, as `view --out` does. `circuit` is a file
        of edges to draw over the heads, or one for each run; `lens` is FILE:KIND likewise, and `dictionary` a folder.

        Raises `InputError` like `session.open_models`, and for a text that is empty or beyond the context.
        """
        check_words(text)
        text = text or ""
        names, *given = (
            [str(value)] if isinstance(value, str | Path) else list(map(str, value))
            for value in (runs, circuit, lens, dictionary)
        )
        self._shown = open_models(names, device, dtype, *given)
        self._session, self._page = Session(self._shown), page
        data = page_data(self._shown, "notebook", text)
        if page is not None:
            write_page(self._shown, Path(page), text)
        super().__init__(data=data, text=text)
        self.on_msg(self._asked)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget; for those who show none, a frame with the page."""
        mimebundle = super()._repr_mimebundle_(**options)
        page = str(self._page or self.frame)
        if not page or mimebundle is None:
            return mimebundle
        kinds, about = mimebundle
        state = {"text": self.text, "edits": json.dumps(self.edits) if self.edits else ""}
        words = urlencode({name: text for name, text in state.items() if text}, quote_via=quote)
        frame = f'<iframe src="{quote(page)}#{words}" width="100%" height="900" style="border: 0"></iframe>'
        return {**kinds, "text/html": frame}, about

    @property
    def model(self) -> Any:
        """The (first) model."""
        return self._shown[0].model

    def hooks(self) -> dict[str, Edit]:
        """The edits as functions, for `streamscope.models.hooks.edit`."""
        return edits_of(self.edits, self.model)

    def save_edits(self, path: str | Path) -> None:
        """Write the edits for `--edit FILE.json`."""
        Path(path).write_text(json.dumps(self.edits), encoding="utf-8")

    @traitlets.validate("edits")
    def _fitting(self, proposal: Any) -> dict[str, Any]:
        control_values(proposal["value"], self.model.config)
        latent_scale(self._shown[0].latents, proposal["value"])
        return spelled_out(proposal["value"], self.model.config)

    @traitlets.validate("text")
    def _within_context(self, proposal: Any) -> str:
        for entry in self._shown:
            check_text(entry.model, entry.name, proposal["value"])
        return proposal["value"]

    def _asked(self, widget: Any, message: Any, buffers: Any) -> None:
        """Answer a question of the page: {"id", "kind", …}."""
        if not isinstance(message, dict) or message.get("kind") not in KINDS:
            return
        try:
            answer = self._session.answer(message["kind"], message)
        except InputError as error:
            answer = {"error": str(error)}
        name = {"id": message.get("id")}
        self.send(name, [answer]) if isinstance(answer, bytes) else self.send({**name, **answer})
