"""What a user of TransformerLens tries first: losses of text batches, return types, saving, names."""

from pathlib import Path

import pytest
import torch

import streamscope.models
from streamscope.models import build, load
from streamscope.models.errors import InputError
from streamscope.models.hooks import match
from streamscope.models.text.stories import documents
from streamscope.models.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model():
    tokenizer = Tokenizer.train(documents(0, 200), 400)
    return build("lfa", "tiny", tokenizer=tokenizer, d_vocab=400)


@torch.no_grad()
def test_the_loss_of_a_padded_batch_is_that_of_its_texts(model) -> None:
    texts = ["Lily ran.", "Once there was a boy who had a small dog."]
    tokens, mask = model.to_batch(texts)
    alone = [(float(model(model.to_tokens(t), return_type="loss")), len(model.to_str_tokens(t)) - 1) for t in texts]
    expected = sum(loss * n for loss, n in alone) / sum(n for _, n in alone)
    assert float(model(tokens, return_type="loss", mask=mask)) == pytest.approx(expected, rel=1e-5)
    assert float(model(tokens, return_type="loss")) != pytest.approx(expected, rel=1e-3)


@torch.no_grad()
def test_return_types(model) -> None:
    tokens = model.to_tokens("Lily ran.")
    logits, loss = model(tokens, return_type="both")
    assert torch.equal(logits, model(tokens))
    assert torch.equal(loss, model(tokens, return_type="loss"))
    assert model(tokens, return_type=None) is None
    with pytest.raises(InputError, match="unknown return_type 'lozz'"):
        model(tokens, return_type="lozz")
    with pytest.raises(InputError, match="pass model.to_tokens"):
        model("Lily ran.")


@torch.no_grad()
def test_layer_logits_everywhere(model) -> None:
    tokens = model.to_tokens("Lily ran.")
    torch.testing.assert_close(model.layer_logits(tokens)[:, :, -1], model(tokens))


@torch.no_grad()
def test_saved_and_loaded(model, tmp_path: Path) -> None:
    model.save(tmp_path / "deep" / "saved")
    again = load(tmp_path / "deep" / "saved")
    tokens = model.to_tokens("Lily ran.")
    assert again.config == model.config
    assert torch.equal(again.to_tokens("Lily ran."), tokens)
    assert torch.equal(again(tokens), model(tokens))


def test_transformer_lens_names_are_checked(model) -> None:
    tokens = model.to_tokens("Lily ran.")
    with pytest.raises(InputError, match=r"hook_patern'.*hook_pattern"):
        model.run_with_cache(tokens, names_filter=["blocks.0.attn.hook_patern"])
    with pytest.raises(InputError, match=r"unknown hook 'blocks.1.hook_rezid_pre'"):
        model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_rezid_pre", lambda x, hook: x)])
    _, cache = model.run_with_cache(tokens, names_filter="blocks.*.attn.hook_z")
    assert len(list(cache.keys())) == 2


def test_patterns_of_names(model) -> None:
    assert match(model, "blocks.[0-1].attn.hook_z") == ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]
    with pytest.raises(InputError, match=r"did you mean blocks\.\*\.attn\.hook_pattern"):
        match(model, "blocks.*.attn.hook_patern")


def test_the_package_shows_its_names() -> None:
    assert {"build", "load", "preset"} <= set(dir(streamscope.models))
    assert "n_layers=2" in repr(build("lfa", "tiny").cfg)
