"""The arrows between the rooms go one way, and `datasets/` holds no Python."""

import ast
import graphlib
from collections.abc import Iterable
from pathlib import Path

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


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "streamscope" else ("streamscope", *parts))


MODULES = {module_of(path): path for path in FILES}


def imported(source: str) -> list[tuple[str, bool, bool]]:
    """The modules that a file imports, whether in a function, and whether only for types."""
    found: list[tuple[str, bool, bool]] = []

    def visit(nodes: Iterable[ast.AST], inside: bool, typing: bool) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                found.extend((alias.name, inside, typing) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, "relative imports hide the arrows"
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
                found.extend((name, inside, typing) for name in sorted(inner) or [str(node.module)])
            elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                called = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                checks = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
                visit(ast.iter_child_nodes(node), inside or called, typing or checks)

    visit(ast.parse(source).body, False, False)
    return found


IMPORTS = {name: imported(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


@pytest.mark.parametrize("room", [room for room in ORDER if room != "notebooks"])
def test_the_arrows_go_one_way(room: str) -> None:
    for path in sorted(folder(room).rglob("*.py")):
        rooms = {room_of(module) for module, _, _ in IMPORTS[module_of(path)]}
        strange = rooms & set(ORDER) - MAY[room] - {room}
        assert not strange, f"{path.relative_to(ROOT)} imports {', '.join(sorted(strange))}"


def test_no_module_imports_itself_in_a_circle() -> None:
    """Neither at the top of a file nor in its functions. A package may open its own body in a function."""
    graph = {}
    for name, imports in IMPORTS.items():
        needed = [(module, inside) for module, inside, typing in imports if not typing]
        others = {module for module, inside in needed if not (inside and module.startswith(f"{name}."))}
        graph[name] = others & set(MODULES) - {name}
    assert sum(map(len, graph.values())) > 500
    graphlib.TopologicalSorter(graph).prepare()  # raises for a circle


HEAVY = {"torch", "pandas", "sklearn", "scipy", "transformer_lens", "pyarrow", "plotly", "onnx"}
"""What a command whose `--help` answers at once must not import."""
BESIDE = {
    "benchmarks/ablation_sweep/given_run.py": {"streamscope.models.interop.huggingface.bridged"},  # of the peer
    "features/cluster/measure.py": {"umap"},  # an extra, slow to compile
    "features/extract/measure.py": {"streamscope.probes.stream_states"},  # of --raw alone
    "interventions/ablate/measure.py": {  # of --screen, and of heads ranked by a probe
        "streamscope.interventions.patch.activations", "streamscope.probes.pds", "streamscope.probes.roles",
    },
    "interventions/edits.py": {"streamscope.probes.stream_states"},  # of directions only
    "interventions/observe.py": {f"streamscope.probes.{name}" for name in ("coherence", "roles", "sps")},  # of prompts
    "models/checkpoint.py": {  # of hf:NAME and GGUF files only; TransformerLens' bridges take two seconds
        f"streamscope.models.interop.huggingface.{name}" for name in ("bridged", "convert", "families", "generation")
    },
    "models/decoder.py": {f"streamscope.models.layers.{name}" for name in ("hdpl", "hyper_mixing")},  # of few models
    "models/dictionaries.py": {"streamscope.models.interop.huggingface.convert"},  # of hf: names only
    "models/interop/huggingface/convert.py": {"huggingface_hub", "huggingface_hub.errors"},  # an extra
    "models/interop/huggingface/generation.py": {"streamscope.models.interop.huggingface.gguf"},  # of GGUF files only
    "models/interop/huggingface/gguf.py": {"gguf"},  # an extra
    "models/interop/transformer_lens_api.py": {  # TransformerLens, 2 seconds
        "streamscope.models.interop.activation_cache", "transformer_lens.model_bridge.composition_scores",
    },
    "models/layers/attention.py": {"streamscope.models.layers.gate"},
    "models/layers/residual.py": {"streamscope.models.layers.canon"},  # of few models
    "models/training/parallel.py": {  # of several GPUs only
        "torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.distributed.tensor",
    },
    "models/training/run.py": {"torch.utils.tensorboard"},  # an extra
    "papers/demo/report.py": {"streamscope.viewer.page"},  # an extra
    "papers/drawing.py": {"matplotlib"},  # an extra
    "models/transformer.py": {"streamscope.models.layers.hdpl"},  # of few models
    "probes/head_groups/measure.py": {"scipy.optimize"},  # to match heads with roles; 0.4 seconds
    "streamscope/instruments/open_data.py": {  # of other kinds than documents
        "streamscope.instruments.open_texts", "streamscope.instruments.prompts.alignment",
        "streamscope.instruments.prompts.tasks",
    },
    "streamscope/instruments/stats/estimators.py": {"scipy"},  # of the bootstrap; 1 second
    "streamscope/instruments/stats/held_out.py": {"scipy.sparse", "scipy.sparse.csgraph"},
    "streamscope/instruments/result.py": {
        "IPython.display",  # which only a notebook has
        "streamscope.instruments.figures.drawing",  # plotly, for a table of no use
    },
    "streamscope/text/tokenizer.py": {"streamscope.text.chat"},  # of conversations only
}  # fmt: skip
"""What other files import in functions, and why."""


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
    tops = {name: {m for m, inside, typing in imports if not inside | typing} for name, imports in IMPORTS.items()}
    light = {name for name in MODULES if is_light(name, tops, {name})}
    assert {"streamscope.instruments.command", "streamscope.models.train"} <= light
    assert not {"streamscope.models.transformer", "streamscope.instruments.result"} & light
    lazy = {name: {m for m, inside, typing in imports if inside > typing} for name, imports in IMPORTS.items()}
    found = {str(MODULES[name].relative_to(ROOT)): lazy[name] for name in MODULES if lazy[name] and name not in light}
    assert found == BESIDE


def test_datasets_holds_no_python() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))


def test_names_are_nouns_or_verbs() -> None:
    """None of those that once stood for a text, a reason or a control, which is what they are called now."""
    empty = {"told", "said", "beside", "settled", "alike", "whereof"}
    for path in FILES:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {str(getattr(node, field, "")) for node in nodes for field in ("id", "arg", "attr", "name")}
        assert not names & empty, path
