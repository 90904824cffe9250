"""Steering: what is added where, scale 0 is the baseline, a projection moves by what was added."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.interventions import Abliterate, Steer
from streamscope.interventions.edits import add_direction, random_direction
from streamscope.interventions.steer.measure import mean_norms
from streamscope.models import build, load
from streamscope.models.head_spec import parse_layers
from streamscope.models.hooks import edit
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import document_batches
from tests.interventions.passes import captured, losses_alone, under
from tests.tiny import randomise

TOKENS = torch.randint(1, 200, (2, 9), generator=torch.Generator().manual_seed(0))
OWN: dict[str, Any] = {"direction": "1", "layers": ("1",), "raw": True, "prompt": ""}


@pytest.mark.parametrize(
    ("preset", "streams", "hook", "part"),
    [
        ("gpt2", ("resid",), "resid", ...),
        ("lfa", ("context",), "context", ...),
        ("kromhc", ("s1", "s3"), "streams", (..., [1, 3], slice(None))),
    ],
)
def test_what_is_added_is_c_d_in_those_streams_only(preset: str, streams: tuple, hook: str, part: Any) -> None:
    model = randomise(build(preset, "tiny").eval(), std=0.2)
    d = random_direction(model.config.d_model, 0, 0)
    edits, after = add_direction(d, {0: 2.5}, streams), f"blocks.1.hook_{hook}_pre"
    assert list(edits) == [f"blocks.0.hook_{hook}_post"]
    expected = captured(model, TOKENS, after)[after].clone()
    expected[part] += 2.5 * d
    with edit(model, edits):
        assert torch.equal(captured(model, TOKENS, after)[after], expected)
    steered = under(model, TOKENS, add_direction(d, {0: 0.0, 1: 0.0}, streams))
    assert torch.equal(steered, under(model, TOKENS, {})), "scale 0 is the baseline, bit for bit"


def test_layers() -> None:
    assert parse_layers(("2-4", "3", "0"), 6) == [0, 2, 3, 4]
    for spec in ("4-2", "6", "a", "1-"):
        with pytest.raises(InputError, match="--layers"):
            parse_layers((spec,), 6)


def test_the_table(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    how = Steer(**OWN, streams=("context",), scale=(-2.0, 0.0, 2.0), draws=2)
    result = how.measure(model, Documents(max_documents=6))
    d = torch.from_numpy(result.arrays["direction"])
    table, missing = result.table().frame.set_index("scale"), result.table().missing
    zero = table.loc[0.0, ["kl", "delta", "shift", "random_kl", "kl_above", "kl_low"]]
    assert zero.tolist()[:5] == [0] * 5 and np.isnan(zero["kl_low"]) and "baseline" in missing[1, "kl_low"]
    for dose in (2.0, -2.0):  # the last layer's readout moves by c d, and d is a unit
        assert table.loc[dose, "shift"] == pytest.approx(dose, abs=1e-4)
    assert (table.loc[[-2.0, 2.0], "kl_low"] > 0).all()
    edits = add_direction(d, {model.config.n_layers - 1: 2.0}, ("context",))
    (base, tokens), (steered, _) = (losses_alone(model, shards, one, 6) for one in ({}, edits))
    kl = 0.0
    for _, ids, targets in document_batches(shards, model.config.n_ctx, 1, 6):
        p, q = (under(model, ids, one)[0, targets[0] != -100].double().log_softmax(-1) for one in (edits, {}))
        kl += float((p.exp() * (p - q)).sum())
    assert table.loc[2.0, "delta"] == pytest.approx((steered - base).sum() / tokens.sum(), abs=1e-5)
    assert table.loc[2.0, "kl"] == pytest.approx(kl / tokens.sum(), abs=1e-5)
    alone = Steer(**OWN, scale=(2.0,), draws=0).measure(model, Documents(max_documents=3))
    assert "no random" in alone.table().missing[0, "kl_above"]


def test_what_cannot_be_steered_is_refused(tiny_run: Path) -> None:
    model = load(tiny_run)
    for bad in ({"scale": ()}, {"layers": ("9",)}, {"streams": ("s0",)}):
        with pytest.raises(InputError, match="scale|layers|stream"):
            Steer(**{**OWN, **bad}).measure(model)
    for how in (Steer, Abliterate):  # before any work
        for bad, line in (({"direction": "9"}, "--direction 9: give one of the layers 0 to 1"),
                          ({"stream": "foo"}, "unknown stream 'foo'")):  # fmt: skip
            with pytest.raises(InputError, match=line):
                how(**bad).open(model)


def test_the_unit_is_the_mean_norm_of_the_readout(tiny_run: Path) -> None:
    model, rows, hook = load(tiny_run), [[0, 5, 6], [0, 7], [0]], "blocks.1.hook_resid_post"
    norms = [captured(model, torch.tensor([row]), hook)[hook][0, 1:].norm(dim=-1) for row in rows]
    assert mean_norms(model, rows)[1] == pytest.approx(torch.cat(norms).mean().item(), rel=1e-5)
    how = Steer(direction="1", streams=("context",), scale=(0.5,), draws=0, prompt="")
    result = how.measure(model, Documents(max_documents=4))
    assert result.table().frame["shift"][0] == pytest.approx(0.5 * result.about["norms"]["L1"], rel=1e-3)


def test_the_usual_doses_leave_a_model_whole_and_are_said_in_norms_of_the_stream() -> None:
    model, documents = load("stories/gpt2"), Documents(max_documents=6)
    result = Steer(draws=0, prompt="").measure(model, documents)
    table, loss = result.table(), result.table().frame["baseline"][0]
    assert table.frame["delta"].max() < 0.2 * loss
    whole = Steer(scale=(1.0,), draws=0, prompt="").measure(model, documents).table()
    assert whole.frame["delta"][0] > 5 * table.frame["delta"].max()
    (layer,) = result.about["layers"]
    assert table.title.endswith(f"a dose of 1 is {result.about['norms'][f'L{layer}']:.1f}, the mean norm of the stream")
