"""The arrows between the rooms go one way, and `datasets/` holds no Python."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORK = {"cli", "text", "instruments"}
"""What lies under streamscope/ itself; the other rooms lie at the top."""
ORDER = ["cli", "text", "models", "instruments", "probes", "interventions", "features", "viewer", "papers",
         "benchmarks", "notebooks"]  # fmt: skip
MAY = {
    "cli": set(),
    "text": {"cli"},
    "models": {"cli", "text"},
    "instruments": {"cli", "text", "models"},
    "probes": {*FRAMEWORK, "models"},
    "interventions": {*FRAMEWORK, "models", "probes"},
    "features": {*FRAMEWORK, "models", "probes"},
    "viewer": {*FRAMEWORK, "models", "probes", "interventions"},
    "papers": {*FRAMEWORK, "models", "probes", "interventions", "features", "viewer"},
    "benchmarks": {*FRAMEWORK, "models", "probes", "interventions", "features", "viewer", "papers"},
    "notebooks": {*FRAMEWORK, "models", "probes", "interventions", "features", "viewer", "papers"},
}


def folder(room: str) -> Path:
    return ROOT / "streamscope" / room if room in FRAMEWORK else ROOT / room


FILES = [path for room in ORDER for path in sorted(folder(room).rglob("*.py"))]
FILES += sorted((ROOT / "streamscope").glob("*.py"))


def room_of(module: str) -> str:
    """The room of streamscope.ROOM.x; the short names of a clone are for its user, not for its own files."""
    first, _, rest = module.partition(".")
    assert first not in set(ORDER) - FRAMEWORK, f"import streamscope.{module}"
    return rest.partition(".")[0] if first == "streamscope" else ""


@cache
def statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Every import of a file, whether it is in a function, and whether only types need it."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool, bool]] = []

    def visit(nodes: Iterable[ast.AST], inside: bool, typing: bool) -> None:
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append((node, inside, typing))
            elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                called = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                checks = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
                visit(ast.iter_child_nodes(node), inside or called, typing or checks)

    visit(ast.parse(source).body, False, False)
    return found


def imported_rooms(source: str) -> set[str]:
    found = set()
    for node, _, _ in statements(source):
        if isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names}
        else:
            assert node.level == 0, "relative imports hide the arrows"
            found.add(room_of(node.module or ""))
    return found & set(ORDER)


@pytest.mark.parametrize("room", [room for room in ORDER if room != "notebooks"])
def test_the_arrows_go_one_way(room: str) -> None:
    for path in sorted(folder(room).rglob("*.py")):
        strange = imported_rooms(path.read_text(encoding="utf-8")) - MAY[room] - {room}
        assert not strange, f"{path.relative_to(ROOT)} imports {', '.join(sorted(strange))}"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "streamscope" else ("streamscope", *parts))


MODULES = {module_of(path): path for path in FILES}


def imports_of(name: str, source: str, known: set[str]) -> set[str]:
    """The modules among `known` that a module imports, in functions too; not what only types need.

    A package may open its own body in a function (`Instrument.body`).
    """
    top, inside = imports_by_place(source, known)
    return ((top | {module for module in inside if not module.startswith(f"{name}.")}) & known) - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, [] where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_no_module_imports_itself_in_a_circle() -> None:
    """Neither at the top of a file nor in its functions."""
    graph = {name: imports_of(name, path.read_text(encoding="utf-8"), set(MODULES)) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 500
    assert not circle(graph)


def test_circles_and_lazy_imports_of_heavy_modules_are_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    source = "import x.a\ndef f():\n    from x import b\nif TYPE_CHECKING:\n    import x.c\n"
    assert imports_of("y", source, {"x.a", "x.b", "x.c"}) == {"x.a", "x.b"}
    assert imports_of("x", source, {"x.a", "x.b", "x.c"}) == {"x.a"}, "the door of a package"
    assert imports_by_place(source, {"x.a", "x.b", "x.c"}) == ({"x.a"}, {"x.b"})
    tops = {"x.a": {"x.b"}, "x.b": {"torch.nn"}, "x.c": {"x.d"}, "x.d": {"x.c", "json"}, "x.e": {"pandas"}}
    assert [is_light(name, tops, {name}) for name in ("x.a", "x.c", "x.e.f")] == [False, True, False]


HEAVY = {"torch", "pandas", "sklearn", "scipy", "transformer_lens", "pyarrow", "plotly", "onnx"}
"""What a command whose `--help` answers at once must not import."""
BESIDE = {
    "benchmarks/ablation_sweep/given_run.py": {"streamscope.models.interop.huggingface.bridged"},  # of the peer
    "features/cluster/measure.py": {"umap"},  # an extra, slow to compile
    "models/checkpoint.py": {  # of hf:NAME and GGUF files only; TransformerLens' bridges take two seconds
        f"streamscope.models.interop.huggingface.{name}" for name in ("bridged", "convert", "families")
    },
    "models/dictionaries.py": {"streamscope.models.interop.huggingface.convert"},  # of hf: names only
    "models/interop/huggingface/convert.py": {"huggingface_hub", "huggingface_hub.errors"},  # an extra
    "models/interop/huggingface/generation.py": {"streamscope.models.interop.huggingface.gguf"},  # of GGUF files only
    "models/interop/huggingface/gguf.py": {"gguf"},  # an extra
    "models/interop/transformer_lens_api.py": {  # TransformerLens, 2 seconds
        "streamscope.models.interop.activation_cache", "transformer_lens.model_bridge.composition_scores",
    },
    "models/training/parallel.py": {  # of several GPUs only
        "torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.distributed.tensor",
    },
    "models/training/run.py": {"torch.utils.tensorboard"},  # an extra
    "papers/demo/report.py": {"streamscope.viewer.page"},  # an extra
    "papers/drawing.py": {"matplotlib"},  # an extra
    "probes/head_groups/measure.py": {"scipy.optimize"},  # to match heads with roles; 0.4 seconds
    "streamscope/instruments/open_data.py": {  # of texts and labels only: the stories read their lexicons
        "streamscope.instruments.prompts.labelled", "streamscope.text.stories",
    },
    "streamscope/instruments/stats/estimators.py": {"scipy"},  # of the bootstrap; 1 second
    "streamscope/instruments/stats/held_out.py": {"scipy.sparse", "scipy.sparse.csgraph"},
    "streamscope/instruments/result.py": {
        "IPython.display",  # which only a notebook has
        "streamscope.instruments.figures.drawing",  # plotly, for a table of no use
    },
}  # fmt: skip
"""What other files import in functions, and why."""


def imports_by_place(source: str, known: Iterable[str] = tuple(MODULES)) -> tuple[set[str], set[str]]:
    """(modules imported at the top of a file, modules imported in its functions); not what only types need."""
    found: tuple[set[str], set[str]] = set(), set()
    for node, inside, typing in statements(source):
        if not typing and isinstance(node, ast.Import):
            found[inside].update(alias.name for alias in node.names)
        elif not typing:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(known)
            found[inside].update(inner or {str(node.module)})
    return found


def is_light(name: str, tops: dict[str, set[str]], seen: set[str]) -> bool:
    """Does importing a module, and the packages it lies in, import nothing heavy?"""
    if name.partition(".")[0] in HEAVY:
        return False
    parents = {name.rsplit(".", i)[0] for i in range(1, name.count(".") + 1)}
    others = (tops.get(name, set()) | parents) - seen
    seen |= others
    return all(is_light(other, tops, seen) for other in sorted(others))


def test_lazy_imports_live_in_one_layer() -> None:
    """What imports in functions is the light layer, that of commands; elsewhere imports stand at the top, but for those
    that are named with their reason."""
    places = {name: imports_by_place(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    tops = {name: top for name, (top, _) in places.items()}
    light = {name for name in MODULES if is_light(name, tops, {name})}
    assert {"streamscope.instruments.command", "streamscope.models.train"} <= light
    assert not {"streamscope.models.transformer", "streamscope.instruments.result"} & light
    lazy = {name: inside for name, (_, inside) in places.items() if inside and name not in light}
    assert {str(MODULES[name].relative_to(ROOT)): inside for name, inside in lazy.items()} == BESIDE


def test_datasets_holds_no_python() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))
    import datasets

    assert callable(datasets.load_dataset)


def names_in(code: CodeType) -> set[str]:
    """Functions, variables, arguments and attributes of compiled code."""
    inner = (names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return {code.co_name, *code.co_names, *code.co_varnames, *code.co_cellvars}.union(*inner)


def test_names_are_nouns_or_verbs() -> None:
    """None of those that once stood for a text, a reason or a control, which is what they are called now."""
    assert names_in(compile("def f(said):\n    x = said.told\n", "x", "exec")) >= {"f", "said", "told", "x"}
    empty = {"told", "said", "beside", "settled", "alike", "whereof"}
    strange = {str(path): empty & names_in(compile(path.read_bytes(), path, "exec")) for path in FILES}
    assert not {path: names for path, names in strange.items() if names}
