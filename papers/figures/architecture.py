"""A drawing of an architecture, from the configuration of its preset at the size of the paper."""

from collections.abc import Callable, Mapping
from typing import Any

from streamscope.models.config import DualStream, FrozenToken, Projection
from streamscope.models.config.presets import preset
from streamscope.papers.figures.style import Style, note, single

BOX = (5.2, 10.0)
"""Left and right ends of the boxes of attention and FFN."""
NAMES = {"x": "residual stream x", "x_t": "token stream x_t", "x_e": "context stream x_e"}


def architecture(name: str) -> Callable[[Mapping[str, Any], Style], Any]:
    """Draw one layer of a preset: its streams upwards, what attention and FFN read and to which stream they write."""

    def draw(tables: Mapping[str, Any], style: Style) -> Any:
        config = preset(name, "paper")
        residual, attention, mlp = config.residual, config.attention, config.mlp
        dual, canvas = isinstance(residual, DualStream), single(style, 0.85)
        streams = {"x_t": 1.2, "x_e": 3.0} if dual else {"x": 2.2}
        colours = {stream: style.colour(i) for i, stream in enumerate(streams)}
        values = "x_t" if getattr(residual, "values", "") == "token" else " + ".join(streams)
        read = " + ".join(streams)
        blocks = {
            3.4: [f"attention, {config.n_heads} heads, {config.positions.kind}", f"reads {read}, V reads {values}",
                  kinds({"Q": attention.q, "K": attention.k, "V": attention.v, "O": attention.o})],
            7.2: [f"FFN, {mlp.activation}", f"reads {read}",
                  kinds({"up": mlp.up, "down": mlp.down} | ({"gate": mlp.gate} if mlp.gate else {}))],
        }  # fmt: skip
        for stream, x in streams.items():
            line = {"color": colours[stream], "width": 2.5}
            canvas.add_scatter(x=[x, x], y=[1, 10.2], mode="lines", line=line, name=NAMES[stream])
            arrow(canvas, (x, 10.2), (x, 10.8), colours[stream])
        for y, lines in blocks.items():
            canvas.add_shape(
                type="rect", x0=BOX[0], x1=BOX[1], y0=y - 1, y1=y + 1, line={"color": "#333333", "width": 1},
                fillcolor="rgba(0,0,0,0)",
            )  # fmt: skip
            canvas.add_annotation(x=sum(BOX) / 2, y=y, text="<br>".join(lines), showarrow=False)
            for stream, x in streams.items():
                arrow(canvas, (x, y - 0.6), (BOX[0], y - 0.6), colours[stream])
            first = y < 5 and dual and not isinstance(residual, FrozenToken)
            to = list(streams)[0 if first else -1]
            arrow(canvas, (BOX[0], y + 0.6), (streams[to], y + 0.6), "#333333")
            canvas.add_scatter(x=[streams[to]], y=[y + 0.6], text="⊕", mode="text", showlegend=False, hoverinfo="skip",
                               textfont={"size": 15})  # fmt: skip
        start = streams["x_t"] if dual else streams["x"]
        canvas.add_annotation(x=start, y=0.4, text=f"embedding, width {config.d_model:,}", showarrow=False)
        canvas.add_annotation(x=sum(streams.values()) / len(streams), y=11.3, showarrow=False,
                              text=f"{read} → norm → vocabulary")  # fmt: skip
        note(canvas, f"{name}: one of {config.n_layers} layers; a norm stands before each read")
        canvas.update_xaxes(visible=False, range=[-0.6, 10.4]).update_yaxes(visible=False, range=[-0.1, 11.8])
        return canvas.update_layout(margin={"l": 8, "r": 8})

    return draw


def kinds(projections: Mapping[str, Projection]) -> str:
    """Projections by their kind: Q, K dense; V, O independent."""
    of: dict[str, list[str]] = {}
    for name, one in projections.items():
        of.setdefault(one.kind, []).append(name)
    return "; ".join(f"{', '.join(names)} {kind}" for kind, names in of.items())


def arrow(canvas: Any, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """An arrow between two points of the axes."""
    canvas.add_annotation(
        x=end[0], y=end[1], ax=start[0], ay=start[1], xref="x", yref="y", axref="x", ayref="y", text="", showarrow=True,
        arrowhead=2, arrowsize=1, arrowwidth=1.2, arrowcolor=colour,
    )  # fmt: skip
