"""Weights that are NaN stop every instrument with the name of the weights, and infinities one that meets them."""

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Instrument
from streamscope.instruments.data import Documents, Text
from streamscope.instruments.registry import discover
from streamscope.models.checkpoint import load
from streamscope.models.hooks import Query, run
from streamscope.probes.contraction import Contraction
from streamscope.probes.logit_lens import LogitLens

INSTRUMENTS = {
    name: made for name, made in discover().items() if not all(one.alone for one in made.takes) or not made.takes
}
BROKEN = "blocks.2.attn.q.weight"


@pytest.mark.parametrize("name", sorted(INSTRUMENTS))
def test_every_instrument_names_weights_that_are_not_finite(name: str) -> None:
    made: type[Instrument] = INSTRUMENTS[name]
    how = made(**made.quick)
    model = load(how.runs[0])
    at = next(n for n, p in model.named_parameters() if n.startswith("blocks.2.attn.q"))
    with torch.no_grad():
        model.get_parameter(at).view(-1)[5] = torch.nan
    with pytest.raises(InputError, match=rf"^the weights {at} are NaN: 1 of \d+"):
        how.measure(model, *(data.small() for data in how.takes))


def test_a_short_prompt_does_not_hide_them() -> None:
    # torch's fused attention gives 0 for a query whose scores are all NaN, so that the logits were finite
    broken = load("stories/gpt2")
    tokens = broken.to_tokens("Lily had a red ball")
    with torch.no_grad():
        broken.get_parameter(BROKEN).view(-1)[5] = torch.nan
        assert not broken(tokens).isfinite().all()
        assert not broken(tokens, logits_at=torch.tensor([[4]])).isfinite().all()
    with pytest.raises(InputError, match=f"the weights {BROKEN} are NaN"):
        run(broken, Query(tokens=tokens.tolist(), logits=[[4]]))
    with pytest.raises(InputError, match=f"the weights {BROKEN} are NaN"):
        run(broken, Query(tokens=tokens.tolist(), hooks=("blocks.2.attn.hook_pattern",)))


def test_an_infinity_behind_the_streams_is_no_probability() -> None:
    model = load("stories/gpt2")
    with torch.no_grad():
        model.ln_final.weight[5] = torch.inf
    with pytest.raises(InputError, match="logits of layer 0 are not finite"):
        LogitLens().measure(model, Text(text=("Lily had a red ball",)))


def test_an_infinity_in_a_model_with_streams_is_one_line() -> None:
    model = load("stories/kromcanon")
    with torch.no_grad():
        model.get_parameter("blocks.2.mlp.down.weight").view(-1)[5] = torch.inf
    with pytest.raises(InputError, match="not finite; first at blocks.2.hook_mlp_out"):
        Contraction().measure(model, Documents("stories:2:2"))
