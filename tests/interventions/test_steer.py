"""Steering: what is added where, scale 0 is the baseline, a projection moves by what was added."""

from pathlib import Path

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
from streamscope.models.hooks import capture, edit
from streamscope.models.training.data import evaluation_shards
from tests.interventions.passes import captured, under
from tests.tiny import randomise

TOKENS = torch.randint(1, 200, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("preset", "streams", "hook"),
    [
        ("gpt2", ("resid",), "hook_resid_post"),
        ("lfa", ("context",), "hook_context_post"),
        ("kromhc", ("s1", "s3"), "hook_streams_post"),
    ],
)
def test_what_is_added_is_c_d_in_those_streams_only(preset: str, streams: tuple, hook: str) -> None:
    model = randomise(build(preset, "tiny").eval(), std=0.2)
    d = random_direction(model.config.d_model, 0, 0)
    edits = add_direction(d, {0: 2.5}, streams)
    assert list(edits) == [f"blocks.0.{hook}"]
    before = captured(model, TOKENS, f"blocks.0.{hook}")
    with (
        torch.no_grad(),
        edit(model, edits),
        capture(model, ["blocks.0.hook_resid_post", f"blocks.1.{hook[:-4]}pre"]) as after,
    ):
        model(TOKENS)
    x = before[f"blocks.0.{hook}"]
    expected = x.clone()
    if preset == "kromhc":
        expected[:, :, [1, 3]] += 2.5 * d
    else:
        expected += 2.5 * d
    assert torch.equal(after[f"blocks.1.{hook[:-4]}pre"], expected)
    steered = under(model, TOKENS, add_direction(d, {0: 0.0, 1: 0.0}, streams))
    with torch.no_grad():
        assert torch.equal(steered, model(TOKENS)), "scale 0 is the baseline, bit for bit"


def test_layers() -> None:
    assert parse_layers(("2-4", "3", "0"), 6) == [0, 2, 3, 4]
    for spec in ("4-2", "6", "a", "1-"):
        with pytest.raises(InputError, match="--layers"):
            parse_layers((spec,), 6)


def test_the_table(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    streams, last = ("context",), [model.config.n_layers - 1]
    own = {"direction": "1", "layers": ("1",), "raw": True, "prompt": ""}
    how = Steer(**own, streams=streams, scale=(-2.0, 0.0, 2.0), draws=2)
    result = how.measure(model, Documents(max_documents=6))
    d = torch.from_numpy(result.arrays["direction"])
    table, missing = result.table().frame.set_index("scale"), result.table().missing
    zero = table.loc[0.0]
    assert (zero["kl"], zero["delta"], zero["shift"], zero["random_kl"], zero["kl_above"]) == (0, 0, 0, 0, 0)
    assert "baseline" in missing[1, "kl_low"] and np.isnan(zero["kl_low"])
    for dose in (2.0, -2.0):  # the last layer's readout moves by c d, and d is a unit
        assert table.loc[dose, "shift"] == pytest.approx(dose, abs=1e-4)
    assert (table.loc[[-2.0, 2.0], "kl_low"] > 0).all()
    # by hand, one document at a time
    edits, total, kl, count = add_direction(d, {last[0]: 2.0}, streams), 0.0, 0.0, 0
    for i in range(6):
        ids = torch.as_tensor(shards.document(i)[: model.config.n_ctx + 1])
        with torch.no_grad():
            plain = model(ids[None, :-1])[0].double().log_softmax(-1)
            with edit(model, edits):
                steered = model(ids[None, :-1])[0].double().log_softmax(-1)
        total += float((plain - steered).gather(1, ids[1:, None]).sum())
        kl += float((steered.exp() * (steered - plain)).sum())
        count += len(ids) - 1
    assert table.loc[2.0, "delta"] == pytest.approx(total / count, abs=1e-5)
    assert table.loc[2.0, "kl"] == pytest.approx(kl / count, abs=1e-5)
    alone = Steer(**own, scale=(2.0,), draws=0).measure(model, Documents(max_documents=3))
    assert "no random" in alone.table().missing[0, "kl_above"]
    for bad in ({"scale": ()}, {"layers": ("9",)}, {"streams": ("s0",)}, {"direction": "9"}):
        with pytest.raises(InputError, match="scale|layers|stream"):
            Steer(**{**own, **bad}).measure(model)
    for how in (Steer, Abliterate):  # before any work
        for bad, line in (({"direction": "9"}, "--direction 9: give one of the layers 0 to 1"),
                          ({"stream": "foo"}, "unknown stream 'foo'")):  # fmt: skip
            with pytest.raises(InputError, match=line):
                how(**bad).open(model)


def test_the_unit_is_the_mean_norm_of_the_readout(tiny_run: Path) -> None:
    model = load(tiny_run)
    rows = [[0, 5, 6], [0, 7], [0]]
    norms = []
    for row in rows:
        found = captured(model, torch.tensor([row]), "blocks.1.hook_resid_post")
        norms += found["blocks.1.hook_resid_post"][0, 1:].norm(dim=-1).tolist()
    assert mean_norms(model, rows)[1] == pytest.approx(np.mean(norms), rel=1e-5)
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
