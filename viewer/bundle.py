"""The page as one file: modules, style sheet and models packed into `page.html.j2`, without a build step.

The modules of `static/` are joined in the order of their imports, each in a function of its own. A page has one inline
script (and ONNX Runtime's, where a model runs in the page), and its Content-Security-Policy names their hashes: nothing
else runs, and nothing is fetched except from the server that sent the page.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
STATIC = HERE / "static"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
DEFAULT = re.compile(r"^export default ([^;]*);\n", re.MULTILINE)
ORT_EXPORTS = re.compile(r"export\{([^{}]*)\};?\s*(?://# sourceMappingURL=\S*\s*)?$")


@cache
def script(entry: str = "page.js") -> str:
    """All modules that `entry` imports, and it, as the text of one ES module; a default export stays one."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = (STATIC / f"{name}.js").read_text()
        for _, dependency in IMPORT.findall(text):
            if dependency not in parts:
                add(dependency)
        parts[name] = _module(name, text)

    add(entry.removesuffix(".js"))
    return "".join(parts.values())


def _module(name: str, text: str) -> str:
    """A module as a constant that holds what it exports."""
    body = IMPORT.sub(lambda match: f"const {{{match[1]}}} = module_{match[2]};\n", text)
    exports = EXPORT.findall(body)
    defaults = DEFAULT.findall(body)
    body = DEFAULT.sub("", EXPORT.sub("", body))
    exported = ", ".join([*exports, *(f"default: {value}" for value in defaults)])
    module_text = f"const module_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"
    return module_text + (f"export default module_{name}.default;\n" if defaults else "")


@cache
def style() -> str:
    return (STATIC / "page.css").read_text()


def runtime_script(source: str) -> str:
    """ONNX Runtime's `ort.wasm.bundle.min.mjs` as an inline script that leaves its exports in `globalThis.ort`."""
    match = ORT_EXPORTS.search(source)
    assert match is not None, "ort.wasm.bundle.min.mjs does not end with its exports"
    pairs = [item.strip().split(" as ") for item in match[1].split(",")]
    exports = ", ".join(f"{pair[-1]}: {pair[0]}" for pair in pairs if pair[-1] != "default")
    return f"{source[: match.start()]};globalThis.ort = {{ {exports} }};\n"


def page(data: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None, runtime: str | None = None) -> str:
    """The whole page.

    Args:
        data: what `static/view.js` reads: host, models, suites, first state.
        blobs: bytes by id, gzipped here: "wasm" and the graphs that models name.
        runtime: the text of `ort.wasm.bundle.min.mjs`, for a page in which the models run.
    """
    scripts = [*([runtime_script(runtime)] if runtime else []), script()]
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        title=f"{data['models'][0]['name']} · streamscope",
        notices=(HERE / "THIRD_PARTY.txt").read_text() if runtime else "",
        scripts=scripts,
        style=style(),
        script_hashes=[_hash(text) for text in scripts],
        style_hash=_hash(style()),
        connect="'self'" if data["host"] == "server" else "'none'",
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        blobs={name: base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode() for name, raw in (blobs or {}).items()},
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
