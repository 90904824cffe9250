"""Lenses: known maps, derivatives and divergences against plain ones, files, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian
from transformer_lens.tools.analysis.jacobian_lens import _jacobian_for_prompt, _ordinary_vjp

from streamscope import Documents, InputError, Text, build, load
from streamscope.instruments.open_data import open_data
from streamscope.models.hooks import capture, edit
from streamscope.models.lenses import read_lenses
from streamscope.probes import Lenses, LogitLens
from streamscope.probes.lenses import measure as fitting
from streamscope.probes.lenses.measure import check, jacobians, moments, places, ridge, thinned
from streamscope.probes.stream_states import Place, last_state
from tests.probes.planted import gpt2_and_bridge
from tests.tiny import model_of, some

TOPOLOGIES = ("std-t", "lfa", "dst-kron", "kromcanon", "pls")
DATA = Documents("stories:1:24", max_documents=24)


def test_a_known_map_is_found() -> None:
    """Least squares of a linear function of correlated states with unequal variances is that function."""
    generator = torch.Generator().manual_seed(3)
    mix, A = torch.randn(12, 12, generator=generator), torch.randn(12, 12, generator=generator)
    b, sums = torch.randn(12, generator=generator), torch.zeros(13, 25, dtype=torch.float64)
    for n in (700, 1, 299):
        x = 2 + torch.randn(n, 12, generator=generator) @ mix
        sums += moments(x, x @ A + b)
    found = ridge(sums)
    x = 2 + torch.randn(500, 12, generator=generator) @ mix
    wanted = x @ A + b
    assert (found.to_last(x) - wanted).norm() / wanted.norm() < 1e-3
    assert torch.allclose(found.A[0], torch.linalg.lstsq(x - x.mean(0), wanted - wanted.mean(0)).solution[0], atol=0.05)


def silent_after(model: Any, layer: int) -> Any:
    """The model whose later layers write nothing."""
    with torch.no_grad():
        for block in model.blocks[layer + 1 :]:
            for parameter in (*block.attn.o.parameters(), *block.mlp.down.parameters()):
                parameter.zero_()
    return model


def test_the_lens_of_layers_that_write_nothing_is_the_identity() -> None:
    model = silent_after(model_of("std-t", n_layers=3), 0)
    result = Lenses(kinds=("ridge", "jacobian", "logit"), texts=3).measure(model, DATA)
    frame = result.table().frame.query("lens != 'constant'")
    assert (frame["kl"] < 1e-4).all() and (frame["agreement"] > 0.99).all()
    J, b = (result.arrays[f"jacobian.blocks.0.hook_resid_post.{part}"] for part in "Ab")
    np.testing.assert_allclose(J, np.eye(len(J)), atol=1e-5)
    assert not b.any()
    assert "no layer changes resid: one row for each lens but jacobian" in result.table().title
    rows = {"ridge": [0], "logit": [0], "jacobian": [0, 1, 2]}
    assert frame.groupby("lens")["layer"].apply(list).to_dict() == rows


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_jacobians_are_those_of_torch(name: str) -> None:
    """Mean over texts and positions t of Σ_t' ∂ last(t') / ∂ x(t); BOS and the last position are left out."""
    model = model_of(name)
    rows = [[0, 5, 9, 11, 30], [0, 8, 300, 12]]
    read = [place for place in places(Lenses(), model) if place.layer == 0]
    found = jacobians(model, rows, read)
    streams = [place for place in read if place.stream != "resid" or len(read) == 1]
    assert set(found) == set(streams)
    for place in streams:
        wanted = torch.zeros(model.config.d_model, model.config.d_model)
        for row in rows:
            tokens = torch.tensor([row])
            with torch.no_grad(), capture(model, [place.hook]) as seen:
                last_state(model, tokens)
            start = seen[place.hook].clone()

            def final(x: torch.Tensor, tokens: Any = tokens, start: Any = start, place: Place = place) -> torch.Tensor:
                whole = x if place.part is None else start.index_copy(2, torch.tensor([place.part]), x[:, :, None])
                with edit(model, {place.hook: lambda _, hook: whole}):
                    return last_state(model, tokens)[0, 1:-1].sum(0)

            J = jacobian(final, place.of(start))  # [D, 1, T, D]
            wanted += J[:, 0, 1:-1].mean(1) / len(rows)
        torch.testing.assert_close(found[place].A.T, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", some(TOPOLOGIES, ("lfa",)))
def test_divergences_are_plain_ones(name: str) -> None:
    """KL and first tokens at every position of every held-out document, from the maps in the result's arrays."""
    model = model_of(name, **({"readout.layer_norms": "own"} if name == "pls" else {}))
    how = Lenses(texts=2, steps=3)
    result = how.measure(model, DATA)
    opened = open_data(DATA, model)
    texts, measured = (units["unit"].str.split(":").str[1] for units in (opened.units(), result.blocks["kl"].units))
    held = texts.isin(measured)
    rows = [row for row, chosen in zip(opened.rows(), held, strict=True) if chosen]
    fitted = [row for row, chosen in zip(opened.rows(), held, strict=True) if not chosen]
    assert len(rows) == 6 and len(fitted) == 18
    twin = build(model.config, seed=how.seed)

    def p_of(h: torch.Tensor, layer: int) -> torch.Tensor:
        return torch.softmax(model.layer_norm(layer)(h[None])[0] @ model.head.T, -1)

    last = model.config.n_layers - 1
    with torch.no_grad():
        mean = torch.cat([p_of(last_state(model, torch.tensor([row[:-1]]))[0], last) for row in fitted]).mean(0)
        for record in result.table().frame.to_dict("records"):
            kl, same, n = 0.0, 0, 0
            net = twin if record["lens"] == "untrained" else model
            place = next(p for p in places(how, model) if (p.hook, p.stream) == (record["hook"], record["stream"]))
            live = [p for p in places(how, model)
                    if p.layer == place.layer and f"jacobian.{p.name}.A" in result.arrays]  # fmt: skip
            parts = live if record["lens"] == "jacobian" and place not in live else [place]
            for row in rows:
                tokens = torch.tensor([row[:-1]])
                p = p_of(last_state(model, tokens)[0], last)
                with capture(net, [one.hook for one in parts]) as seen:
                    last_state(net, tokens)
                if record["lens"] == "constant":
                    q = mean.expand_as(p)
                elif record["lens"] == "logit":
                    q = p_of(place.of(seen[place.hook])[0], place.layer)
                else:
                    h = torch.zeros_like(p[:, :1])
                    for one in parts:
                        A, b = (torch.from_numpy(result.arrays[f"{record['lens']}.{one.name}.{x}"]) for x in "Ab")
                        h = h + one.of(seen[one.hook])[0] @ A + b
                    q = p_of(h, last)
                kl += float((p * (p.log() - q.log())).sum())
                same += int((p.argmax(-1) == q.argmax(-1)).sum())
                n += len(p)
            assert record["kl"] == pytest.approx(kl / n, rel=1e-4, abs=1e-5), record
            assert record["agreement"] == pytest.approx(same / n, abs=1.5 / n), record


def test_a_tuned_lens_knows_more_than_an_untrained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "KEPT", 1500)  # of more positions: states and predictions stay together
    how = Lenses(hooks=("blocks.2.hook_context_post",), kinds=("ridge", "tuned", "untrained"), steps=40)
    result = how.measure(load("stories/lfa"), Documents(max_documents=40))
    kl = result.table().frame.set_index("lens")["kl"]
    assert kl["tuned"] < 0.95 * kl["ridge"] < kl["untrained"]
    monkeypatch.undo()  # positions for training are drawn from all
    chosen = thinned(50_000, 0)
    assert chosen.sum() == 16_384 and 0.45 < chosen[:25_000].sum() / chosen.sum() < 0.55
    assert thinned(100, 0).all() and not torch.equal(chosen, thinned(50_000, 1))


def with_another_weight(model: Any) -> Any:
    with torch.no_grad():
        model.embed.weight[7, 7] += 1e-3
    return model


def test_a_file_serves_the_logit_lens_and_no_other_model(tmp_path: Path) -> None:
    model = model_of("std-t")
    path = tmp_path / "lenses.parquet"
    Lenses(kinds=("tuned", "ridge"), steps=3).measure(model, DATA).save(path)
    file = path.with_suffix(".safetensors")
    lenses = read_lenses(file, model)
    assert {kind for kind, _ in lenses.maps} == {"tuned", "ridge"}
    text = Text(text=("Tom saw a cat. He ran.",))
    plain, tuned = (LogitLens(k=3, lens=lens).measure(model, text) for lens in ("", f"{file}:tuned"))
    ids = torch.tensor([model.tokenizer.encode("Tom saw a cat. He ran.")])
    with torch.no_grad(), capture(model, ["blocks.0.hook_resid_post"]) as seen:
        model(ids)
    h = lenses.at("tuned", "blocks.0.hook_resid_post").to_last(seen["blocks.0.hook_resid_post"][0])
    p = torch.softmax(model.ln_final(h[None])[0] @ model.head.T, -1)
    frame = tuned.tables["candidates"].frame.query("layer == 0 and top == 1").sort_values("position")
    np.testing.assert_allclose(frame["probability"], p.amax(-1).detach(), rtol=1e-4)
    assert "lens " in tuned.table().title and "lens " not in plain.table().title.replace("logit lens", "")
    for spec, net, message in (
        (f"{file}:tunde", model, "did you mean tuned"), (f"{file}:jacobian", model, "unknown kind of lens"),
        (f"{file}:untrained", model, "states of an untrained model: give another kind"),
        (str(file), model, "did you mean|no such|give FILE:KIND|missing"),
        (f"{path}:tuned", model, "write one with|cannot be read|is no"),
        (f"{file}:tuned", with_another_weight(model_of("std-t")), "fitted on other weights"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            LogitLens(lens=spec).measure(net, text)
    with pytest.raises(InputError, match="has no tuned lens of blocks.9"):
        lenses.at("tuned", "blocks.9.hook_resid_post")


def test_published_files(tmp_path: Path) -> None:
    """TransformerLens reads ours, and we read what it writes; a model of several streams has none."""
    from transformer_lens.tools.analysis import JacobianLens

    model = model_of("std-t", n_layers=2)
    result = Lenses(kinds=("jacobian",), texts=2).measure(model, DATA)
    result.save(tmp_path / "lens.pt")
    theirs = JacobianLens.load(str(tmp_path / "lens.pt"))
    assert theirs.source_layers == [0, 1] and theirs.n_prompts == 2
    J = torch.from_numpy(result.arrays["jacobian.blocks.0.hook_resid_post.A"]).T
    torch.testing.assert_close(theirs.jacobians[0].float(), J, atol=2e-3, rtol=1e-3)
    theirs.save(str(tmp_path / "theirs.pt"))
    ours = read_lenses(tmp_path / "theirs.pt", model).at("jacobian", "blocks.0.hook_resid_post")
    x = torch.randn(5, model.config.d_model)
    torch.testing.assert_close(ours.to_last(x), x @ J.half().float().T, atol=1e-4, rtol=1e-3)
    with pytest.raises(InputError, match="one stream"):
        Lenses(kinds=("jacobian",), texts=1).measure(model_of("lfa"), DATA).save(tmp_path / "several.pt")
    (tmp_path / "bad.pt").write_bytes(b"no")
    torch.save({"J": {0: torch.eye(8)}}, tmp_path / "narrow.pt")
    for name, net, message in (("lens.pt", with_another_weight(model_of("std-t", n_layers=2)), "on other weights"),
                               ("bad.pt", model, r"bad\.pt"), ("narrow.pt", model, "maps 8 dimensions")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            read_lenses(tmp_path / name, net)


def test_every_hook_has_its_own_jacobian() -> None:
    """Also one inside a layer, of a model with one stream and of one with several."""
    for name, hooks in (("std-t", ("blocks.1.hook_resid_mid", "blocks.1.hook_resid_post")),
                        ("lfa", ("blocks.0.hook_context_mid", "blocks.0.hook_token_post"))):  # fmt: skip
        model = model_of(name)
        read = [Place(hook, hook.split("_")[1], int(hook[7])) for hook in hooks]
        result = Lenses(kinds=("jacobian", "ridge"), hooks=hooks, texts=3).measure(model, DATA)
        fitted, _ = open_data(DATA, model).split(0.25, 0)
        wanted = jacobians(model, list(fitted.rows())[:3], read)
        for place in read:
            np.testing.assert_allclose(result.arrays[f"jacobian.{place.name}.A"], wanted[place].A, atol=1e-6)
        assert result.table().frame.query("lens == 'jacobian'")["kl"].nunique() == 2
    Lenses(kinds=("jacobian", "ridge"), hooks=("blocks.0.hook_context_mid",), texts=3).measure(model, DATA)


def test_rows_are_left_out_only_where_the_lens_is_the_same() -> None:
    """A frozen stream, one state at two hooks, norms of each layer, and a twin that does change its states."""
    result = Lenses(kinds=("logit",)).measure(model_of("lfa"), DATA)
    frame = result.table().frame.query("lens == 'logit'")
    assert frame.groupby("stream")["layer"].count().to_dict() == {"token": 1, "context": 2, "resid": 2}
    assert "no layer changes token" in result.table().title
    hooks = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post")
    result = Lenses(kinds=("logit",), hooks=hooks).measure(model_of("std-t"), DATA)
    assert result.table().frame.query("lens == 'logit'")["hook"].tolist() == [hooks[0], hooks[2]]
    assert "no layer changes" not in result.table().title
    model = silent_after(model_of("pls", **{"readout.layer_norms": "own"}), -1)
    frame = Lenses(kinds=("logit", "ridge", "untrained")).measure(model, DATA).table().frame
    rows = frame.query("stream != 'resid'").groupby("lens")["layer"].nunique().to_dict()
    assert rows["ridge"] == 1 and rows["logit"] == rows["untrained"] == model.config.n_layers


def test_weights_in_bf16_and_fewer_texts_than_wanted(tmp_path: Path) -> None:
    """bf16 differs by its rounding from float32; a file says how many texts there were."""
    tables = []
    for dtype in (torch.float32, torch.bfloat16):
        how = Lenses(kinds=("logit", "ridge", "tuned", "jacobian"), texts=50, steps=3)
        result = how.measure(model_of("std-t").to(dtype), DATA)
        tables.append(result.table().frame.query("lens != 'constant'"))
    np.testing.assert_allclose(tables[1]["kl"], tables[0]["kl"], rtol=0.1, atol=0.05)
    result.save(tmp_path / "lens.pt")
    assert torch.load(tmp_path / "lens.pt")["n_prompts"] == 18, "three of four of 24 documents"


def test_texts_that_are_too_few_or_too_short_are_refused() -> None:
    model = model_of("std-t")
    with pytest.raises(InputError, match="give 3, not 1"):
        Lenses(kinds=("logit",)).measure(model, Documents("stories:1:1"))
    with pytest.raises(InputError, match="longer texts"):
        jacobians(model, [[0, 5]], places(Lenses(), model))


def test_a_bridge_of_a_library_model_has_the_same_derivatives() -> None:
    """TransformerLens' own estimator, of the same texts; positions after BOS that have a next token."""
    _, bridge = gpt2_and_bridge()
    rows = [[0, 5, 9, 11, 30, 4], [0, 8, 70, 12, 3]]
    read = places(Lenses(), bridge)
    found = jacobians(bridge, rows, read)
    assert [place.hook for place in found] == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    for parameter in bridge.parameters():
        parameter.requires_grad_(False)
    theirs = [
        _jacobian_for_prompt(bridge, torch.tensor([row]), source_layers=[0], dim_batch=8, skip_first_positions=1,
                             backward_provider=_ordinary_vjp)[0] for row in rows
    ]  # fmt: skip
    torch.testing.assert_close(found[read[0]].A.T, sum(theirs) / 2, atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="leave untrained out"):
        check(Lenses(), bridge)
