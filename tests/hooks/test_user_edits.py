"""`--edit FILE.py:NAME[@HOOK]`: what a file may hold, what is refused in one line, that it does what weights do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.models.dictionaries import Dictionary, write_dictionary
from streamscope.models.hooks import capture, edit, edited_at
from streamscope.models.hooks.controls import about_edits, user_edits
from streamscope.models.make import build
from streamscope.models.transformer import StreamTransformer
from tests.tiny import randomise, refused

Z = "blocks.1.attn.hook_z"
TOKENS = torch.randint(256, (3, 6), generator=torch.Generator().manual_seed(1))
CODE = """
import torch
from helper_beside import HALF
from functools import partial

def halve(z, hook):
    return z * HALF

def scaled(z, hook, by=0.5):
    return z * by

def edits(model):
    return {f"blocks.{layer}.attn.hook_z": halve for layer in range(model.config.n_layers)}

EDITS = {"blocks.*.attn.hook_z": halve}
NUMBER = 3

def nothing(model):
    return {}

def broken(model):
    return model.no_such_thing

def index(z, hook):
    return z[:, 99]

def in_place(z, hook):
    z *= 0.5
    return z

def neighbours(z, hook):
    return z.roll(1, 0)

def noise(z, hook):
    return z + torch.randn_like(z)
"""


@pytest.fixture(scope="module")
def model() -> StreamTransformer:
    return build("std-t", "tiny", init_std=0.2)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "helper_beside.py").write_text("HALF = 0.5")
    path = folder / "torch.py"  # a name that must hide nothing
    path.write_text(CODE)
    return path


def logits(model: StreamTransformer, edits: dict[str, Any]) -> torch.Tensor:
    with edit(model, edits), torch.no_grad():
        return model(TOKENS)


@pytest.mark.parametrize(("names", "factors"), [
    ([f"halve@{Z}"], (1.0, 0.5)), ([f"scaled@{Z}"], (1.0, 0.5)), (["halve@blocks.*.attn.hook_z"], (0.5, 0.5)),
    (["edits"], (0.5, 0.5)), (["EDITS"], (0.5, 0.5)), (["edits", f"halve@{Z}"], (0.5, 0.25)),
])  # fmt: skip
def test_an_edit_of_a_file_does_what_weights_do(
    model: StreamTransformer, file: Path, names: list[str], factors: tuple[float, float]
) -> None:
    other = build("std-t", "tiny", init_std=0.2)
    with torch.no_grad():
        for block, factor in zip(other.blocks, factors, strict=True):
            block.attn.o.weight *= factor  # type: ignore[union-attr, operator]
    edited = logits(model, user_edits(model, [f"{file}:{name}" for name in names]))
    torch.testing.assert_close(edited, other(TOKENS), rtol=0, atol=1e-5)
    assert not torch.allclose(edited, model(TOKENS), atol=1e-3)


@pytest.mark.parametrize(("name", "line"), [
    ("halve", "name the hook, as in .*halve@blocks.3"), (f"edits@{Z}", "names its own hooks"),
    ("hav", "unknown edit of .* did you mean halve"), ("NUMBER", "NUMBER of .* is not a valid edit: it is a int"),
    ("nothing", "gave {}, not a dict of hook"), ("broken", "failed: AttributeError: .*no_such_thing.*, line 22$"),
    ("", r"holds \d+ edits \(.*name one as"), (f"index@{Z}", f"failed at {Z}: IndexError: .*, line 25$"),
    (f"in_place@{Z}", f"the edit of {Z} changes its argument"),
    (f"neighbours@{Z}", f"at {Z} gives another value for a row alone than in a batch"),
    (f"noise@{Z}", f"at {Z} gives another value for a row alone than in a batch"),
])  # fmt: skip
def test_what_is_no_edit_is_one_line(model: StreamTransformer, file: Path, name: str, line: str) -> None:
    """Nor what must not be done by one."""
    with refused(line):
        logits(model, user_edits(model, [f"{file}:{name}"]))
    assert not model._forward_hooks and edited_at(model) == ()


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("x.txt", "", "not FILE.py:NAME"),
        ("nothere.py", None, "does not exist; check the path"),
        ("x.py", "import no_such_module", "cannot be executed: ModuleNotFoundError: .*, line 1$"),
        ("x.py", "x = (", "cannot be executed: SyntaxError: .*, line 1$"),
        ("x.py", "raise SystemExit", "cannot be executed: SystemExit, line 1$"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(model, name: str, code: str | None, line: str, tmp_path: Path) -> None:
    if code is not None:
        (tmp_path / name).write_text(code)
    with refused(line):
        user_edits(model, [f"{tmp_path / name}:f"])


def test_the_file_is_told_by_its_content(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(CODE + "\n")
    (a,), (b,) = about_edits([f"{file}:halve@{Z}"]), about_edits([f"{other}:halve@{Z}"])
    assert a["edit"] == f"{file}:halve@{Z}" and len(a["sha256"]) == 64 and a["sha256"] != b["sha256"]


def random_dictionary(model: StreamTransformer, latents: int, seed: int, threshold: float, **where: str) -> Dictionary:
    d, generator = model.config.d_model, torch.Generator().manual_seed(seed)
    sizes = ((d, latents), (latents,), (latents, d), (d,))
    weights = [torch.randn(size, generator=generator) / 4 for size in sizes]
    return Dictionary(*weights, torch.full((latents,), threshold), **where)


@pytest.mark.parametrize(
    ("preset", "hook", "target", "stream"),
    [
        ("lfa", "blocks.0.hook_context_post", "", "context"),
        ("kromcanon", "blocks.0.hook_streams_post", "", "s1"),
        ("std-t", "blocks.1.hook_mlp_in", "blocks.1.hook_mlp_out", ""),
    ],
)
def test_latents_of_a_dictionary_are_removed(preset: str, hook: str, target: str, stream: str, tmp_path: Path) -> None:
    """Against plain capture and replacement; two latents at once are read from one state."""
    model = randomise(build(preset, "tiny"))
    d = random_dictionary(model, 20, 3, 0.1, hook=hook, target=target or hook, stream=stream)
    write_dictionary(tmp_path / "d", d)
    spec = f"{tmp_path / 'd'}:3,17-18"
    part = (..., int(stream[1:]), slice(None)) if stream[1:].isdigit() else ...
    with capture(model, [hook, d.target]) as captures:
        model(TOKENS)
    pre, new = captures[hook][part] @ d.W_enc + d.b_enc, captures[d.target].clone()
    z = torch.where(pre > 0.1, pre, 0)
    assert (z[..., [3, 17, 18]] > 0).any()
    new[part] = new[part] - sum(z[..., j, None] * d.W_dec[j] for j in (3, 17, 18))
    expected, edited = logits(model, {d.target: lambda value, hook: new}), logits(model, user_edits(model, [spec]))
    torch.testing.assert_close(edited, expected)
    assert not torch.allclose(model(TOKENS), expected)
    assert about_edits([spec])[0]["sha256"]
    for text, message in ((":x", "name latents"), ("", "name latents"), (":20", "0 to 19")):
        with refused(message):
            user_edits(model, [f"{tmp_path / 'd'}{text}"])


def test_latents_of_two_dictionaries_of_one_hook_are_removed_one_after_the_other(tmp_path: Path) -> None:
    """The second reads the state that the first has left, in JSON as on the command line."""
    model, hook = randomise(build("gpt2", "tiny")), "blocks.0.hook_resid_post"
    folders = (tmp_path / "a", tmp_path / "b")
    dictionaries = [random_dictionary(model, 4, seed, 0.0, hook=hook, target=hook) for seed in (3, 4)]
    for folder, dictionary in zip(folders, dictionaries, strict=True):
        write_dictionary(folder, dictionary)

    def removed(x: torch.Tensor, hook: Any) -> torch.Tensor:
        for dictionary in dictionaries:
            x = x - torch.relu(x @ dictionary.W_enc + dictionary.b_enc) @ dictionary.W_dec
        return x

    expected = logits(model, {hook: removed})
    (tmp_path / "edits.json").write_text(json.dumps({"latents": {str(folder): [0, 1, 2, 3] for folder in folders}}))
    for specs in ([str(tmp_path / "edits.json")], [f"{folder}:0-3" for folder in folders]):
        torch.testing.assert_close(logits(model, user_edits(model, specs)), expected)
