"""A model in a bridge, in server and notebook: its head scales and attention, and reasons for all other controls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.hooks import capture
from streamscope.models.hooks.controls import BRIDGED
from streamscope.viewer import page, runtime
from streamscope.viewer.session import Session, open_models, page_data

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Any]:
    """A random GPT-J in its folder."""
    from transformers import GPTJConfig, GPTJForCausalLM

    folder, tokenizer = tmp_path_factory.mktemp("gptj"), load("stories/lfa").tokenizer
    assert tokenizer is not None
    torch.manual_seed(0)
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 64, "rotary_dim": 8, "n_positions": 64}
    module = GPTJForCausalLM(GPTJConfig(vocab_size=tokenizer.d_vocab, initializer_range=0.2, **sizes)).eval()
    module.save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    shown = open_models([f"hf:{folder}"])
    return Session(shown), shown[0]


def run(session: tuple[Session, Any], edits: dict[str, Any]) -> dict[str, np.ndarray]:
    own, shown = session
    question = {"model": shown.identity, "tokens": [0, *range(5, 20)], "edits": edits}
    answer = own.answer("run", question)
    assert isinstance(answer, bytes)
    return load_arrays(answer)


@torch.no_grad()
def test_attention_is_shown_and_heads_are_scaled(session: tuple[Session, Any]) -> None:
    model = session[1].model
    tokens = torch.tensor([[0, *range(5, 20)]])
    plain = run(session, {})
    with capture(model, "blocks.*.attn.hook_pattern") as seen:
        np.testing.assert_allclose(plain["logits"], model(tokens)[0], atol=1e-5)
    np.testing.assert_allclose(plain["patterns"], torch.cat(list(seen.values())), atol=1e-6)
    with pytest.raises(InputError, match="L1.H2.alpha cannot be changed: this model runs in a bridge"):
        run(session, {"heads": {"L1.H2": {"alpha": 4}}})
    off = run(session, {"heads": {"L1.H2": {"scale": 0}}})
    z = slice(2 * 16, 3 * 16)
    weight = model.original_model.transformer.h[1].attn.out_proj.weight
    kept = weight[:, z].clone()
    weight[:, z] = 0
    np.testing.assert_allclose(off["logits"], run(session, {})["logits"], atol=1e-4)
    weight[:, z] = kept
    assert np.abs(off["logits"] - plain["logits"]).max() > 1e-3


def test_other_controls_have_a_reason(session: tuple[Session, Any]) -> None:
    data = page_data([session[1]], "server")["models"][0]
    assert data["controls"] == {"scale": True} | dict.fromkeys(
        ("alpha", "gate", "streams", "mixing", "h_res", "canon"), BRIDGED
    )
    assert data["no_lens"] == BRIDGED and data["streams"] == [] and data["outputs"] == ["logits", "patterns"]


def test_no_page_holds_a_bridge(session: tuple[Session, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "read", lambda name: b"")
    with pytest.raises(InputError, match="gptj runs in a bridge, which only the server and the notebook show"):
        page.write_page([session[1]], tmp_path / "page.html")
    assert not any(tmp_path.iterdir())
