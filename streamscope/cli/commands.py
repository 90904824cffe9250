"""The commands of all rooms, found in their source."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamscope.aliases import folder_of
from streamscope.cli.errors import InputError, unknown

ROOMS = ("models", "text", "instruments", "probes", "interventions", "features", "viewer", "benchmarks")
MAIN = re.compile(r"^(main = |def main\()", re.MULTILINE)  # what makes a package a command (`aliases`)

SYNONYMS = {
    "induction": "heads", "previous-token": "heads", "lens": "logit_lens lenses",
    "tuned-lens": "lenses", "jacobian": "lenses",
    "attention": "picture heads", "attn": "picture heads", "pattern": "picture heads", "entropy": "specialization",
    "dla": "direct_logit_attribution", "attribution": "direct_logit_attribution circuits",
    "sae": "dictionaries dictionary_quality", "transcoder": "dictionaries", "neurons": "latents", "probe": "linear",
    "probing": "linear", "classifier": "linear", "patching": "patch", "tracing": "patch", "causal": "patch interchange",
    "das": "interchange", "knockout": "ablate", "zero": "ablate", "mean-ablation": "ablate",
    "prune": "ablate circuits",
    "eap": "circuits", "acdc": "circuits", "edges": "circuits", "path-patching": "circuits", "refusal": "abliterate",
    "steering": "steer", "vector": "directions steer", "temperature": "amplify", "coref": "coreference",
    "copying": "heads", "backup": "hydra", "loss": "logit_lens ablate", "perplexity": "logit_lens ablate",
    "finetune": "sft", "lora": "sft", "pretrain": "train", "sweep": "grid", "info": "describe", "list": "runs",
    "summary": "describe", "hooks": "describe", "convert": "huggingface", "hf": "huggingface", "gguf": "huggingface",
    "show": "view", "serve": "view", "ui": "view", "page": "view", "chat": "view", "generate": "view",
    "benchmark": "training real_model", "data": "stories prompts", "suites": "prompts", "umap": "profile cluster",
}  # fmt: skip
"""Words of the field, and the commands that do it."""


def unknown_command(word: str, modules: Mapping[str, str]) -> InputError:
    """The `InputError` for a word that is no command: by synonyms, by what commands say of themselves, by letters."""
    plain = word.lower().replace("_", "-")
    matches = next((names for synonym, names in SYNONYMS.items() if plain in (synonym, f"{synonym}s")), "").split()
    matches = matches or [name for name in modules if plain in name.split("_")]
    if not matches and len(plain) > 3:
        words_of = {name: re.findall(r"[\w-]+", first_line(module).lower()) for name, module in modules.items()}
        matches = [name for name, words in words_of.items() if plain in words]
    if not matches:
        return unknown("command", word, [*modules, "completion"])
    offer = "; ".join(f"{name} ({first_line(modules[name]).rstrip('.')})" for name in matches[:3])
    return InputError(f"unknown command {word!r}: {'try' if matches[1:] else 'it is'} {offer}")


def commands() -> dict[str, str]:
    """Command -> module, from the source of the rooms: packages with a `main`, and files that end in `command(main)`.

    A name that two rooms have is listed with its room, as `benchmarks.circuits`, and so is one that another room is
    called, as `benchmarks.features`. Where only one of two is no benchmark, that one keeps the short name. Papers are
    commands of a clone: they are typed as `python -m papers.demo`.
    """
    modules_of: dict[str, list[str]] = {}
    for room in ROOMS:
        folder = folder_of(room)
        for file in sorted(folder.rglob("*.py")):
            source, is_package = file.read_text(encoding="utf-8"), file.name == "__init__.py"
            if not (MAIN.search(source) if is_package else "\n    command(main)" in source):
                continue
            parts = file.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if is_package or parts[-1] == "__main__" else parts
            name = ".".join(parts[1:] if parts[:1] == ("interop",) else parts) or room
            modules_of.setdefault(name, []).append(".".join(("streamscope", room, *parts)))
    module_of: dict[str, str] = {}
    for name, modules in modules_of.items():
        candidates = modules if len(modules) == 1 else [m for m in modules if m.split(".")[1] != "benchmarks"]
        single = f"streamscope.{name}" if name in ROOMS else candidates[0] if len(candidates) == 1 else None
        module_of |= {name if m == single else m.removeprefix("streamscope."): m for m in modules}
    return dict(sorted(module_of.items()))


def whole_name(word: str, modules: dict[str, str]) -> str:
    """The command that ROOM.COMMAND means, as in `features.extract`; any other word unchanged."""
    return next((name for name, module in modules.items() if module == f"streamscope.{word}"), word)


def entry(module: str) -> Callable[[Sequence[str]], None]:
    """`main` of a command: of its module, or of the __main__ of a package that keeps it there."""
    imported: Any = import_module(module)
    return (imported if hasattr(imported, "main") else import_module(f"{module}.__main__")).main


def first_line(module: str) -> str:
    """The first line of a command's documentation, without importing it: of the module that has its `main`."""
    path = Path(str(getattr(find_spec(module), "origin", "")))
    inner = path.with_name("__main__.py")
    if path.name == "__init__.py" and inner.is_file() and "\ndef main(" in inner.read_text(encoding="utf-8"):
        path = inner
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0] if doc else ""
