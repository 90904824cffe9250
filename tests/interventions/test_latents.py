"""Latent edits: against loops, on a model that reads one latent dimension, and through the command."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents, Text
from streamscope.instruments.open_data import open_documents
from streamscope.instruments.result import Result
from streamscope.interventions.latents import Latents
from streamscope.interventions.latents.measure import (
    Place,
    aligned_positions,
    blend_latents,
    clamp_latents,
    parse_places,
    scale_latents,
)
from streamscope.models import build, load, preset
from streamscope.models.train import main as train
from streamscope.text.shards import document_batches
from tests.interventions.passes import captured, under
from tests.tiny import arguments

UP, GATE = Place(1, "mlp.up"), Place(0, "mlp.gate")


@pytest.fixture(scope="module")
def measured(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny HDPL model that was trained, and its documents."""
    out = tmp_path_factory.mktemp("runs") / "hdpl"
    train(arguments(corpus, out, preset="hdpl"))
    model = load(out)
    return model, open_documents(Documents(max_documents=None, stride=0), model)


def over_documents(model: Any, documents: Any, **options: Any) -> Any:
    """The table of an instrument's edits over opened documents; its text is one word."""
    return Latents(**options).measure(model, documents, Text(text=("the",))).table("latents")


def on_texts(model: Any, text: str, **options: Any) -> Result:
    """What blends with another text change on a text."""
    return Latents(**options).measure(model, Text(text=(text,)))


def z_of() -> torch.Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dims", [None, (2, 7)])
@pytest.mark.parametrize("at", [None, (0, -1)])
def test_edits_change_what_they_say_and_nothing_else(dims: Any, at: Any) -> None:
    z, rows = z_of(), list(range(5)) if at is None else [0, 4]
    kept, other = z.clone(), torch.randn(len(rows), 8, generator=torch.Generator().manual_seed(1))
    for edits, new in (
        (scale_latents([UP], 0.25, dims, at), lambda old, i, d: 0.25 * old),
        (clamp_latents([UP], -3.0, dims, at), lambda old, i, d: -3.0),
        (blend_latents({UP: other}, 0.75, dims, at), lambda old, i, d: 0.25 * old + 0.75 * other[i, d]),
    ):
        (name, fn), expected = *edits.items(), z.clone()
        assert name == "blocks.1.mlp.up.hook_latent"
        for row, (i, t), d in product(range(2), enumerate(rows), dims or range(8)):
            expected[row, t, d] = new(z[row, t, d], i, d)
        torch.testing.assert_close(fn(z, None), expected)
        assert int((fn(z, None) != z).sum()) == 2 * len(rows) * len(dims or range(8))
    assert torch.equal(z, kept)


def test_nothing_and_a_swap_are_exact() -> None:
    z, other = z_of(), torch.randn(5, 8)
    for edits, expected in (
        (scale_latents([UP], 1.0), z),
        (blend_latents({UP: other}, 0.0), z),
        (blend_latents({UP: other}, 1.0), other.expand(2, -1, -1)),
    ):
        (fn,) = edits.values()
        assert torch.equal(fn(z, None), expected)


def test_places() -> None:
    config = preset("hdpl", "tiny")
    for spec, labels in {
        "L1.q": "L1.q", "L0.*": "L0.q L0.k L0.v L0.gate L0.up", "*.up": "L0.up L1.up", "L0-1.v": "L0.v L1.v",
        ("L1.v", "L0.v", "L1.v", "L1.q"): "L0.v L1.q L1.v",
        "all": "L0.q L0.k L0.v L0.gate L0.up L1.q L1.k L1.v L1.gate L1.up",
    }.items():  # fmt: skip
        assert " ".join(place.label for place in parse_places(spec, config)) == labels
    for spec, message in {
        "L2.q": "'L2.q': this model has layers 0 to 1",
        "L0.o": "unknown HDPL projection in 'L0.o' 'o': known: q, k, v, gate, up",
        "q": "'q' does not name a HDPL projection: write L2.q, L2.\\*, L0-2.up, \\*.q or all",
    }.items():
        with pytest.raises(InputError, match=message):
            parse_places(spec, config)


def planted(trained: Any) -> Any:
    """Of all latents, the output depends on dimension 3 of layer 1's up alone."""
    model = build(trained.config, tokenizer=trained.tokenizer)
    model.load_state_dict(trained.state_dict())
    with torch.no_grad():
        for block in model.blocks:
            block.attn.o.weight.zero_()
        model.blocks[0].mlp.down.weight.zero_()
        mlp = model.blocks[1].mlp
        column = mlp.up.decoder.weight[:, 3].clone()
        mlp.up.decoder.weight.zero_()
        mlp.up.decoder.weight[:, 3] = 20 * column
        mlp.gate.decoder.weight.zero_()
        mlp.down.weight.mul_(20)
    return model


def test_only_the_dimension_that_is_read_matters(measured: Any) -> None:
    trained, documents = measured
    model = planted(trained)
    each = over_documents(model, documents, at=("L1.up",), each=True, clamp=(2.0,))
    every = over_documents(model, documents)
    table = pd.concat([each.frame, every.frame])
    moved = table[(table["delta"] != 0) | (table["kl"] != 0)]
    assert list(zip(moved["place"], moved["dims"], strict=True)) == [("L1.up", "3"), ("L1.up", "all")]
    assert (moved["kl"] > 1e-3).all() and (moved["kl_low"] > 0).all()
    assert each.missing[0, "delta_p"] == "the same in every independent case"
    assert (0, "loss") not in each.missing and np.isnan(each.frame["delta_p"][0]) and each.frame["delta_p"][3] < 1


def test_losses_and_divergences_are_those_of_the_formula(measured: Any) -> None:
    """The planted model's logits written out: x + down(silu(gate) ⊙ (detail + 20 w_3 silu(z_3)))."""
    trained, documents = measured
    model = planted(trained)
    row = over_documents(model, documents, at=("L1.up",), dims=(3,), clamp=(2.0,)).frame.iloc[0]
    block, sums, n = model.blocks[1], np.zeros(3), 0
    up, gate = block.mlp.up, block.mlp.gate

    def of_heads(x: torch.Tensor, detail: torch.Tensor) -> torch.Tensor:
        return torch.einsum("btki,kio->btko", x.unflatten(-1, (4, 8)), detail).flatten(-2)

    for _, tokens, targets in document_batches(documents.shards, model.config.n_ctx, 1):
        with torch.no_grad():
            x, log_p = model.embed.weight[tokens], []
            normed = F.rms_norm(x, (32,), block.ln2.weight, 1e-6)
            for z in (up.mu(normed)[..., 3], torch.tensor(2.0)):
                linear = of_heads(normed, up.detail) + F.silu(z)[..., None] * up.decoder.weight[:, 3]
                y = x + (F.silu(of_heads(normed, gate.detail)) * linear) @ block.mlp.down.weight.T
                logits = F.rms_norm(y, (32,), model.ln_final.weight, 1e-6) @ model.unembed.weight.T
                log_p.append(logits.log_softmax(-1)[0])
        p, q = log_p
        base, loss = (F.nll_loss(one, targets[0], reduction="sum") for one in (p, q))
        sums += np.array([base, loss - base, (p.exp() * (p - q)).sum()])
        n += targets.numel()
    assert row["baseline"] == pytest.approx(sums[0] / n, rel=1e-5)
    assert row[["delta", "kl"]].tolist() == pytest.approx(sums[1:] / n, rel=1e-3)
    assert row["delta_low"] < row["delta"] < row["delta_high"] and row["tokens"] == n


def test_a_swap_is_the_other_text_s_latent_where_it_was_put(measured: Any) -> None:
    model, _ = measured
    a, b = "the cat sat on the", "she ran from the red house"
    result = on_texts(model, a, source=(b,), at=("L1.up",), position=(-1,), k=3)
    ids, others = (torch.tensor([model.tokenizer.encode(t)]) for t in (a, b))
    other = captured(model, others, UP.hook)[UP.hook]
    swap = {UP.hook: lambda z, hook: torch.cat([z[:, :-1], other[:, -1:]], 1)}
    plain, swapped = (under(model, ids, edits)[0].log_softmax(-1) for edits in ({}, swap))
    found = result.table("positions").frame["kl"]
    np.testing.assert_allclose(found, (plain.exp() * (plain - swapped)).sum(-1), atol=1e-6)
    assert (found.abs() > 1e-6).tolist() == [False] * (ids.shape[1] - 1) + [True]
    following, top = result.table("next").frame, swapped[-1].topk(3).indices
    after = following[following["edit"] == "blend"]
    assert after["token"].tolist() == model.tokenizer.pieces(top.tolist())
    for column, log_p in (("probability", swapped), ("before", plain)):
        np.testing.assert_allclose(after[column], log_p[-1, top].exp(), rtol=1e-4)
    row = result.table("texts").frame.iloc[0]
    assert row["kl_max"] == pytest.approx(found.max()) and row["kl"] == pytest.approx(found.mean())
    assert row["following"].startswith(f"{after['token'].iloc[0]!r} {after['probability'].iloc[0]:.2f}")


def test_interpolation_goes_from_one_to_the_other(measured: Any) -> None:
    result = on_texts(measured[0], "the cat sat", source=("the dog ran",), together=True, blend=(0.0, 0.25, 0.5, 1.0))
    kl = result.table("texts").frame.set_index("amount")["kl"]
    assert kl[0.0] < 1e-6 and kl[0.0] < kl[0.25] < kl[0.5] < kl[1.0]


def test_texts_stand_beside_their_sources_in_order(measured: Any) -> None:
    """The second is its own source, which changes nothing."""
    model, texts, sources = measured[0], ("the cat sat", "she ran home"), ("the dog ran", "she ran home")
    both = Latents(source=sources, together=True).measure(model, Text(text=texts))
    assert set(both.tables) == {"texts", "next", "positions"}, "a blend is of texts"
    kl = both.table("texts").frame["kl"].to_numpy()
    assert kl[0] == pytest.approx(on_texts(model, texts[0], source=(sources[0],), together=True).table().frame["kl"][0])
    assert kl[0] > 1e-4 and kl[1] < 1e-6
    block = both.blocks["texts"]
    assert (np.isnan(block.total).sum(0) == 1).all() and block.units["cluster"].nunique() == 2


def test_a_text_given_twice_is_one_independent_text(measured: Any) -> None:
    result = Latents().measure(measured[0], Text(text=("the cat sat", "the cat sat", "she ran home")))
    assert result.blocks["texts"].units["cluster"].nunique() == 2


def test_alignment() -> None:
    assert aligned_positions(3, 3, ()) == aligned_positions(3, None, ()) == ([0, 1, 2], [0, 1, 2])
    assert aligned_positions(3, 5, (-1, 0)) == ([2, 0], [4, 0])
    for at, line in (((), "3 and 5 tokens: give --position"), ((3,), "position 3 is outside a text of 3 tokens")):
        with pytest.raises(InputError, match=line):
            aligned_positions(3, 5, at)


def test_one_dimension_at_a_time_and_a_family_of_p_is_one_edit_and_amount(measured: Any) -> None:
    def table(**options: Any) -> pd.DataFrame:
        few = (Documents(max_documents=8), Text(text=("the",)))
        return Latents(**options).measure(measured[0], *few).table().frame

    each = table(at=("L1.up",), each=True, clamp=(-2.0, 2.0))
    assert each["dims"].tolist() == 2 * [str(d) for d in range(8)] and each["latents"][3] == "L1.up [3]"
    both = table(at=("L1.*",), together=True, dims=(0, 3), scale=(0.0, 2.0))
    assert both["dims"].tolist() == ["0 3"] * 2 and both["layer"].tolist() == [-1, -1]
    several, alone = (table(at=("L1.*",), scale=scale) for scale in ((0.0, 2.0), (2.0,)))
    np.testing.assert_allclose(several["delta_p_holm"][several["amount"] == 2], alone["delta_p_holm"])
