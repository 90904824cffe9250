"""What the documents tell a reader to run is run: commands of the README, at a size that takes seconds."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from streamscope.__main__ import commands, whole_name
from streamscope.__main__ import main as streamscope
from streamscope.papers.__main__ import main as papers
from streamscope.text.stories import documents
from tests.tiny import WORDS, corpus_text, with_options

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [f"docs/guides/{name}.md" for name in ("i_want_to", "training", "your_text", "measuring", "streams")]
SLOW = ("docs/guides/measuring.md", "docs/guides/streams.md")
PAGES = ["README.md", *GUIDES]  # in the order of a reader
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
COMMANDS = [
    (name, line)
    for name, text in TEXTS.items()
    for kind, block in re.findall(
        r"```(\w*)\n(.*?)```", re.sub(r": `(python -m [^`]+)`", r"\n```\n\1\n```\n", text), re.DOTALL
    )
    if kind != "python"
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith(("python -m ", "streamscope "))
]
"""In blocks, and behind a colon."""
NAMES = commands()
END = "the end of a page"
SMALLER = {  # the same commands, so small that they end in seconds
    "models.train": "--steps=2 --max-documents=200 --sample-every=0 --set d_vocab=600 --batch-size=4",
    "models.sft": "--steps 1 --batch-size 2",
    "probes.heads": "--sequences 4 --length 8 --max-documents 2",
    "probes.phenomena": "--only loss repeats --sequences 4 --max-documents 4",
    "interventions.ablate": "--max-documents 2 --draws 1",
    "interventions.latents": "--max-documents 2",
    "interventions.mixing": "--max-documents 2 --draws 1 --where everywhere L2.attn",
    "probes.contraction": "--max-documents 2",
    "probes.dual_path": "--max-documents 2 --draws 1",
    "interventions.streams": "--max-documents 4 --draws 1",
    "interventions.amplify": "--max-documents 2 --alpha 8 --sample-tokens 2",
    "interventions.interchange": "--pairs 20 --basis whole means --n 400",
    "interventions.patch": "--pairs 1 --hooks z --direction denoise --senders top1:recovery",
    "interventions.steer": "--max-documents 2 --draws 1 --sample-tokens 4",
    "interventions.abliterate": "--max-documents 4",
    "probes.directions": "--draws 2",
    "features.dictionaries": "--data stories:1:60 --max-tokens 3000 --width 32 --batch 128",
    "features.dictionary_quality": "--max-documents 8",
    "probes.lenses": "--max-documents 8 --kinds logit tuned --steps 2",
    "interventions.ablation_effects": "--draws 1 --tasks capitalization-8 gender-16",
    "interventions.steer_heads": "--draws 0 --tasks capitalization-8 --max-documents 4",
    "interventions.hydra": "--tasks capitalization-8",
    "probes.head_groups": "--n 60",
    "features.extract": "--max-tokens 2500",
    "features.cluster": "--no-umap",
    "features.predict_effects": "--shuffles 1 --resamples 100 --folds 3",
    "interventions.token_effects": "--max-tokens 2500",
    "interventions.circuits": "--pairs 8 --method eap --draws 1",
    "interventions.suppress": "--draws 4 --k 1 --gates 0 --measures sps",
}


def typed(line: str) -> list[str]:
    """What follows `streamscope` in a command of a page, at a size that takes seconds."""
    words = shlex.split(line, comments=True)
    words = words[1:] if words[0] == "streamscope" else words[2:]
    module = NAMES.get(whole_name(words[0], NAMES), "").removeprefix("streamscope.")
    smaller = [] if "--clean" in words else SMALLER.get(module, "").split()  # a pair of one's own is small
    if "--measures" in words and "loss" not in words:  # no documents are read then
        smaller = smaller[: smaller.index("--max-documents")] if "--max-documents" in smaller else smaller
    if find_spec("kaleido") is None and words[0] != "papers":  # its figures are matplotlib's
        words = [re.sub(r"\.(pdf|png|svg)$", ".html", word) for word in words]
    return with_options(words, smaller)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A reader's folder with a text, pairs and an instrument, and the commands that were run there, in their order."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "book.txt").write_text("\n\n".join(documents(0, 40)))
    (folder / "chapters").mkdir()
    for i in range(2):
        (folder / "chapters" / f"{i}.txt").write_text(corpus_text(4, i).replace("<|endoftext|>", ""))
    pairs = [{"prompt": f"Where is the {word}?", "response": f"The {word} is here."} for word in WORDS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    guide = (ROOT / "docs" / "guides" / "new_instrument.md").read_text(encoding="utf-8")
    (folder / "previous.py").write_text(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0])
    return folder, []


@pytest.mark.parametrize(
    "at",
    [pytest.param(i, marks=[pytest.mark.slow] if page in SLOW else []) for i, (page, _) in enumerate(COMMANDS)],
    ids=lambda i: f"{Path(COMMANDS[i][0]).stem}-{i}-{typed(COMMANDS[i][1])[0]}",
)
def test_command(at: int, reader: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, ran = reader
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["streamscope"])
    served: list[bool] = []

    async def no_loop(server: Any) -> None:
        """In place of the loop until Ctrl-C: the live page's server starts and ends."""
        served.append(server.started)

    monkeypatch.setattr("uvicorn.Server.main_loop", no_loop)
    for i in range(len(ran), at + 1):
        words = typed(COMMANDS[i][1])
        if words[0] == "papers":  # a command of the clone
            papers(words[1:])
        else:
            streamscope(words)
        assert served == [True] * (words[0] in ("view", "viewer.view"))
        served.clear()
        ran.append(i)


@pytest.mark.parametrize(
    "pages", [("README.md", GUIDES[0]), pytest.param(("docs/guides/measuring.md",), marks=pytest.mark.slow)], ids=str
)
def test_code_runs(pages: tuple[str, ...], reader: tuple[Path, list[int]]) -> None:
    """The Python of pages, each by itself, in one process that has none of the tests' type checks, as a reader's.

    What a page reads was written by its command `--out heads.parquet`.
    """
    folder, ran = reader
    codes = {page: "\n".join(re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL)) for page in pages}
    for i, (page, line) in enumerate(COMMANDS):
        if i not in ran and "--out heads.parquet" in line and 'load("heads.parquet")' in codes.get(page, ""):
            with contextlib.chdir(folder):
                streamscope(typed(line))
    program = "\n".join(f"exec(compile({codes[page]!r}, {page!r}, 'exec'), {{}}); print({END!r})" for page in pages)
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=own, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(text.count("\n") > 4 for text in done.stdout.split(f"{END}\n")[:-1])


def test_links_and_files_exist() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "results").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert "://" in target or (document.parent / target).exists(), f"{document.name} links to {target}"
    for page in [*(ROOT / "docs" / "guides").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]:
        assert not re.findall(r"\]\(\.\./(?:\.\./|results)", page.read_text()), f"{page.name} links out of docs"
