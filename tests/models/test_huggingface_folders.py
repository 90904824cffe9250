"""What folders of the library say besides sizes: heads, rotary shares, tokens that begin and end a text, files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamscope.models import load
from streamscope.models.errors import InputError
from streamscope.models.huggingface.convert import read_config
from tests.models.test_huggingface import CASES, LLAMA, theirs

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "cache"))


def saved(kind: str, folder: Path, **changes: Any) -> Path:
    """A random model of the library as a folder, its config.json changed; a field set to `...` is taken out."""
    theirs(kind).save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: x for name, x in told.items() if x is not ...}))
    return folder


def off(folder: Path) -> float:
    """The largest difference of our logits from the library's, both read from a folder, in units of the largest."""
    tokens = torch.randint(0, 260, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        got = load(f"hf:{folder}")(tokens)
    return ((got - want).abs().max() / want.abs().max()).item()


# ---- the head ------------------------------------------------------------------------------------

HEADS = {"gpt2": "lm_head.weight", "llama": "lm_head.weight", "qwen2": "lm_head.weight", "qwen3": "lm_head.weight",
         "pythia": "embed_out.weight"}  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_of_its_own_under_a_tied_configuration_is_the_files(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / "model", tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    (embed,) = (
        x for name, x in tensors.items() if name.endswith(("wte.weight", "embed_tokens.weight", "embed_in.weight"))
    )
    head = torch.randn(embed.shape, generator=torch.Generator().manual_seed(2))
    save_file(tensors | {HEADS[kind]: head}, folder / "model.safetensors", {"format": "pt"})
    assert off(folder) < 1e-5
    model = load(f"hf:{folder}")
    assert not model.config.readout.tied and torch.equal(model.unembed.weight, head)
    save_file(tensors | {HEADS[kind]: embed.clone()}, folder / "model.safetensors", {"format": "pt"})
    assert off(folder) < 1e-5
    assert load(f"hf:{folder}").config.readout.tied, "a copy of the embedding is the embedding"


@pytest.mark.parametrize("kind", HEADS)
def test_whether_the_head_is_tied_where_the_field_is_missing(kind: str, tmp_path: Path) -> None:
    """As the library: GPT-2's is the embedding, that of the others is their own, and a file without it is refused."""
    folder = saved(kind, tmp_path / "model", tie_word_embeddings=...)
    assert read_config(folder)[0].readout.tied == (kind == "gpt2")
    assert off(folder) < 1e-5
    if kind != "gpt2":
        tensors = load_file(folder / "model.safetensors")
        tensors.pop(HEADS[kind])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(InputError, match=f"lacks {HEADS[kind]}"):
            load(f"hf:{folder}")


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        ("gpt2", {"n_inner": 10**7}, r"blocks.0.mlp.up.bias is \[192\] there, \[10000000\] by config.json"),
        ("gpt2", {"n_inner": 10**15}, "d_mlp must be at most 16,777,216"),
        ("gpt2", {"n_positions": 10**6}, r"pos_embed.weight is \[40, 48\] there, \[1000000, 48\] by config.json"),
        ("llama", {"vocab_size": 10**6}, r"embed.weight is \[260, 48\] there, \[1000000, 48\] by config.json"),
        ("llama", {"num_key_value_heads": 4, "head_dim": 10**18}, "d_head must be at most 16,777,216"),
        (
            "llama",
            {"num_key_value_heads": 4, "head_dim": 10**7},
            "not of its config.json|by config.json|takes more than",
        ),
    ],
)
def test_sizes_that_the_weights_have_not_are_refused_before_anything_is_built(
    kind: str, changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    folder = saved(kind, tmp_path / "model", **changes)
    with pytest.raises(InputError, match=line):
        load(f"hf:{folder}")
    assert not list((tmp_path / "cache").rglob("config.json")), "nothing of it stays in the cache"
