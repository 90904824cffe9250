"""Writes the source of our forward pass as files that only need torch and transformers.

The modules of streamscope that `modeling_streamscope` imports, directly or indirectly, become files of one flat folder.
Only their imports change, so a name is imported from the module that defines it. Hook points become identities.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOTS = {
    "streamscope.models.interop.export.configuration_streamscope": "configuration_streamscope",
    "streamscope.models.interop.export.modeling_streamscope": "modeling_streamscope",
}
OURS, HOOK_POINT = "streamscope.", "streamscope.models.interop.transformer_lens_core"
STAND_INS = {
    HOOK_POINT: '''"""A hook point: an identity."""

from torch import nn


class HookPoint(nn.Identity):
    """Forward hooks of torch can read and replace the activation here."""

    name = "this point"
''',
    "streamscope.models.layers.noise": '''"""Random numbers inside a forward pass."""

from torch import randn_like as noise  # noqa: F401
from torch.nn import Dropout  # noqa: F401
from torch.nn.functional import dropout  # noqa: F401
''',
}
"""Modules with a replacement."""
DROPPED = "jaxtyping"
"""Module of shape annotations, which are not evaluated."""


def file_of(module: str) -> str:
    """The name of a module's file without suffix."""
    if module == HOOK_POINT:
        return "streamscope_hook_point"
    short = module.removeprefix("streamscope.").removeprefix("models.").replace(".", "_")
    return ROOTS.get(module) or f"streamscope_{short}"


@cache
def _origin(module: str) -> Path | None:
    """The file of a module; None if there is no such module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def _tree(module: str) -> ast.Module:
    path = _origin(module)
    assert path is not None, module
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(module: str) -> list[ast.ImportFrom]:
    """The import statements of a module that must be rewritten. Raises for a form that cannot be."""
    imports = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import) and any(one.name.startswith((OURS, *STAND_INS)) for one in node.names):
            raise NotImplementedError(f"{module} line {node.lineno}: import names from the module instead")
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.startswith(OURS) or node.module in STAND_INS or node.module == DROPPED:
                imports.append(node)
            elif node.module.partition(".")[0] in ("transformer_lens", "nnsight"):
                raise NotImplementedError(f"{module} line {node.lineno}: {node.module} is missing without streamscope")
    return imports


def _rewrite(node: ast.ImportFrom) -> tuple[list[str], list[str]]:
    """(lines that replace an import, modules that they need)."""
    lines, named = [], dict[str, list[str]]()
    module = node.module or ""
    for one in node.names if module != DROPPED else ():
        whole, alias = f"{module}.{one.name}", f" as {one.asname}" if one.asname else ""
        if module not in STAND_INS and _origin(whole) is not None:
            lines.append(f"from . import {file_of(whole)} as {one.asname or one.name}")
            named.setdefault(whole, []).append("__doc__ as _")  # transformers copies files imported in this form
        else:
            named.setdefault(module, []).append(f"{one.name}{alias}")
    lines += [f"from .{file_of(home)} import {', '.join(names)}" for home, names in named.items()]
    return lines, list(named)


def _source(module: str) -> tuple[str, list[str]]:
    """(the text of a module's file, modules that it needs)."""
    if module in STAND_INS:
        return STAND_INS[module], []
    path = _origin(module)
    assert path is not None
    lines = path.read_text(encoding="utf-8").splitlines()
    needed: list[str] = []
    shapes = False
    for node in sorted(_imports(module), key=lambda node: -node.lineno):
        new, more = _rewrite(node)
        needed += more
        shapes |= node.module == DROPPED
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in new]
    if shapes:
        start = _tree(module).body[0].end_lineno or 0  # after the docstring
        lines[start:start] = ["", "from __future__ import annotations"]
    return "\n".join(lines) + "\n", needed


@cache
def files() -> dict[str, str]:
    """{file name: text} of all source files of an exported folder."""
    texts: dict[str, str] = {}
    waiting = list(ROOTS)
    while waiting:
        module = waiting.pop()
        name = f"{file_of(module)}.py"
        if name not in texts:
            texts[name], needed = _source(module)
            waiting += needed
    return dict(sorted(texts.items()))
