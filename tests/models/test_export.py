"""Our models as the transformers library's: equal logits, tokenizer, card, and the way back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamscope.cli.errors import InputError
from streamscope.models import build, load, preset
from streamscope.models.checkpoint import write_snapshot
from streamscope.models.config.presets import PRESETS
from streamscope.models.interop.export import main
from streamscope.models.interop.export.modeling_streamscope import StreamscopeForCausalLM
from streamscope.models.interop.export.write import export
from streamscope.models.tensors import read_tensors
from streamscope.models.transformer import StreamTransformer
from streamscope.text.tokenizer import Tokenizer
from tests.models.test_huggingface import CASES, cache, difference, theirs  # noqa: F401
from tests.tiny import PARTS, assert_refused, randomise, some

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi": ("d-cas", {"positions": "alibi"}), "hc": ("kromhc", {"residual": "hc"}),
    "mhc": ("kromhc", {"residual": "mhc"}), "mhc-lite": ("kromhc", {"residual": "mhc_lite"}),
    "identity": ("d-cas", {"attention.v": "id"}), "parallel": ("dst-kron", {"residual.order": "parallel"}),
    "no-positions": ("std-t", {"positions": "none"}), "grouped": ("llama", {"attention.kv_heads": 2}),
    "half-precision-coefficients": ("kromhc", {"residual.hc_dtype": "bf16"}),
    "own-layer-norms": ("pls", {"readout.layer_norms": "own"}),
}  # fmt: skip
TEXTS = ["Lily had a red ball.", "She gave  it\n\nto <|endoftext|> Tom."]


def made(name: str, tokenizer: Tokenizer | None = None, changes: dict[str, Any] | None = None) -> StreamTransformer:
    """A tiny model none of whose parameters is at a neutral value."""
    base, changes = VARIANTS.get(name, (name, changes or {}))
    changes = changes | ({"d_vocab": 280} if tokenizer else {})
    return randomise(build(preset(base, "tiny", **changes), tokenizer=tokenizer), std=0.1, seed=3)


def exported(model: StreamTransformer, folder: Path, **options: Any) -> Path:
    model.save(folder / "ours")
    export(str(folder / "ours"), folder / "theirs", **options)
    return folder / "theirs"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["Lily had a red ball. She gave it to Tom.", "Tom had a red ball."] * 9, 280)


def tokens(rows: int = 3, length: int = 20) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", some([*PRESETS, *VARIANTS], (*PARTS, "alibi", "mhc-lite", "identity")))
def test_logits_are_ours_bit_by_bit(name: str, tmp_path: Path) -> None:
    model = made(name)
    peer, report = StreamscopeForCausalLM.from_pretrained(exported(model, tmp_path), output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        assert torch.equal(peer(tokens()).logits, model(tokens()))
    assert_refused("write hf:", load, tmp_path / "theirs")
    back = load(f"hf:{tmp_path / 'theirs'}")
    assert back.config == model.config
    assert all(torch.equal(x, back.state_dict()[key]) for key, x in model.state_dict().items())


def test_calls_of_the_library(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = made("lfa", tokenizer)
    peer = StreamscopeForCausalLM.from_pretrained(exported(model, tmp_path))
    x = tokens(1, 7)
    with torch.no_grad():
        ours = model(x)
        rows = torch.full((3, 12), 99)
        mask = torch.zeros(3, 12, dtype=torch.long)
        rows[0, 5:], rows[1, :7], mask[0, 5:], mask[1, :7], mask[2] = x[0], x[0], 1, 1, 1
        out = peer(rows, attention_mask=mask, output_hidden_states=True)
        torch.testing.assert_close(out.logits[0, 5:], ours[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(out.logits[1, :7], ours[0], rtol=0, atol=1e-5)
        kept = peer(rows, attention_mask=mask, logits_to_keep=2).logits
        torch.testing.assert_close(kept, out.logits[:, -2:], rtol=0, atol=1e-5)
        patterns = torch.stack(peer(rows, attention_mask=mask, output_attentions=True).attentions)
        for own in (patterns[:, 0, :, 5:, 5:], patterns[:, 1, :, :7, :7]):
            torch.testing.assert_close(own, model.patterns(x)[0], rtol=0, atol=1e-6)
        assert not patterns[:, 0, :, 5:, :5].any(), "nothing attends to padding"
        found = model.run_with_cache(rows)[1]
        assert len(out.hidden_states) == model.config.n_layers + 1
        torch.testing.assert_close(out.hidden_states[1][2], found["blocks.0.hook_resid_post"][2], rtol=0, atol=1e-5)
        want = torch.nn.functional.cross_entropy(ours[0, :-1], x[0, 1:])
        torch.testing.assert_close(peer(x, labels=x).loss, want)
        want = model.generate(x.tolist(), max_new_tokens=9, temperature=0, stop_at_eos=False)
        for cached in (True, False):
            greedy = peer.generate(x, max_new_tokens=9, do_sample=False, use_cache=cached, eos_token_id=None)
            assert greedy.tolist() == want
    mask[2, 4] = 0
    with pytest.raises(ValueError, match="gaps"):
        peer(rows, attention_mask=mask)
    with pytest.raises(TypeError, match="does not accept inputs_embeds"):
        peer(x, inputs_embeds=x)
    handle = peer.model.blocks[1].attn.hook_z.register_forward_hook(lambda m, args, z: 0 * z)
    with torch.no_grad():
        edited = peer(x).logits
        handle.remove()
        ablated = model.run_with_hooks(x, fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: 0 * z)])
        assert torch.equal(edited, ablated) and not torch.allclose(edited, ours)
    fresh = StreamscopeForCausalLM(peer.config)
    assert torch.equal(fresh.model.embed.weight, StreamTransformer(model.config).embed.weight), "seed 0"
    path = tmp_path / "theirs" / "model.safetensors"
    save_file({k: x for k, x in load_file(path).items() if "ln_final.weight" not in k}, path, {"format": "pt"})
    with pytest.raises(ValueError, match="lacks weights of a Norm"):
        StreamscopeForCausalLM.from_pretrained(tmp_path / "theirs")


@pytest.mark.parametrize("name", ["std-t", "llama"])
def test_native_classes_and_their_tokenizer(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = made(name, tokenizer)
    folder = exported(model, tmp_path, native=True)
    assert not list(folder.glob("*.py"))
    fields = json.loads((folder / "config.json").read_text())
    assert name != "llama" or fields["rope_theta"] == 500_000, "the library before 5 reads no rope_parameters"
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(peer).__name__ == {"std-t": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[name]
    with torch.no_grad():
        want = model(tokens())
        assert difference(peer(tokens()).logits, want) < 1e-5
    read = transformers.AutoTokenizer.from_pretrained(folder)
    assert [read(text).input_ids for text in TEXTS] == tokenizer.encode_batch(TEXTS)
    assert [read.decode(read(text).input_ids, skip_special_tokens=True) for text in TEXTS] == TEXTS
    assert (read.bos_token_id, read.eos_token_id, read.pad_token_id) == (tokenizer.bos_id,) * 3
    assert read.model_max_length == model.config.n_ctx
    back = load(f"hf:{folder}")
    with torch.no_grad():
        assert torch.equal(back(tokens()), want), "biases of zeros change nothing"


@pytest.mark.parametrize("kind", CASES)
def test_theirs_come_back_bit_by_bit(kind: str, tmp_path: Path) -> None:
    """What one of the five classes computes; the others go into a folder with our code."""
    peer = theirs(kind)
    peer.save_pretrained(tmp_path / "theirs")
    if not (CASES[kind][0] in ("GPT2", "GPTNeoX", "Llama", "Qwen2", "Qwen3") or kind == "mistral-unwindowed"):
        with pytest.raises(InputError, match="no class of the library computes"):
            export(f"hf:{tmp_path / 'theirs'}", tmp_path / "back", native=True)
        return
    export(f"hf:{tmp_path / 'theirs'}", tmp_path / "back", native=True)
    want, got = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("theirs", "back"))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    with torch.no_grad():
        back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
        assert torch.equal(back(tokens()).logits, peer(tokens()).logits)


NORMED = {"attention.qk_norm": "rms", "attention.qk_norm.eps": 1e-6, "norm.eps": 1e-6, "readout.norm.eps": 1e-6}
NATIVE: dict[str, tuple[str, dict[str, Any], str]] = {
    "partly rotary": ("llama", {"positions.fraction": 0.5}, ""),
    "biases of the FFN alone": ("llama", {f"mlp.{name}.bias": True for name in ("up", "down", "gate")},
                                "LlamaForCausalLM"),
    "normed queries": ("llama", NORMED, "Qwen3ForCausalLM"),
    "a bias of q, normed queries": ("llama", {"attention.q.bias": True, "attention.qk_norm": "rms"}, ""),
    **{name: (name, {}, "") for name in ("gpt2", "lfa", "own-layer-norms")},
}  # fmt: skip
"""(preset, changes, the class that computes it; empty for none)."""


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_class_computes_the_same_or_none_is_written(name: str, tmp_path: Path) -> None:
    base, changes, architecture = NATIVE[name]
    model = made(base, changes=changes)
    if not architecture:
        assert_refused("no class of the library computes", exported, model, tmp_path, native=True)
        assert not (tmp_path / "theirs").exists()
        return
    peer = transformers.AutoModelForCausalLM.from_pretrained(exported(model, tmp_path, native=True))
    assert type(peer).__name__ == architecture
    with torch.no_grad():
        assert difference(peer(tokens()).logits, model(tokens())) < 1e-5


def test_snapshots_card_and_bad_input(tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model, run = made("pls", tokenizer), tmp_path / "run"
    model.save(run)
    assert_refused("no snapshots", export, str(run), tmp_path / "none", snapshots=True)
    early = {name: x.detach() * 0.5 for name, x in model.state_dict().items()}
    write_snapshot(run, early, 16, "fp32")
    packed = {"corpus": "c" * 40, "n_tokens": 1234567, "n_documents": 89, "source": {"source": "stories:0:89"}}
    data = {"train": packed, "valid": {**packed, "source": {"source": "stories:1:5"}},
            "tokenizer": {"sha256": tokenizer.sha256}}  # fmt: skip
    manifest = {"preset": "pls", "scale": "tiny", "seed": 7, "parameters": 1, "argv": ["python", "a b"],
                "commit": "f" * 40, "data": data, "step": 40, "steps": 40, "outcome": "completed"}  # fmt: skip
    config = json.loads((run / "config.json").read_text())

    def card_of(folder: str, *options: str, **changes: Any) -> str:
        (run / "manifest.json").write_text(json.dumps(manifest))
        (run / "config.json").write_text(json.dumps(config | {"training": {"batch_size": 8}, "data": {}} | changes))
        main([str(run), "--out", str(tmp_path / folder), *options])
        return (tmp_path / folder / "README.md").read_text()

    evals = [{"step": s, "kind": "eval", "loss": 5.0 - s / 20, "perplexity": 2.0, "tokens": 640.0} for s in (16, 40)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    table = "| copying |\n|---|\n| loss | 2.6 |\n\nWhat it says.\n\n"
    (run / "README.md").write_text(f"# lfa\n\nTrained.\n\n{table}Licence: ours.\n")
    card = card_of("out", "--snapshots", "--license", "apache-2.0")
    assert capsys.readouterr().out.count("StreamscopeForCausalLM") == 2
    before = (tmp_path / "out" / "step-000016" / "README.md").read_text()
    for told in ("license: apache-2.0", "40 steps, 10,240 tokens seen", "Seed 7, commit ffffffffffff", "python 'a b'",
                 "`stories:0:89`, 89 documents, 1,234,567 tokens",
                 "| loss, nats/token | 3.0000 | 640 tokens of `stories:1:5`",
                 "The loss below differs", f"\n\n{table}## Use",
                 "trained on every layer", "| head gates | vector", f"{model.n_params():,} parameters"):  # fmt: skip
        assert told in card, told
    assert "16 steps of 40, 4,096 tokens seen" in before and "4.2000" in before and "3.0000" not in before
    tensors = read_tensors(tmp_path / "out" / "step-000016" / "model.safetensors")[0]
    assert all(torch.equal(x, tensors[f"model.{name}"]) for name, x in early.items())
    assert_refused("is not empty: choose another folder", main, [str(run), "--out", str(tmp_path / "out")])
    assert_refused("give a run and", main, [str(run)])
    padded = {"batch_size": 8, "packing": "document"}
    assert "10,240 tokens seen, including repetitions and padding." in card_of("padded", training=padded)
    # of a fine-tuning, whose manifest has the data of its parent: neither its tokens nor its loss are of these
    manifest |= {"parent": {"run": "runs/lfa"}, "sft": {}}
    card = card_of("tuned", sft={"data": "pairs.jsonl", "valid": None})
    assert "Fine-tuned on `pairs.jsonl`, from `runs/lfa`" in card and "\n40 steps.\n" in card
    assert "640 tokens of `held-out pairs of pairs.jsonl`" in card


OPENED = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    text = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)("Lily had a red ball.", return_tensors="pt")
    with torch.no_grad():
        torch.save((text.input_ids, model(**text).logits), folder + "/found.pt")
"""


@pytest.mark.slow
def test_the_librarys_own_loaders_open_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Offline, in a process that has imported nothing of ours."""
    models = {name: made(name, tokenizer) for name in ("kromcanon", "hdpl")}
    folders = {name: exported(model, tmp_path / name) for name, model in models.items()}
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OPENED, *map(str, folders.values())]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    for name, model in models.items():
        ids, logits = torch.load(folders[name] / "found.pt")
        assert ids.tolist() == model.to_tokens("Lily had a red ball.").tolist()
        with torch.no_grad():
            assert torch.equal(logits, model(ids))
