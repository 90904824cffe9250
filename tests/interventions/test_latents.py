"""Latent edits: against loops, on a model that reads one latent dimension, and through the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import tests.tiny
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
from streamscope.models.hooks import capture, edit
from streamscope.text.shards import document_batches

UP, GATE = Place(1, "mlp.up"), Place(0, "mlp.gate")


@pytest.fixture(scope="module")
def run(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder of a tiny HDPL model."""
    from streamscope.models.train import main as train

    out = tmp_path_factory.mktemp("runs") / "hdpl"
    train(tests.tiny.arguments(corpus, out, preset="hdpl"))
    return out


@pytest.fixture(scope="module")
def measured(run: Path) -> Any:
    model = load(run)
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
    made = {
        "scale": scale_latents([UP], 0.25, dims, at),
        "clamp": clamp_latents([UP], -3.0, dims, at),
        "share": blend_latents({UP: other}, 0.75, dims, at),
    }
    for kind, edits in made.items():
        (name, fn), expected = *edits.items(), z.clone()
        assert name == "blocks.1.mlp.up.hook_latent"
        for row in range(2):
            for i, t in enumerate(rows):
                for d in dims or range(8):
                    old = z[row, t, d]
                    new = {"scale": 0.25 * old, "clamp": -3.0, "share": 0.25 * old + 0.75 * other[i, d]}
                    expected[row, t, d] = new[kind]
        torch.testing.assert_close(fn(z, None), expected)
        changed = fn(z, None) != z
        assert int(changed.sum()) == 2 * len(rows) * len(dims or range(8))
    assert torch.equal(z, kept)


def test_nothing_and_a_swap_are_exact() -> None:
    z, other = z_of(), torch.randn(5, 8)
    (same,), (nothing,) = scale_latents([UP], 1.0).values(), blend_latents({UP: other}, 0.0).values()
    assert torch.equal(same(z, None), z) and torch.equal(nothing(z, None), z)
    (swap,) = blend_latents({UP: other}, 1.0).values()
    assert torch.equal(swap(z, None), other.expand(2, -1, -1))


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
    model, shards = planted(trained), documents.shards
    table = over_documents(model, documents, at=("L1.up",), dims=(3,), clamp=(2.0,)).frame
    block, totals = model.blocks[1], np.zeros(4)
    for _, tokens, targets in document_batches(shards, model.config.n_ctx, 1):
        with torch.no_grad():
            x = model.embed.weight[tokens]
            n = F.rms_norm(x, (32,), block.ln2.weight, 1e-6)
            logits = []
            for z in (block.mlp.up.mu(n)[..., 3], torch.tensor(2.0)):
                up = block.mlp.up
                local = torch.einsum("btki,kio->btko", n.unflatten(-1, (4, 8)), up.detail).flatten(-2)
                linear = local + F.silu(z)[..., None] * up.decoder.weight[:, 3]
                gate = torch.einsum("btki,kio->btko", n.unflatten(-1, (4, 8)), block.mlp.gate.detail).flatten(-2)
                y = x + (F.silu(gate) * linear) @ block.mlp.down.weight.T
                logits.append(F.rms_norm(y, (32,), model.ln_final.weight, 1e-6) @ model.unembed.weight.T)
            p, q = (z.log_softmax(-1)[0] for z in logits)
            totals += [F.nll_loss(p, targets[0], reduction="sum"), F.nll_loss(q, targets[0], reduction="sum"), 0, 0]
            totals += [0, 0, (p.exp() * (p - q)).sum(), targets.numel()]
    row = table.iloc[0]
    assert row["baseline"] == pytest.approx(totals[0] / totals[3], rel=1e-5)
    assert row["delta"] == pytest.approx((totals[1] - totals[0]) / totals[3], rel=1e-3)
    assert row["kl"] == pytest.approx(totals[2] / totals[3], rel=1e-3)
    assert row["delta_low"] < row["delta"] < row["delta_high"] and row["tokens"] == totals[3]


def test_swapping_every_latent_of_a_text_into_itself_changes_nothing(measured: Any) -> None:
    text = "the cat sat on the big tree"
    result = on_texts(measured[0], text, source=(text,), together=True)
    assert set(result.tables) == {"texts", "next", "positions"}, "a blend is of texts"
    assert result.table("positions").frame["kl"].abs().max() < 1e-6
    following = result.table("next").frame
    torch.testing.assert_close(*(torch.tensor(following[c].to_numpy()) for c in ("probability", "before")))


def test_a_swap_is_the_other_text_s_latent_where_it_was_put(measured: Any) -> None:
    model, _ = measured
    a, b = "the cat sat on the", "she ran from the red house"
    result = on_texts(model, a, source=(b,), at=("L1.up",), position=(-1,), k=3)
    ids, others = (torch.tensor([model.tokenizer.encode(t)]) for t in (a, b))
    with capture(model, UP.hook) as other:
        model(others)
    swap = {UP.hook: lambda z, hook: torch.cat([z[:, :-1], other[UP.hook][:, -1:]], 1)}
    with torch.no_grad():
        plain = model(ids)[0].log_softmax(-1)
        with edit(model, swap):
            swapped = model(ids)[0].log_softmax(-1)
    kl = (plain.exp() * (plain - swapped)).sum(-1)
    found = result.table("positions").frame["kl"]
    np.testing.assert_allclose(found, kl.numpy(), atol=1e-6)
    assert (found.abs() > 1e-6).tolist() == [False] * (ids.shape[1] - 1) + [True]
    following = result.table("next").frame
    after = following[following["edit"] == "blend"]
    assert after["token"].tolist() == model.tokenizer.pieces(swapped[-1].topk(3).indices.tolist())
    np.testing.assert_allclose(after["probability"], swapped[-1].exp().topk(3).values, rtol=1e-4)
    np.testing.assert_allclose(after["before"], plain[-1].exp()[swapped[-1].topk(3).indices], rtol=1e-4)
    row = result.table("texts").frame.iloc[0]
    assert row["kl_max"] == pytest.approx(found.max()) and row["kl"] == pytest.approx(found.mean())
    assert row["following"].startswith(f"{after['token'].iloc[0]!r} {after['probability'].iloc[0]:.2f}")


def test_interpolation_goes_from_one_to_the_other(measured: Any) -> None:
    result = on_texts(measured[0], "the cat sat", source=("the dog ran",), together=True, blend=(0.0, 0.25, 0.5, 1.0))
    kl = result.table("texts").frame.set_index("amount")["kl"]
    assert kl[0.0] < 1e-6 and kl[0.0] < kl[0.25] < kl[0.5] < kl[1.0]


def test_texts_stand_beside_their_sources_in_order(measured: Any) -> None:
    model, texts, sources = measured[0], ("the cat sat", "she ran home"), ("the dog ran", "she ran home")
    both = Latents(source=sources, together=True).measure(model, Text(text=texts))
    kl = both.table("texts").frame["kl"].to_numpy()
    assert kl[0] == pytest.approx(on_texts(model, texts[0], source=(sources[0],), together=True).table().frame["kl"][0])
    assert kl[0] > 1e-4 and kl[1] < 1e-6
    block = both.blocks["texts"]
    assert (np.isnan(block.total).sum(0) == 1).all() and block.units["cluster"].nunique() == 2


def test_a_text_given_twice_is_one_independent_text(measured: Any) -> None:
    result = Latents().measure(measured[0], Text(text=("the cat sat", "the cat sat", "she ran home")))
    assert result.blocks["texts"].units["cluster"].nunique() == 2


def test_alignment() -> None:
    assert aligned_positions(3, 3, ()) == ([0, 1, 2], [0, 1, 2])
    assert aligned_positions(3, 5, (-1, 0)) == ([2, 0], [4, 0])
    assert aligned_positions(3, None, ()) == ([0, 1, 2], [0, 1, 2])
    with pytest.raises(InputError, match="3 and 5 tokens: give --position"):
        aligned_positions(3, 5, ())
    with pytest.raises(InputError, match="position 3 is outside a text of 3 tokens"):
        aligned_positions(3, 5, (3,))


def test_one_dimension_at_a_time_and_values(measured: Any) -> None:
    model, few = measured[0], (Documents(max_documents=4), Text(text=("the",)))
    each = Latents(at=("L1.up",), each=True, clamp=(-2.0, 2.0)).measure(model, *few)
    assert each.table().frame["dims"].tolist() == 2 * [str(d) for d in range(8)]
    assert each.table().frame["latents"][3] == "L1.up [3]"
    both = Latents(at=("L1.*",), together=True, dims=(0, 3), scale=(0.0, 2.0)).measure(model, *few).table().frame
    assert both["dims"].tolist() == ["0 3"] * 2 and both["layer"].tolist() == [-1, -1]


def test_a_family_of_p_is_one_edit_and_amount(measured: Any) -> None:
    model, few = measured[0], (Documents(max_documents=8), Text(text=("the",)))
    table = Latents(at=("L1.*",), scale=(0.0, 2.0)).measure(model, *few).table().frame
    alone = Latents(at=("L1.*",), scale=(2.0,)).measure(model, *few).table().frame
    np.testing.assert_allclose(table["delta_p_holm"][table["amount"] == 2], alone["delta_p_holm"])
