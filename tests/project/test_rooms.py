"""The arrows between the rooms go one way, and `datasets/` holds no Python."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = ["models", "probes", "interventions", "features", "papers", "benchmarks", "notebooks"]
MAY = {
    "models": set(),
    "probes": {"models"},
    "interventions": {"models", "probes"},
    "features": {"models", "probes"},
    "papers": {"models", "probes", "interventions", "features"},
    "benchmarks": {"models", "probes", "interventions", "features", "papers"},
    "notebooks": {"models", "probes", "interventions", "features", "papers"},
}
FILES = [path for room in ORDER for path in sorted((ROOT / room).rglob("*.py"))]


def room_of(module: str) -> str:
    """The room of streamscope.ROOM.x; the short names of a clone are for its user, not for its own files."""
    first, _, rest = module.partition(".")
    assert first not in ORDER, f"import streamscope.{module}"
    return rest.partition(".")[0] if first == "streamscope" else ""


def imported_rooms(source: str) -> set[str]:
    """Rooms that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            found.add(room_of(node.module or ""))
    return found & set(ORDER)


def test_there_are_files() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("room", [room for room in ORDER if room != "notebooks"])
def test_the_arrows_go_one_way(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        strange = imported_rooms(path.read_text(encoding="utf-8")) - MAY[room] - {room}
        assert not strange, f"{path.relative_to(ROOT)} imports {', '.join(sorted(strange))}"


def test_a_wrong_arrow_is_seen() -> None:
    assert imported_rooms("def f():\n    from streamscope.papers import lfa") == {"papers"}
    with pytest.raises(AssertionError, match="import streamscope"):
        imported_rooms("from models import load")


# ---- no circles --------------------------------------------------------------------------------

MODULES = {
    f"streamscope.{'.'.join(parts[:-1] if parts[-1] == '__init__' else parts)}": path
    for path in FILES
    for parts in [path.relative_to(ROOT).with_suffix("").parts]
}
FACES = {"streamscope.probes.contract", "streamscope.probes.figures", "streamscope.probes.command"}
"""What is light and opens the bodies when it is called: the contract, declared figures, the generated command."""


def imports_of(name: str, source: str, known: set[str]) -> set[str]:
    """The modules among `known` that a module imports, in functions too; not what only types need."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                inner = {f"{child.module}.{alias.name}" for alias in child.names}
                found.update((inner & known) or {str(child.module)})
            visit(child)

    visit(ast.parse(source))
    return (found & known) - {name}


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
    """Neither at the top of a file nor in its functions; only the faces may open what imports them."""
    graph = {name: imports_of(name, path.read_text(encoding="utf-8"), set(MODULES)) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 500
    assert not circle({name: set() if name in FACES else others for name, others in graph.items()})


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    source = "import x.a\ndef f():\n    from x import b\nif TYPE_CHECKING:\n    import x.c\n"
    assert imports_of("x", source, {"x.a", "x.b", "x.c"}) == {"x.a", "x.b"}


def test_datasets_holds_no_python() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))
    import datasets

    assert callable(datasets.load_dataset)
