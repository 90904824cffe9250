"""The guides' code is run, and the instrument that one of them writes is measured where the answer is known."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope import Documents, Result, load
from streamscope.__main__ import main as streamscope
from streamscope.instruments.open_data import open_data
from streamscope.instruments.user_instrument import instrument_in, main
from streamscope.models.hooks import capture, edit
from tests.probes.planted import HEADS, tokenizer
from tests.probes.planted import model as planted
from tests.tiny import refused

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
CODE = {path.stem: re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL) for path in GUIDES.glob("*.md")}
RUN_HERE = ("errors", "look_into", "new_architecture", "circuits", "coming_from")
RUN_ELSEWHERE = {"i_want_to", "training", "measuring", "streams", "your_text"}
"""With the commands of the README, in their order (`test_documents`)."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "previous.py"
    path.write_text(CODE["new_instrument"][0])
    return path


def test_the_instrument_of_the_guide_finds_what_was_planted(file: Path) -> None:
    text = "Tim took a . He used the key . Tim took it"
    model, words = planted(), tokenizer()
    ids = words.encode(text)
    rows = SimpleNamespace(
        kind=Documents, tokenizer=words, rows=lambda: iter([ids]), title=lambda: "one", about=dict,
        units=lambda: pd.DataFrame({"unit": ["a"], "cluster": ["a"]}),
    )  # fmt: skip
    own = instrument_in(f"{file}:PreviousSentence")
    table = own(ends=".").measure(model, rows).table().frame.set_index("head")
    with capture(model, "blocks.0.attn.hook_pattern") as seen:
        model(torch.tensor([ids]))
    patterns = seen["blocks.0.attn.hook_pattern"][0]
    spans = [range(5), range(5, 10), range(10, 13)]  # BOS Tim took a . | He used the key . | Tim took it
    for head in range(len(HEADS)):
        on = [float(patterns[head, i, list(spans[s])].sum()) for s in (0, 1) for i in spans[s + 1]]
        assert table.loc[f"L0.H{head}", "attention"] == pytest.approx(np.mean(on), abs=1e-6)


def test_the_list_of_changes_of_the_guide_is_the_loss_of_plain_edits(tmp_path: Path) -> None:
    (tmp_path / "scale_layer.py").write_text(CODE["new_instrument"][3])
    options = instrument_in(f"{tmp_path / 'scale_layer.py'}:ScaleLayer")(factor=3.0)
    model = load("stories/lfa")
    (tmp_path / "two.txt").write_text(
        "Lily had a red ball. She liked it.\n<|endoftext|>\nTom ran home.\n<|endoftext|>\n"
    )
    data = open_data(Documents(data=str(tmp_path / "two.txt")), model)
    frame = options.measure(model, data).table().frame
    rows = [torch.tensor([row]) for row in data.rows()]

    def loss() -> float:
        sums = [model.loss_fn(model(row), row, per_token=True).sum() for row in rows]
        return float(sum(sums)) / sum(row.shape[1] - 1 for row in rows)

    with torch.inference_mode():
        plain = loss()
        for layer in range(model.config.n_layers):
            with edit(model, {f"blocks.{layer}.hook_attn_out": lambda x, hook: 3 * x}):
                assert frame["delta"][layer] == pytest.approx(loss() - plain, abs=1e-5)


@pytest.mark.slow
def test_the_instrument_of_the_guide_keeps_the_contract(file: Path) -> None:
    """And its planted case passes."""
    (file.parent / "test_previous.py").write_text(CODE["new_instrument"][1])
    for argv in (["pytest", "-q", "-p", "no:cacheprovider", "test_previous.py"], ["streamscope", "check", file.name]):
        env = {**os.environ, "PYTHONPATH": str(GUIDES.parents[1])}
        done = subprocess.run([sys.executable, "-m", *argv], cwd=file.parent, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_instrument_of_the_guide_has_a_command(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.parquet"
    words = f"pls --control c2 --max-documents 3 --out {out} --figure {tmp_path / 'x.html'}"
    main([str(file), *words.split()])
    assert "run − control" in capsys.readouterr().out
    table = Result.load(out).tables["heads-control"].frame
    assert {"attention_difference", "attention_difference_p"} <= set(table)
    assert "attention_p" not in Result.load(out).tables["heads"].frame
    with pytest.raises(SystemExit):
        streamscope([str(file), "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"usage: streamscope \S*previous.py ", said) and "--ends" in said
    assert "the share of a head's attention" in said  # what the file says first


def test_the_guides_own_code_by_the_command(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`streamscope FILE.py:CLASS` under the edit of the guide: attention after the edited layers changes."""
    (tmp_path / "halve.py").write_text(CODE["new_instrument"][2])
    monkeypatch.chdir(tmp_path)
    argv = ["lfa", "--control", "lfa", "--max-documents", "3", "--out", "x.parquet"]
    streamscope([f"{file}:PreviousSentence", *argv, "--edit", "halve.py:without_ffns"])
    assert "stories/lfa, edited minus stories/lfa" in capsys.readouterr().out
    table = Result.load(tmp_path / "x.parquet").tables["heads-control"].frame.set_index("head")
    changed = table["attention_difference"].abs() > 1e-6
    assert not changed[[f"L{layer}.H{head}" for layer in range(4) for head in range(6)]].any()
    assert changed[[f"L{layer}.H{head}" for layer in (4, 5) for head in range(6)]].all()
    streamscope([str(file), *argv[:5], "--edit", "halve.py:halve@blocks.0.hook_mlp_out"])
    assert "edited" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "code", "line"),
    [
        ("x.py:A", "def A(): pass",
         "A of .* is not a valid instrument: it is a function; an edit goes to an instrument, as in .*:A@HOOK"),
        ("x.py", "", "holds 0 instruments"),
        ("x.py:B", "class A: pass", "unknown instrument"),
    ],
)  # fmt: skip
def test_other_files_are_one_line(spec: str, code: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(code)
    with refused(line):
        instrument_in(str(tmp_path / spec))


def test_every_guide_is_run_somewhere() -> None:
    assert {*RUN_HERE, *RUN_ELSEWHERE, "new_instrument", "install"} == set(CODE)


@pytest.mark.slow
def test_code_of_the_guides_runs(tmp_path: Path) -> None:
    """In a process of its own, nnsight last, for it changes what it is imported into."""
    code = "\n".join(block for guide in RUN_HERE for block in CODE[guide])
    own = {**os.environ, "PYTHONPATH": str(GUIDES.parents[1]), "STREAMSCOPE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_edits_of_the_live_page_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (GUIDES / "look_into.md").read_text(encoding="utf-8")
    (edits,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "edits.json").write_text(edits)
    (line,) = re.findall(r"(?m)^streamscope (coherence .*)", text)
    streamscope(shlex.split(line))
    assert "stories/lfa, edited minus stories/lfa" in capsys.readouterr().out
