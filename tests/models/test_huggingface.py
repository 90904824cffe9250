"""Models of the library's families, random, as ours: logits equal to the library's, and every command takes them."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Tokens
from streamscope.instruments.registry import discover
from streamscope.interventions.abliterate.measure import abliterate_weights
from streamscope.interventions.amplify.measure import amplification
from streamscope.interventions.edits import scale_heads
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.paths import edges_of, parse_senders
from streamscope.models import load
from streamscope.models.checkpoint import run_label
from streamscope.models.head_spec import Head
from streamscope.models.hooks import capture, edit
from streamscope.models.interop.huggingface import main
from streamscope.models.interop.huggingface.convert import read_config, read_weights
from streamscope.models.layers.head import unembed
from streamscope.models.sweep import passes
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.direct_logit_attribution.contributions import check_heads, directions
from tests.tiny import assert_refused

SIZES = dict(vocab_size=260, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80)
BASE = dict(SIZES, max_position_embeddings=40)
LLAMA = dict(BASE, num_key_value_heads=2, rms_norm_eps=1e-6)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=30)  # fmt: skip
"""Of twelve waves here some stay, some are stretched, some are between."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", dict(vocab_size=260, n_embd=48, n_layer=3, n_head=4, n_positions=40)),
    "gpt2-untied": ("GPT2", dict(vocab_size=260, n_embd=48, n_layer=2, n_head=4, n_positions=40, n_inner=70,
                                 activation_function="relu", tie_word_embeddings=False)),
    "pythia": ("GPTNeoX", dict(BASE, num_attention_heads=2)),
    "neox-in-sequence": ("GPTNeoX", dict(BASE, num_attention_heads=3, rotary_pct=0.5, attention_bias=False,
                                         use_parallel_residual=False, hidden_act="gelu_new",
                                         tie_word_embeddings=True)),
    "llama": ("Llama", dict(LLAMA)),
    "llama-wide-heads": ("Llama", dict(LLAMA, head_dim=20, attention_bias=True, mlp_bias=True,
                                       tie_word_embeddings=True)),
    "llama-3": ("Llama", dict(LLAMA, rope_parameters=LLAMA3)),
    "llama-linear": ("Llama", dict(LLAMA, rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5))),
    "qwen2": ("Qwen2", dict(LLAMA)),
    "qwen3": ("Qwen3", dict(LLAMA, head_dim=16)),
    "mistral": ("Mistral", dict(LLAMA, sliding_window=7, head_dim=16)),
    "mistral-unwindowed": ("Mistral", dict(LLAMA, sliding_window=None, tie_word_embeddings=True,
                                           rope_parameters=LLAMA3)),
    "smollm3": ("SmolLM3", dict(LLAMA, no_rope_layer_interval=2, attention_bias=True, pad_token_id=0)),
    "smollm3-untied": ("SmolLM3", dict(LLAMA, no_rope_layers=[1, 1, 0], tie_word_embeddings=False, mlp_bias=True,
                                       pad_token_id=0)),
    "olmo2": ("Olmo2", dict(LLAMA, pad_token_id=0)),
    "olmo2-biased": ("Olmo2", dict(LLAMA, attention_bias=True, tie_word_embeddings=True, rope_parameters=LLAMA3,
                                   pad_token_id=0)),
    "phi3": ("Phi3", dict(LLAMA, sliding_window=9, pad_token_id=0)),
    "phi3-partly-rotated": ("Phi3", dict(LLAMA, num_attention_heads=3, num_key_value_heads=3, pad_token_id=0,
                                         tie_word_embeddings=True,
                                         rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                                              partial_rotary_factor=0.75))),
    "gemma2": ("Gemma2", dict(LLAMA, head_dim=16, sliding_window=7, query_pre_attn_scalar=24,
                              attn_logit_softcapping=0.5, final_logit_softcapping=0.8)),
    "gemma2-uncapped": ("Gemma2", dict(LLAMA, head_dim=20, sliding_window=7, attention_bias=True,
                                       tie_word_embeddings=False, attn_logit_softcapping=None,
                                       final_logit_softcapping=None, hidden_activation="gelu")),
    "gemma3": ("Gemma3Text", dict(LLAMA, num_hidden_layers=4, head_dim=16, sliding_window=7, query_pre_attn_scalar=24,
                                  layer_types=["sliding_attention", "full_attention"] * 2,
                                  rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=5000.0,
                                                                           factor=8.0),
                                                       sliding_attention=dict(rope_type="default", rope_theta=50.0)))),
    "gemma3-capped": ("Gemma3Text", dict(LLAMA, head_dim=16, sliding_window=7, final_logit_softcapping=0.8)),
}  # fmt: skip


def theirs(kind: str) -> Any:
    """A random model of the library; norms and biases are not at their neutral values."""
    transformers = pytest.importorskip("transformers")
    name, options = CASES[kind]
    head = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(name, f"{name}ForCausalLM")
    torch.manual_seed(0)
    model = getattr(transformers, head)(getattr(transformers, f"{name}Config")(**options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def opened(kind: str, folder: Path, **options: Any) -> tuple[Any, Any]:
    """(our model of a folder that the library saved, the library's model)."""
    peer = theirs(kind)
    peer.save_pretrained(folder, **options)
    return load(f"hf:{folder}"), peer


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest one, in units of the largest number."""
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", CASES)
@torch.no_grad()
def test_logits_are_the_librarys(kind: str, tmp_path: Path) -> None:
    sharded = kind in ("llama", "mistral", "smollm3", "olmo2", "phi3", "gemma2", "gemma3")
    model, peer = opened(kind, tmp_path / "model", max_shard_size="60KB" if sharded else "5GB")
    assert (tmp_path / "model" / "model.safetensors.index.json").is_file() == sharded
    tokens = torch.randint(0, 260, (3, 40), generator=torch.Generator().manual_seed(1))
    assert difference(model(tokens), peer(tokens).logits) < 1e-5
    assert model.n_params() == sum(p.numel() for p in peer.parameters())


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gemma3", "gemma3-capped"])
@torch.no_grad()
def test_formulas_are_the_librarys_in_fp64(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its rotary tables, and without its steps in fp32, only rounding is left."""
    peer = theirs(kind).double()
    peer.save_pretrained(tmp_path / "model")
    peer = type(peer).from_pretrained(tmp_path / "model", dtype=torch.float64)
    tokens = torch.randint(0, 260, (2, 40), generator=torch.Generator().manual_seed(1))
    config, family = read_config(tmp_path / "model")
    config, tensors = read_weights(tmp_path / "model", config, family)
    ours = StreamTransformer(config).double()
    ours.load_state_dict(tensors)
    for layer, block in enumerate(ours.blocks if kind != "gpt2" else ()):
        which = [peer.config.layer_types[layer]] if "gemma3" in kind else []
        tables = peer.model.rotary_emb(torch.zeros(1).double(), torch.arange(40)[None], *which)
        block.attn.positions.cos, block.attn.positions.sin = (table[0, :, None] for table in tables)
    got, softmax = ours(tokens), torch.nn.functional.softmax
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    peer.set_attn_implementation("eager")
    assert difference(got, peer(tokens).logits) < 1e-12


@pytest.mark.parametrize("kind", ["mistral", "smollm3", "olmo2", "phi3", "gemma2", "gemma2-uncapped", "gemma3"])
@torch.no_grad()
def test_windows_and_layers_without_positions_in_sweeps_patterns_and_texts(kind: str, tmp_path: Path) -> None:
    model, peer = opened(kind, tmp_path / "model")
    tokens = torch.randint(1, 260, (2, 24), generator=torch.Generator().manual_seed(2))
    distance = torch.arange(24)[:, None] - torch.arange(24)
    pattern = model.patterns(tokens)
    for layer, weights in enumerate(pattern.unbind(1)):
        window = 24 if kind.startswith("gemma") and layer % 2 else model.config.attention.window or 24
        assert bool((weights[..., (distance < 0) | (distance >= window)] == 0).all())
        assert bool((weights[..., (distance >= 0) & (distance < window)] > 0).all())
    peer.set_attn_implementation("eager")
    theirs_too = peer(tokens, output_attentions=True).attentions[1]
    torch.testing.assert_close(pattern[:, 1], theirs_too, rtol=1e-4, atol=1e-6)
    with capture(model, ["blocks.1.attn.hook_q", "blocks.1.attn.hook_rot_q"]) as found:
        model(tokens)
    assert torch.equal(*found.values()) == (kind == "smollm3"), "layer 2 of SmolLM3 has no positions"
    at = torch.tensor([[3, 20], [11, 23]])
    sweep = [{}, scale_heads([Head(0, 1)], 0.0), scale_heads([Head(2, 3)], 0.0)]
    for edits, (h, _) in zip(sweep, passes(model, tokens, sweep, at=at), strict=True):
        with edit(model, edits):
            want = model(tokens, logits_at=at)
        torch.testing.assert_close(unembed(h, model.head), want, rtol=1e-4, atol=1e-4)
    want = peer.generate(tokens, max_new_tokens=14, do_sample=False, eos_token_id=None)
    assert model.generate(tokens, max_new_tokens=14, temperature=0, stop_at_eos=False) == want.tolist()


@pytest.mark.parametrize("kind", ["olmo2", "gemma2-uncapped"])
@torch.no_grad()
def test_heads_behind_a_norm_are_no_parts_of_the_stream(kind: str, tmp_path: Path) -> None:
    """OLMo 2 and Gemma: layers add up to the stream and to the logits; what needs heads to do so is refused."""
    model, peer = opened(kind, tmp_path / "model")
    tokens = torch.arange(12).reshape(2, 6)
    _, cache = model.run_with_cache(tokens)
    attributed = cache.logit_attrs(cache.decompose_resid(), 7).sum(0) + model.logit_bias[7]
    torch.testing.assert_close(attributed, peer(tokens).logits[..., 7], rtol=1e-4, atol=1e-4)
    d, senders = torch.randn(model.config.d_model), parse_senders(["L0.H1"], model)
    for call in (lambda: cache.stack_head_results(-1), lambda: cache.stack_neuron_results(-1),
                 lambda: cache.get_full_resid_decomposition(), lambda: model.accumulated_bias(1),
                 lambda: model.all_composition_scores("V"), lambda: check_heads(model),
                 lambda: abliterate_weights(model, d), lambda: edges_of(model, senders)):  # fmt: skip
        assert_refused(f"hf-{kind[:6].strip('-')} norms what a layer writes", call)
    if kind == "olmo2":
        with pytest.raises(InputError, match="apply_ln only supports the final norm"):
            cache.apply_ln_to_stack(cache.decompose_resid(1), 1)
    else:
        normed = cache.apply_ln_to_stack(cache.decompose_resid(1), 1).sum(0)
        want = model.blocks[1].ln1(cache["resid_pre", 1])
        torch.testing.assert_close(normed, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache["hook_embed"], model.W_E[tokens])


@torch.no_grad()
def test_capped_logits_and_scores_are_measured_or_refused(tmp_path: Path) -> None:
    """Gemma 2: losses, readouts of layers and edits use the caps; attribution and amplification are refused."""
    model, peer = opened("gemma2", tmp_path / "model")
    tokens = torch.arange(12).reshape(2, 6)
    want = peer(tokens, labels=tokens).loss
    torch.testing.assert_close(model(tokens, return_type="loss"), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:])[0], want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.layer_logits(tokens)[:, :, -1], peer(tokens).logits, rtol=1e-4, atol=1e-4)
    _, cache = model.run_with_cache(tokens)
    assert cache["attn_scores", 0].isfinite().any() and cache["attn_scores", 0].nan_to_num(neginf=0).abs().max() < 0.5
    with edit(model, {"blocks.1.hook_mlp_out": lambda x, hook: 0 * x}):
        ours = model(tokens, return_type="loss")
    peer.model.layers[1].post_feedforward_layernorm.weight.fill_(-1.0)
    torch.testing.assert_close(ours, peer(tokens, labels=tokens).loss, rtol=1e-5, atol=1e-5)
    assert_refused("hf-gemma2 caps its logits", cache.logit_attrs, cache.decompose_resid(), 7)
    assert_refused("hf-gemma2 caps its logits", lambda: model.logit_bias)
    assert_refused("hf-gemma2 caps its logits", directions, model, [(1, 2)], torch.ones(1))
    assert_refused("hf-gemma2 caps its scores", amplification, model, 2.0)


def test_the_command_writes_a_run_and_bad_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder, out = tmp_path / "model", tmp_path / "runs" / "gpt2"
    theirs("gpt2").save_pretrained(folder)
    main([str(folder), "--out", str(out)])
    assert "3 layers, 4 heads, width 48" in capsys.readouterr().out
    assert load(out).run == out
    assert_refused("is not empty: choose another folder", main, [str(folder), "--out", str(out)])
    saved = json.loads((folder / "config.json").read_text())
    without_heads = {name: value for name, value in saved.items() if name != "n_head"}
    weights, index = "model.safetensors", "model.safetensors.index.json"
    for name, content, line in (
        ("config.json", saved | {"model_type": "gpt3"}, "family 'gpt3'"),
        ("config.json", saved | {"activation_function": "tanh"}, "activation"),
        ("config.json", saved | {"n_layer": 4}, "h.3.ln_1.weight is missing, which blocks.3.ln1.weight needs"),
        ("config.json", saved | {"n_layer": 2}, "h.2.* more are not used by any part"),
        ("config.json", saved | {"n_embd": 52}, r"wte.weight \[260, 48\] cannot become embed.weight \[260, 52\]"),
        ("config.json", saved | {"n_head": 0}, "heads"), ("config.json", without_heads, "lacks 'n_head'"),
        ("config.json", saved, ""), (weights, b"no", "cannot be read"), (weights, None, "has no model.safetensors"),
        (index, {"weight_map": [1]}, "weight_map"),
        (index, {"weight_map": {"wte.weight": "gone.safetensors"}}, "gone.safetensors"), (index, None, ""),
        ("pytorch_model.bin", b"no", "pickled and not read"),
    ):  # fmt: skip
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        if line:
            assert_refused(line, load, f"hf:{folder}")
    assert_refused("neither a folder nor a model in the hub's cache", load, "hf:nobody/nothing")


def test_what_a_run_of_theirs_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "hub" / "models--some--model" / "snapshots" / "0123"
    for folder in (tmp_path / "model", hub):
        theirs("gpt2").save_pretrained(folder)
    assert run_label(load(f"hf:{tmp_path / 'model'}").run) == f"hf:{tmp_path / 'model'}"
    assert run_label(load(f"hf:{hub}").run) == "hf:some/model"
    monkeypatch.chdir(tmp_path)
    assert run_label(load("hf:./model").run) == "hf:model"


def test_a_damaged_copy_in_the_cache_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the copy: the folder that a user names is never touched."""
    folder, tokens = tmp_path / "model", torch.arange(12)[None]
    first, _ = opened("gpt2", folder)
    before, copy = first(tokens).detach().clone(), first.run / "model.safetensors"
    whole = copy.read_bytes()
    del first
    with pytest.raises(InputError, match="device 'tpu' is unknown"):  # the option is wrong, not the copy
        load(f"hf:{folder}", device="tpu")
    assert "is damaged" not in capsys.readouterr().err
    copy.unlink()
    copy.write_bytes(whole[: len(whole) // 2])
    assert torch.equal(load(f"hf:{folder}")(tokens), before)
    assert "in the cache is damaged" in capsys.readouterr().err
    shutil.rmtree(copy.parent)
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(InputError):
        load(f"hf:{folder}")
    assert folder.is_dir()


def test_what_is_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    """A pair of vocabulary and merges, and weights that keep their size and time, as `cp -p` and rsync leave them."""
    folder, other = tmp_path / "model", theirs("gpt2")
    other.save_pretrained(folder)
    letters = {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4}
    (folder / "vocab.json").write_text(json.dumps(letters))
    for name, content, ids in (("merges.txt", "#version: 0.2\na b\n", [0, 4, 3]),
                               ("vocab.json", json.dumps(letters | {"c": 1, "a": 3}), [0, 4, 1]),
                               ("merges.txt", "#version: 0.2\n", [0, 3, 2, 1])):  # fmt: skip
        (folder / name).write_text(content)
        assert load(f"hf:{folder}").to_tokens("abc").tolist() == [ids]
    tokens, weights = torch.arange(12)[None], folder / "model.safetensors"
    before, was = load(f"hf:{folder}")(tokens), weights.stat()
    with torch.no_grad():
        other.transformer.h[1].mlp.c_fc.weight.add_(1)
    other.save_pretrained(tmp_path / "other")
    shutil.copyfile(tmp_path / "other" / "model.safetensors", weights)
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    now = weights.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (was.st_size, was.st_mtime_ns, was.st_ino)
    after = load(f"hf:{folder}")(tokens)
    assert not torch.allclose(before, after)
    with torch.no_grad():
        torch.testing.assert_close(after, other(tokens).logits, rtol=1e-4, atol=1e-4)
    os.replace(shutil.copy2(weights, tmp_path / "copy"), weights)  # another inode
    load(f"hf:{folder}")
    assert len(list((tmp_path / "cache" / "huggingface").glob("model-*"))) == 5


INSTRUMENTS = discover()
LACKING = {
    "contraction": "parallel streams", "dual_path": "has no HDPL projection", "latents": "has no HDPL projection",
    "mixing": "parallel streams", "mixing_monitor": "has no mixing matrices", "routing": "has no Kronecker",
    "streams": "has one residual stream",
}  # fmt: skip
"""What needs a part that these families do not have."""
BEHIND = dict.fromkeys(("abliterate", "direct_logit_attribution", "hydra", "patch"), "norms what a layer writes")
"""What needs heads that add up to the stream: not those of OLMo 2 and Gemma 2. `patch` refuses only its paths."""
OPTIONS: dict[str, dict[str, Any]] = {"patch": {"hooks": ("resid_pre", "z")}}
SIX_LAYERS = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "max_position_embeddings": 128}


@pytest.fixture(scope="module", params=["gpt2", "pythia", "llama", "qwen3", "olmo2", "gemma2"])
def measured_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name, options = CASES[request.param]
    own = {"n_layer": 6, "n_head": 6, "n_positions": 128} if name == "GPT2" else SIX_LAYERS
    folder = tmp_path_factory.mktemp("families") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMSCOPE_CACHE", str(folder.parent / "cache"))
        patch.setitem(CASES, request.param, (name, {**options, **own, "vocab_size": 2048}))
        theirs(request.param).save_pretrained(folder)
        shutil.copyfile(
            Path(__file__).resolve().parents[2] / "models/zoo/lfa/tokenizer.json", folder / "tokenizer.json"
        )
        model = load(f"hf:{folder}")
        tokens = Tokens(data="stories:1:20", max_tokens=1500)
        for name, file in (("extract", "features"), ("token_effects", "effects")):
            INSTRUMENTS[name]().measure(model, tokens).save(folder / f"{file}.parquet")
        model.tables = {"features": (folder / "features.parquet",), "effects": folder / "effects.parquet"}
        yield model


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INSTRUMENTS))
def test_an_instrument_measures_or_refuses_in_one_line(name: str, measured_model: Any) -> None:
    how = INSTRUMENTS[name](**{**INSTRUMENTS[name].quick, **OPTIONS.get(name, {})})
    given = [one.small() for one in how.takes]
    said = {"data": "stories:1:12", **measured_model.tables}
    data = [replace(one, **{f.name: said[f.name] for f in fields(one) if f.name in said}) for one in given]
    lacking = {**LACKING, **(BEHIND if measured_model.config.norm_place != "before" else {})}
    if measured_model.config.attention.softcap:
        lacking["amplify"] = "caps its scores"
    if name in lacking:
        assert_refused(lacking[name], how.measure, measured_model, *data)
        if not isinstance(how, Patch):
            return
        how = replace(how, senders=())  # without paths it measures
    found = how.measure(measured_model, *data)
    assert all(len(table.frame.columns) for table in found.tables.values()) and len(found.table().frame)
