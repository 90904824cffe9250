"""The interactive map of clustered tokens: one self-contained page, drawn by WebGL, light for 50,000 points and more.

Each point is a token at its UMAP coordinates, coloured by cluster or by k*. The texts that the pointer shows are not
stored per point: the page holds every token once, in the order of the texts, and joins neighbours when it is asked.
Arrays are little-endian numbers of the smallest type that holds them, in base64.
"""

import base64
import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamscope.features.profile.contexts import Contexts, visible
from streamscope.features.profile.map_page import SCRIPT, STYLE
from streamscope.models.errors import InputError

if TYPE_CHECKING:
    from streamscope.features.profile.profiles import Clustered

TYPES = {"Uint8Array": "<u1", "Int16Array": "<i2", "Uint16Array": "<u2", "Int32Array": "<i4", "Float32Array": "<f4"}


def packed(values: np.ndarray) -> dict[str, str]:
    """{"type": a JavaScript typed array, "data": base64}. Raises `InputError` for integers beyond 32 bits."""
    if np.issubdtype(values.dtype, np.floating):
        kind = "Float32Array"
    else:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        fits = [k for k, t in TYPES.items() if t[1] != "f" and np.iinfo(t).min <= low and high <= np.iinfo(t).max]
        if not fits:
            raise InputError(f"numbers from {low} to {high} are too large for the map")
        kind = fits[0]
    return {"type": kind, "data": base64.b64encode(values.astype(TYPES[kind]).tobytes()).decode()}


def map_data(clustered: "Clustered", depths: int) -> dict[str, Any]:
    """What the page draws: texts (words, tokens and next tokens by place, stretches of text) and points.

    `depths` is the largest k*. Raises `InputError` for labels without coordinates.
    """
    labels, table = clustered.labels, clustered.features.table
    if "x" not in labels or "y" not in labels:
        raise InputError("these clusters have no coordinates; cluster without --no-umap")
    contexts = Contexts(table)
    shown = {name: table[name].map(visible).to_numpy() for name in ("token", "target", "prediction")}
    words, codes = np.unique(np.concatenate(list(shown.values())), return_inverse=True)
    token, target, prediction = (part[contexts.order] for part in np.split(codes, 3))
    at = contexts.place[labels["row"].to_numpy()]
    return {
        "words": words.tolist(),
        "token": packed(token),
        "target": packed(target),
        "run": packed(contexts.run),
        "first": packed(contexts.first.astype(int)),
        "document": packed(table["document"].to_numpy()[contexts.order]),
        "position": packed(table["position"].to_numpy()[contexts.order]),
        "prediction": packed(prediction[at]),
        "at": packed(at),
        "x": packed(labels["x"].to_numpy(np.float32)),
        "y": packed(labels["y"].to_numpy(np.float32)),
        "cluster": packed(labels["cluster"].to_numpy()),
        "depth": packed(labels["k_star"].to_numpy().astype(int)),
        "depths": depths,
    }


def render(data: dict[str, Any], title: str, subtitle: str) -> str:
    """The HTML."""
    from plotly.offline import get_plotlyjs

    blob = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>"
        f"<header><div><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></div>"
        '<div class="switch" role="group" aria-label="Colour by"><button id="by-cluster">clusters</button>'
        '<button id="by-depth">depth k*</button></div></header>\n'
        '<main><div id="map"></div><div id="tip" hidden></div></main>\n<div id="key"></div>'
        "<noscript><p>The map needs JavaScript; profiles.md does not.</p></noscript>\n"
        f'<script type="application/json" id="data">{blob}</script>'
        f"<script>{get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )


def write_map(clustered: "Clustered", path: Path, *, title: str, subtitle: str, depths: int) -> None:
    """Write the page under a temporary name, then rename."""
    from streamscope.models.disk import write_text

    html = render(map_data(clustered, depths), title, subtitle)
    write_text(path, html)
