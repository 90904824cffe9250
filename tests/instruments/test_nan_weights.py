"""Weights that are NaN stop every instrument with the name of the weights; nothing NaN is taken for "no such case"."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.contract import Instrument
from streamscope.instruments.data import Documents, Text
from streamscope.instruments.observations import Contrast, Measure, Observations, estimate
from streamscope.instruments.registry import discover
from streamscope.models.checkpoint import load
from streamscope.models.hooks import Query, run
from streamscope.models.transformer import StreamTransformer
from streamscope.probes.contraction import Contraction
from streamscope.probes.logit_lens import LogitLens

INSTRUMENTS = {
    name: made for name, made in discover().items() if not all(one.alone for one in made.takes) or not made.takes
}
BROKEN = "blocks.2.attn.q.weight"


@pytest.fixture
def broken(request: pytest.FixtureRequest) -> Iterator[StreamTransformer]:
    """A trained model with one NaN among the weights of a query projection."""
    model = load(getattr(request, "param", "stories/gpt2"))
    with torch.no_grad():
        model.get_parameter(BROKEN).view(-1)[5] = torch.nan
    yield model


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


def test_a_short_prompt_does_not_hide_them(broken: StreamTransformer) -> None:
    # torch's fused attention gives 0 for a query whose scores are all NaN, so that the logits were finite
    tokens = broken.to_tokens("Lily had a red ball")
    with torch.no_grad():
        assert not broken(tokens).isfinite().all()
        assert not broken(tokens, logits_at=torch.tensor([[4]])).isfinite().all()
    with pytest.raises(InputError, match=f"the weights {BROKEN} are NaN"):
        run(broken, Query(tokens=tokens.tolist(), logits=[[4]]))
    with pytest.raises(InputError, match=f"the weights {BROKEN} are NaN"):
        run(broken, Query(tokens=tokens.tolist(), hooks=("blocks.2.attn.hook_pattern",)))


def block(total: list[list[float]], size: list[list[float]]) -> Observations:
    units = pd.DataFrame({"unit": ["a", "b", "c"], "cluster": ["a", "b", "c"]})
    cells = pd.DataFrame({"head": [f"L0.H{i}" for i in range(len(total))]})
    return Observations(measure=Measure(name="loss", unit="nats", resolution=0.0), cells=cells, units=units,
                        total=np.array(total), size=np.array(size))  # fmt: skip


def test_an_observation_that_is_nan_is_no_missing_case() -> None:
    with pytest.raises(InputError, match=r"^loss of head L0.H1 at b is nan, which is no finite number: 1 of 5 values$"):
        block([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], [[1.0] * 3, [1.0, 1.0, 0.0]])


def test_the_size_says_that_a_unit_is_not_in_a_cell() -> None:
    seen = block([[1.0, 2.0, 3.0], [1.0, np.nan, 0.0]], [[1.0] * 3, [1.0, 0.0, 0.0]])
    assert seen.inside.tolist() == [[True] * 3, [True, False, False]]
    assert np.isnan(seen.total[1, 1:]).all() and len(seen.frame()) == 4
    found = estimate(seen, [Contrast(quantity="both", weights={0: 1.0, 1: -1.0})]).frame.iloc[0]
    assert found["n"] == 1 and found["value"] == 0.0
    with pytest.raises(InputError, match="has a total, but the size 0"):
        block([[1.0, 2.0, 3.0]], [[1.0, 1.0, 0.0]])


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
