"""Stream ablation against loops that keep the streams by hand, for frozen, token-factor and hyper-connected models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamscope.instruments.data import Documents
from streamscope.instruments.table import with_reasons
from streamscope.interventions.edits import hook_means
from streamscope.interventions.streams import Streams
from streamscope.interventions.streams import measure as m
from streamscope.models import build, load
from streamscope.models.config import MHC, FrozenToken, KromHC
from streamscope.models.hooks import edit
from streamscope.models.training.data import evaluation_shards
from tests.interventions.passes import captured, losses_alone, under
from tests.tiny import randomise

TOKENS = torch.randint(1, 200, (3, 9), generator=torch.Generator().manual_seed(0))
TIGHT = dict(rtol=0, atol=1e-10)
OTHER = torch.randn(32, 32, generator=torch.Generator().manual_seed(7)).double()
"""Stands for another text's stream, [n_ctx, D]."""


def make(preset: str, **overrides: Any) -> Any:
    return randomise(build(preset, "tiny", init_std=0.3, **overrides).double().eval(), std=0.2)


Change = Callable[[Tensor], Tensor]


def plain_dual(model: Any, tokens: Tensor, stream: str, change: Change, where: Any, reach: str) -> Tensor:
    """DST Algorithm 1 with two variables: what a reader sees is changed, or the variable itself (`onwards`)."""
    x = {"token": model.embed(tokens), "context": torch.zeros(*tokens.shape, model.config.d_model).double()}
    spec = model.config.residual
    written = "context" if isinstance(spec, FrozenToken) else "token"

    def seen(layer: Any) -> tuple[Tensor, Tensor]:
        here = where == "everywhere" or (where == layer and (reach == "layer" or layer == "head"))
        y = {**x, stream: change(x[stream])} if here else x
        return y["token"], y["context"]

    for layer, block in enumerate(model.blocks):
        if reach == "onwards" and where == layer:
            x[stream] = change(x[stream])
        t, c = seen(layer)
        v = t if spec.values == "token" else t + c
        v = block.ln1_v(v) if block.value_path == "own" else v if block.value_path == "raw" else block.ln1(v)
        x[written] = x[written] + block.attn(block.ln1(t + c), v)
        reads = t + c if spec.order == "parallel" else sum(seen(layer))
        x["context"] = x["context"] + block.mlp(block.ln2(reads))
    return model.ln_final(sum(seen("head"))) @ model.head.T


PLACES = pytest.mark.parametrize(
    ("where", "reach"), [(0, "layer"), (1, "layer"), (1, "onwards"), ("head", ""), ("everywhere", "")]
)
CHANGES: dict[str, Change] = {"zero": lambda x: 0 * x, "other": lambda x: OTHER[: x.shape[1]].expand_as(x)}


def replacement_of(change: str, stream: str) -> m.Replacement:
    """The instrument's own of each of `CHANGES`, for a model of two layers."""
    return m.zero if change == "zero" else m.sequence(dict.fromkeys(m.hook_names(stream, 2), OTHER))


@PLACES
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stream", ["token", "context"])
@pytest.mark.parametrize(
    ("preset", "overrides"), [("lfa", {}), ("pls", {}), ("dst-kron", {}), ("dst-kron", {"residual.order": "parallel"})]
)  # fmt: skip
@torch.no_grad()
def test_two_streams_as_in_the_loop(
    preset: str, overrides: dict, stream: str, change: str, where: Any, reach: str
) -> None:
    model = make(preset, **overrides)
    found = under(model, TOKENS, m.replace_at(stream, replacement_of(change, stream), where, reach, 2))
    torch.testing.assert_close(found, plain_dual(model, TOKENS, stream, CHANGES[change], where, reach), **TIGHT)
    nothing_yet = stream == "context" and where == 0 and preset == "dst-kron" and change == "zero"
    assert ((found - model(TOKENS)).abs().max() < 1e-10) == nothing_yet


def plain_hyper(model: Any, tokens: Tensor, s: int, change: Change, where: Any, reach: str) -> Tensor:
    """X ← H_res X + H_post ⊗ F(Σ H_pre Y), coefficients from the Y that is read (SPEC §1.4).

    Y follows X through the layer with stream s changed before attention and before the FFN, and is dropped after it.
    """
    X = model.embed(tokens) + model.pos_embed.weight[: tokens.shape[1]]
    X = X[:, :, None].repeat(1, 1, 4, 1)

    def changed(X: Tensor) -> Tensor:
        Y = X.clone()
        Y[:, :, s] = change(X[:, :, s])
        return Y

    for layer, block in enumerate(model.blocks):
        X = changed(X) if reach == "onwards" and where == layer else X
        Y = X
        for hc, branch in ((block.attn_hc, lambda h, b=block: b.attend(h, h)), (block.mlp_hc, block.feed_forward)):
            Y = changed(Y) if where == "everywhere" or (where == layer and reach == "layer") else Y
            x = hc.dynamic(Y)
            pre, res = hc.H_pre(x), hc.H_res(x).expand(*tokens.shape, 4, 4)
            post = hc.H_post(hc.dynamic(res @ Y) if hc.spec.post_input == "mixed" else x)
            written = post[..., None] * branch((pre[..., None] * Y).sum(-2))[:, :, None]
            X, Y = res @ X + written, res @ Y + written
        X = Y if where == "everywhere" else X
    X = changed(X) if where in ("everywhere", "head") else X
    return model.ln_final(X.mean(-2)) @ model.head.T


@PLACES
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("residual", [KromHC, MHC])  # matrices that are symmetric, and that are not
@torch.no_grad()
def test_hyper_connections_as_in_the_loop(residual: Any, change: str, where: Any, reach: str) -> None:
    model = make("kromhc", residual=residual(dyn_act="tanh", post_input="mixed", reduce="mean"))
    for name, p in model.named_parameters():
        if "_hc" in name and p.ndim == 2:
            p.normal_(std=0.5, generator=torch.Generator().manual_seed(p.numel()))  # that depend on the streams
        elif name.endswith(("alpha.pre", "alpha.res", "alpha.post")):
            p.fill_(0.7)
    found = under(model, TOKENS, m.replace_at("s2", replacement_of(change, "s2"), where, reach, 2))
    torch.testing.assert_close(found, plain_hyper(model, TOKENS, 2, CHANGES[change], where, reach), **TIGHT)
    assert (found - model(TOKENS)).abs().max() > 1e-4


def test_what_is_known_on_paper() -> None:
    """Without x_e everywhere a frozen model is softmax(W_U ln(E[token])); without x_t it says the same everywhere."""
    model = make("lfa")
    found = under(model, TOKENS, m.replace_at("context", m.zero, "everywhere", "", 2))
    torch.testing.assert_close(found, model.ln_final(model.embed.weight[TOKENS]) @ model.head.T, **TIGHT)
    for edits in (m.replace_at("token", m.zero, "everywhere", "", 2), m.replace_at("token", m.zero, 0, "onwards", 2)):
        found = under(model, TOKENS, edits)
        torch.testing.assert_close(found, found[:1, :1].expand_as(found), **TIGHT)


def test_what_stands_in_the_streams_place(tiny_run: Path) -> None:
    model, rows = load(tiny_run), [[0, 5, 9, 2], [0, 7]]
    mid, pre = "blocks.1.hook_context_mid", "blocks.0.hook_token_pre"
    means, one = hook_means(model, m.hook_names("context", 2), rows), m.stream_of(model, "context", rows[0])
    found = [captured(model, torch.tensor([row]), mid)[mid][0] for row in rows]
    assert torch.equal(one[mid], found[0])
    torch.testing.assert_close(means[mid], torch.cat(found).mean(0), rtol=1e-4, atol=1e-6)
    words, again = (m.random_embeddings(model, "token", 40, 0, draw)[pre] for draw in (0, 1))
    distance = (words[:, None] - model.embed.weight[None]).abs().amax(-1).min(1)
    assert len(words) == model.config.n_ctx and not distance.values.any() and distance.indices.unique().numel() > 5
    assert distance.indices.max() < 40 < model.config.d_vocab, "none of an id without a token"
    assert not torch.equal(words, again)
    plain, scaled = (m.random_embeddings(make("cfm", embed_scale=s), "token", 256, 0, 0)[pre] for s in (1.0, 4.0))
    assert torch.equal(scaled, 4 * plain), "random words are scaled as the embedding is"
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    for draw in range(50):
        ids = m.window(shards, 32, 3, draw)
        assert len(ids) == 32 and ids[0] == 0 and ids == m.window(shards, 32, 3, draw)
        assert not any(shards.document(i)[1:5].tolist() == ids[1:5] for i in range(shards.n_documents))


def test_the_table(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    how = Streams(method=("zero", "resample"), where=("0", "everywhere"), reach=("onwards",), draws=2, seed=5)
    table = how.measure(model, Documents(max_documents=6)).table()
    table = with_reasons(table).set_index(["definition", "where"])
    base, _ = losses_alone(model, shards, {}, 6)
    for row, made in (
        (table.loc["x_t → 0", "everywhere"], [m.zero]),
        (table.loc["x_e → other text", "everywhere"],
         [m.sequence(m.stream_of(model, "context", m.window(shards, model.config.n_ctx, 5, i))) for i in (0, 1)]),
    ):  # fmt: skip
        stream = row["stream"]
        sums = np.stack([losses_alone(model, shards, m.replace_at(stream, r, "everywhere", "", 2), 6)[0] for r in made])
        assert row["delta"] == pytest.approx((sums.mean(0) - base).sum() / row["tokens"], abs=1e-5)
        assert row["percent"] == pytest.approx(100 * (sums.mean(0).sum() / base.sum() - 1), abs=1e-3)
        assert row["percent_low"] < row["percent"] < row["percent_high"] and row["delta_low"] < row["delta"]
    spread = np.std((sums - base).sum(1) / row["tokens"], ddof=1)
    assert table.loc[("x_e → other text", "everywhere"), "draw_sd"] == pytest.approx(spread, abs=1e-5)
    empty = table.loc["x_e → 0", "L0"]
    assert np.isnan(empty["delta"]) and "by construction" in empty["undefined"]
    assert table.loc[("x_t → 0", "everywhere"), "paper_percent"] == 36


def test_a_context_stream_that_an_edit_writes_before_layer_0_is_measured(tiny_run: Path) -> None:
    model, options = load(tiny_run), Streams(streams=("context",), method=("zero",), where=("0",), reach=("onwards",))
    with edit(model, {"blocks.0.hook_context_pre": lambda x, hook: x + torch.arange(x.shape[-1])}):
        (row,) = options.measure(model, Documents(max_documents=4)).table().frame.to_dict("records")
    assert abs(row["delta"]) > 1e-4


def test_places_and_streams_by_default() -> None:
    assert m.parse_places((), ("layer",), 2) == [(0, "layer"), (1, "layer"), ("head", ""), ("everywhere", "")]
    assert m.chosen_streams(make("kromhc"), ()) == ("s0", "s1", "s2", "s3")
