"""Torch's compiler is imported when something is compiled first; what was attached before that stays right."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import torch
from streamscope.models.hooks import edit
from streamscope.models.make import build
from tests.tiny import randomise

model = randomise(build("std-t", "tiny", n_layers=1, init_std=0.2)).eval()
tokens = torch.arange(6)[None]
with torch.no_grad():
    state, plain = model.embed_tokens(tokens), model(tokens)
    assert "torch._dynamo" not in sys.modules
    with edit(model, {"blocks.0.attn.hook_z": lambda z, hook: z * 0}):
        expected = model.blocks[0](state)
        compiled = torch.compile(model.blocks[0].forward, backend="eager")
        assert torch.equal(compiled(state), expected), "the edit has no effect"
    assert torch.equal(compiled(state), model.blocks[0](state)), "the edit stays"
    assert not torch.equal(compiled(state), expected)
    whole = torch.compile(model, backend="eager")
    torch.testing.assert_close(whole(tokens), plain)
    with edit(model, {"blocks.0.attn.hook_z": lambda z, hook: z * 0}):
        assert not torch.equal(whole(tokens), plain), "the edit has no effect on the whole model"
    torch.testing.assert_close(whole(tokens), plain)
"""


@pytest.mark.slow
def test_what_is_compiled_first_inside_an_edit_forgets_it() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
