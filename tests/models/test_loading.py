"""Weights stay mapped to their file, changes do not reach it, and bf16 models are measured by every instrument."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.instruments.registry import discover
from streamscope.models.checkpoint import ZOO, bundled, load, run_folder
from streamscope.models.interop.export.write import export
from streamscope.models.make import build
from streamscope.models.sft import main as sft
from streamscope.models.tensors import config_digest, save
from streamscope.models.train import main as train
from tests.tiny import assert_refused, refused

INSTRUMENTS = discover()
ROOT = Path(__file__).parents[2]


def anonymous() -> int:
    """Bytes of memory of this process that no file lies behind."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    save(build("llama", "tiny", d_vocab=40_000, d_model=256, n_heads=4), out)
    return out


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_weights_are_mapped_and_not_copied(folder: Path) -> None:
    before = anonymous()
    model = load(folder)
    taken, size = anonymous() - before, (folder / "model.safetensors").stat().st_size
    assert size > 40e6
    assert taken < size / 4, f"{taken / 1e6:.0f} MB of memory for {size / 1e6:.0f} MB of weights"
    assert model.n_params() * 4 <= size


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_layers_share_their_rotary_tables_and_what_loading_used_is_given_back(tmp_path: Path) -> None:
    """A table of cos and one of sin are 8192 x 64 x 4 bytes; 24 layers with tables of their own held 100 MB."""
    save(build("llama", "tiny", d_model=128, n_heads=2, n_layers=24, n_ctx=8192), tmp_path / "long")
    load("stories/gpt2")
    before = anonymous()
    model = load(tmp_path / "long")
    taken = anonymous() - before
    assert taken < 20e6, f"{taken / 1e6:.0f} MB"
    tables = {getattr(b.attn.positions, t).data_ptr() for b in model.blocks for t in ("cos", "sin")}
    assert len(tables) == 2
    assert len({b.attn.positions.cos.data_ptr() for b in model.double().blocks}) == 1
    assert model.blocks[0].attn.positions.cos.dtype == torch.float64
    assert load(tmp_path / "long").blocks[3].attn.positions.cos.dtype == torch.float32


def test_loaded_weights_train_like_built_ones_and_do_not_change_the_file(folder: Path) -> None:
    model, before = load(folder), (folder / "model.safetensors").read_bytes()
    other = build("llama", "tiny", d_vocab=40_000, d_model=256, n_heads=4)
    for one in (model, other):
        one(torch.arange(12)[None], return_type="loss").backward()
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert a.requires_grad and torch.equal(a, b) and torch.equal(a.grad, b.grad), name
        a.data.mul_(2)
    torch.testing.assert_close(load(folder).state_dict(), other.state_dict(), rtol=0, atol=0)
    assert (folder / "model.safetensors").read_bytes() == before


def spoilt(path: Path) -> None:
    """Another norm in config.json; in tokenizer.json, the ids of two frequent tokens exchanged."""
    changed = json.loads(path.read_text())
    if path.name == "config.json":
        changed["model"]["norm"]["eps"] = 0.5
    else:
        vocab = changed["model"]["vocab"]
        vocab["Ġthe"], vocab["Ġand"] = vocab["Ġand"], vocab["Ġthe"]
    path.write_text(json.dumps(changed))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["run", "snapshot", "saved"])  # a copy in the cache is built again
def test_a_file_edited_by_hand_is_refused(how: str, file: str, tmp_path: Path) -> None:
    name = run = tmp_path / "run"
    if how == "saved":
        load("stories/gpt2").save(run)
    else:
        shutil.copytree(ZOO / ("lfa" if how == "snapshot" else "gpt2"), run)
    if how == "snapshot":
        name = f"{run}@{min(int(path.stem.split('-')[1]) for path in (run / 'snapshots').glob('*.safetensors'))}"
    path = run / file
    text = path.read_text()
    path.write_text(json.dumps(dict(reversed(json.loads(text).items())), indent=3))  # another layout, the same content
    model = load(name)
    logits = model(torch.arange(3, 40)[None])
    assert model.to_tokens(" the").tolist() != model.to_tokens(" and").tolist()
    spoilt(path)
    with refused(r"\.json is not the (configuration of these weights|tokenizer of this model) .*: restore it"):
        load(name)
    path.write_text(text)
    assert torch.equal(load(name)(torch.arange(3, 40)[None]), logits)


def test_every_bundled_model_and_every_training_names_its_configuration(tiny_run: Path) -> None:
    for folder in (*(run_folder(name) for name in bundled()), tiny_run):
        model = json.loads((folder / "config.json").read_text())["model"]
        assert json.loads((folder / "manifest.json").read_text())["config_sha256"] == config_digest(model), folder


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_copy_in_the_cache_that_was_edited_is_made_again(file: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "cache"))
    export("stories/llama", tmp_path / "theirs", native=True)
    before = load(name := f"hf:{tmp_path / 'theirs'}")
    logits, tokens = before(torch.arange(3, 40)[None]), before.to_tokens(" the and").tolist()
    spoilt(before.run / file)
    capsys.readouterr()
    again = load(name)
    assert "in the cache is damaged" in capsys.readouterr().err
    assert torch.equal(again(torch.arange(3, 40)[None]), logits) and again.to_tokens(" the and").tolist() == tokens


@pytest.mark.parametrize("what", ["export", "sft", "train"])
def test_nan_weights_are_named_before_they_are_exported_or_trained_on(what: str, tmp_path: Path) -> None:
    model, run, out = load("stories/gpt2"), tmp_path / "run", tmp_path / "out"
    with torch.no_grad():
        model.blocks[2].mlp.up.weight[3, 4] = torch.nan
    model.save(run)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": f"Tom {i}", "response": "ran home."}) + "\n" for i in range(40)))
    call: Any = {
        "export": lambda: export(str(run), out),
        "sft": lambda: sft([str(run), "--data", str(pairs), "--out", str(out)]),
        "train": lambda: train(["gpt2", "--scale", "zoo", "--start", str(run), "--data", "stories:1:300",
                                "--steps", "2", "--batch-size", "2", "--out", str(out)]),
    }[what]  # fmt: skip
    assert_refused(r"the weights blocks\.2\.mlp\.up\.weight are NaN: 1 of .*; load an undamaged", call)
    assert not out.exists()


OWN_PROCESS = """
import sys
import torch
from streamscope import build, load
from streamscope.cli.errors import InputError
load("stories/gpt2")(torch.arange(5)[None])
print([name for name in ("torch._dynamo", "transformer_lens.model_bridge") if name in sys.modules])
for call in (load, build):
    try:
        call(3)
    except InputError as error:
        print(error)
"""


def test_in_a_process_of_its_own() -> None:
    """Loading imports neither torch's compiler nor the bridges, which take a second each. Without the type checks of
    the tests, a run is named by text or a path."""
    done = subprocess.run([sys.executable, "-c", OWN_PROCESS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "a run is named by text or a path, such as 'stories/lfa', not 3",
        "build takes the name of a preset, such as 'lfa', or a ModelConfig, not 3",
    ]


def test_bf16_rounds_every_weight_once() -> None:
    whole, rounded = load("lfa"), load("lfa", dtype="bf16")
    for (name, a), b in zip(whole.named_parameters(), rounded.parameters(), strict=True):
        assert b.dtype == torch.bfloat16 and torch.equal(a.to(torch.bfloat16), b), name
    tokens = torch.arange(3, 40)[None]
    logits, found = whole(tokens), rounded(tokens)
    assert (found.float() - logits).abs().max() < 0.02 * logits.abs().max()
    assert load("stories/lfa", dtype=torch.bfloat16).W_E.dtype == torch.bfloat16
    for dtype in ("bfloat16", torch.float16):
        assert_refused(r"^dtype .* is unknown: fp32 or bf16$", load, "stories/lfa", dtype=dtype)


@pytest.mark.parametrize(
    "name", [n if n in ("ablate", "extract") else pytest.param(n, marks=pytest.mark.slow) for n in sorted(INSTRUMENTS)]
)
def test_every_instrument_measures_a_model_in_bf16(name: str) -> None:
    """The same cells are defined; what they hold differs by rounding, in most by a few percent of its spread."""
    how = INSTRUMENTS[name](**INSTRUMENTS[name].quick)
    whole, rounded = (
        how.measure(load(how.runs[0], dtype=one), *(data.small() for data in how.takes)) for one in ("fp32", "bf16")
    )
    assert list(rounded.tables) == list(whole.tables)
    for kind, block in whole.blocks.items():
        mine, theirs = rounded.blocks[kind].total, block.total
        if mine.shape == theirs.shape:  # what is chosen by what is measured may be chosen otherwise
            assert np.isfinite(mine).mean() >= 0.9 * np.isfinite(theirs).mean(), kind
        if name in ("ablate", "streams", "steer", "pds", "logit_lens", "coherence"):
            assert np.nanstd(mine - theirs) < 0.05 * np.nanstd(theirs), kind
