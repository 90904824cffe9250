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
from tests.models.test_huggingface import theirs

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


# ---- what classes of the library read of their config.json, and what they do not ------------------

RULE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STRETCHED = {"type": "linear", "factor": 4.0}
AS_THEY_DO: dict[str, dict[str, Any]] = {
    "a share that the class ignores": {"partial_rotary_factor": 0.5},
    "the share in the rule": {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    "names of NeoX": {"rope_parameters": ..., "rotary_emb_base": 50.0, "rotary_pct": 0.5},
    "names of Llama": {"rope_parameters": ..., "rope_theta": 50.0},
    "two rules": {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": STRETCHED, "rope_theta": 300.0},
    "the old context outside": {"rope_parameters": ..., "original_max_position_embeddings": 16,
                                "rope_scaling": {**RULE, "original_max_position_embeddings": 30}},
    "no old context": {"rope_parameters": ..., "rope_scaling": RULE},
    "no rule": {"rope_parameters": ...},
    "biases of the FFN": {"mlp_bias": False},
}  # fmt: skip
"""Fields of config.json that one class reads and another does not, or that stand in two places."""
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"partial_rotary_factor": 0.5, "rope_parameters": STRETCHED}, "partial_rotary_factor = 0.5 has no part"),
    ("qwen2", {"rope_parameters": {"full_attention": {"rope_theta": 300.0}}}, "differ from layer to layer"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types other than"),
    ("qwen2", {"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, got 'false'"),
    ("pythia", {"use_parallel_residual": "no"}, "use_parallel_residual must be true or false"),
    ("pythia", {"head_dim": 8}, "head_dim = 8 has no part here; models with head_dim = 24"),
]


@pytest.mark.parametrize("told", AS_THEY_DO)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "pythia", "neox-in-sequence"])
def test_fields_are_read_as_the_class_of_the_library_reads_them(kind: str, told: str, tmp_path: Path) -> None:
    assert off(saved(kind, tmp_path / "model", **AS_THEY_DO[told])) < 1e-5


@pytest.mark.parametrize(("kind", "changes", "line"), REFUSED)
def test_what_no_class_computes_is_refused(kind: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=line):
        load(f"hf:{saved(kind, tmp_path / 'model', **changes)}")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_biases_that_the_class_has_not_are_not_looked_for(kind: str, tmp_path: Path) -> None:
    """Qwen2 and Qwen3 read no mlp_bias, and Qwen2 no attention_bias; a file that has them is refused."""
    told = {"mlp_bias": True, **({"attention_bias": True} if kind == "qwen2" else {})}
    folder = saved(kind, tmp_path / "model", **told)
    assert off(folder) < 1e-5
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.mlp.up_proj.bias": torch.ones(80)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model.layers.0.mlp.up_proj.bias that no part takes"):
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
