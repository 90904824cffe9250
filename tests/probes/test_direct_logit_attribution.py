"""Direct logit attribution: a planted copier, sums on every preset with random weights, and trained models."""

from typing import Any

import numpy as np
import pytest
import torch

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.loaders import SentencePair, SentencePairs
from streamscope.instruments.prompts.tasks import OpenTasks, sentence_task, token_task
from streamscope.probes.direct_logit_attribution import DirectLogitAttribution
from streamscope.probes.direct_logit_attribution.contributions import directions, observe
from streamscope.probes.direct_logit_attribution.measure import attribute
from tests.interventions import copiers
from tests.interventions.copiers import DELTA, A
from tests.interventions.test_hydra import PRESETS, awake, random_task


def test_a_planted_copier_writes_what_it_is_set_to() -> None:
    net = copiers.model()
    task = token_task(copiers.suite(), net.tokenizer)
    result = DirectLogitAttribution().measure(net, OpenTasks([task], net.tokenizer))
    heads = result.table("heads").frame.set_index("head")["contribution"]
    c = np.where(task.cases["relation"] == "capital", 1, -1)
    own = 2 * A * DELTA / np.array([copiers.scale(x) for x in c * DELTA])  # log-odds of the right form, by hand
    assert heads["L0.H1"] == pytest.approx(own.mean(), abs=1e-5)
    assert heads.drop("L0.H1").abs().max() < 1e-5
    parts = result.table("parts").frame.set_index("part")["contribution"]
    assert parts["sum"] == pytest.approx(own.mean(), abs=1e-5)
    assert parts.drop("sum").abs().max() < 1e-5


@pytest.mark.parametrize("preset", [*PRESETS, "canon", "dst-ind", "kromhc", "hc", "mhc", "biased"])
def test_parts_add_up_to_the_logit_difference(preset: str) -> None:
    """With random gains and biases of every norm; `biased`: also with biases of the attention's output."""
    changed: dict[str, tuple[str, dict[str, Any]]] = {
        "biased": ("std-t", {"attention.v.bias": True, "attention.o.bias": True}),
        "hc": ("kromhc", {"residual": "hc"}), "mhc": ("kromhc", {"residual": "mhc"}),
    }  # fmt: skip
    name, changes = changed.get(preset, (preset, {}))
    model, task = awake(name, **changes), random_task()
    parts, whole = attribute(model, task)
    assert np.abs(sum(x for _, x in parts) - whole).max() < 1e-9
    # the biases are the rest of attention, so a wrong head would hide in them; without biases there is no such part
    biases = [x for labels, x in parts if labels["kind"] == "attention biases"]
    (rest,) = biases or [np.zeros(len(whole))]
    assert len(biases) == any(block.attn.o.bias is not None for block in model.blocks if hasattr(block.attn.o, "bias"))
    seen = observe(model, task.reads.tokens, task.reads.positions)
    b = torch.stack([block.attn.b_O for block in model.blocks]).detach()
    expected = torch.einsum("ln,ld,nd->n", seen.weights[1::2], b, directions(model, task.reads.ids, seen.scale))
    assert rest == pytest.approx(expected.numpy(), abs=1e-9)
    assert (np.abs(rest).max() > 1e-2) == (preset == "biased")
    with torch.no_grad():
        for i, (row, (a, b)) in enumerate(zip(task.reads.tokens, task.reads.ids, strict=True)):
            logits = model(torch.tensor([row]))[0, -1]
            assert whole[i] == pytest.approx(float(logits[a] - logits[b]), abs=1e-9)
    sizes = {labels["kind"]: np.abs(x).max() for labels, x in parts}
    assert min(sizes[kind] for kind in ("embedding", "head", "FFN")) > 1e-3


def test_sentences_and_heads_that_do_not_add_up_are_refused() -> None:
    model = streamscope.models.load("stories/lfa")
    pair = SentencePair(id="p", good="The dog ran.", bad="The dog run.", category="c")
    task = sentence_task(SentencePairs("s", (pair,), "here"), model.tokenizer)
    with pytest.raises(InputError, match="scores whole sentences, which is not one logit difference"):
        DirectLogitAttribution().measure(model, OpenTasks([task], model.tokenizer))
    nonlinear = streamscope.models.build("hdpl", scale="tiny", **{"attention.o": "hdpl"}).eval()
    with pytest.raises(InputError, match="output projection of layer 0 is not linear"):
        DirectLogitAttribution().check(nonlinear)
