"""What rebuilt states cost: plain passes, a stream that is a table of tokens, what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from streamscope import Documents, InputError, Tokens
from streamscope.features import Dictionaries, DictionaryQuality
from streamscope.features.dictionary_quality import measure
from streamscope.instruments.open_data import open_data
from streamscope.models.dictionaries import CONFIG, Dictionary, read_dictionary, write_dictionary
from streamscope.models.hooks import capture, edit
from streamscope.models.lenses import weights_digest
from streamscope.models.readout import IGNORE
from tests.tiny import model_of, refused

DATA = Documents("stories:1:24", max_documents=24)


def drawn(folder: Path, model: Any, hook: str, target: str = "", stream: str = "", **about: Any) -> Dictionary:
    """A dictionary of random weights, written to a folder."""
    d, generator = model.config.d_model, torch.Generator().manual_seed(7)
    sizes = {"W_enc": (d, 40), "b_enc": (40,), "W_dec": (40, d), "b_dec": (d,)} | ({"W_skip": (d, d)} if target else {})
    weights = {name: torch.randn(size, generator=generator) / 4 for name, size in sizes.items()}
    found = Dictionary(**weights, threshold=torch.full((40,), 0.3), hook=hook, target=target or hook, stream=stream,
                       about={"k": 5, "weights_digest": weights_digest(model), **about})  # fmt: skip
    write_dictionary(folder, found)
    return found


@pytest.mark.parametrize(
    ("name", "hook", "target", "stream"),
    [("lfa", "blocks.1.hook_context_post", "", "context"), ("kromcanon", "blocks.0.hook_streams_post", "", "s1"),
     ("std-t", "blocks.1.hook_mlp_in", "blocks.1.hook_mlp_out", ""), ("std-t", "hook_embed", "", "")],
)  # fmt: skip
def test_equals_plain_passes(name: str, hook: str, target: str, stream: str, tmp_path: Path) -> None:
    """Losses, KL and squares, document by document, of the dictionary and of what needs none."""
    model = model_of(name)
    found = drawn(tmp_path / "d", model, hook, target, stream)
    result = DictionaryQuality(dictionary=(str(tmp_path / "d"),)).measure(model, DATA)
    frame = result.table().frame.set_index("dictionary")
    opened = open_data(DATA, model)
    texts, measured = (u["unit"].str.split(":").str[1] for u in (opened.units(), result.blocks["loss"].units))
    held = texts.isin(measured).tolist()
    rows = {side: [row for row, h in zip(opened.rows(), held, strict=True) if h == side] for side in (True, False)}
    part = int(stream[1:]) if stream[1:].isdigit() else None
    at = target or hook

    def own(x: torch.Tensor) -> torch.Tensor:
        return x if part is None else x[..., part, :]

    def states(row: list[int], where: str) -> torch.Tensor:
        with torch.no_grad(), capture(model, [where]) as seen:
            model(torch.tensor([row[:-1]]))
        return own(seen[where])[0, 1:]

    known = torch.cat([states(row, at) for row in rows[False]]).double()
    ids = torch.cat([torch.tensor(row[1:-1]) for row in rows[False]])
    mean = known.mean(0)
    _, vectors = torch.linalg.eigh(torch.cov(known.T, correction=0))
    V = vectors[:, -5:]

    def by_token(row: list[int]) -> torch.Tensor:
        return torch.stack([known[ids == i].mean(0) if (ids == i).any() else mean for i in row[1:-1]])

    ways = {
        "d": lambda row, x, y: found.decode(found.encode(x.float()), x.float()),
        "mean per token": lambda row, x, y: by_token(row),
        "5 principal components": lambda row, x, y: mean + (y - mean) @ V @ V.T,
        "mean": lambda row, x, y: mean.expand_as(y),
    }
    assert set(frame.index) == set(ways)
    for way, rebuild in ways.items():
        sums = np.zeros(5)
        for row in rows[True]:
            tokens, targets = torch.tensor([row[:-1]]), torch.tensor(row[1:])
            x, y = states(row, hook), states(row, at)
            new = rebuild(row, x.double(), y.double()).float()

            def put(z: torch.Tensor, hook: Any, new: torch.Tensor = new) -> torch.Tensor:
                z = z.clone()
                own(z)[0, 1:] = new
                return z

            with torch.no_grad():
                before = model(tokens)[0].double().log_softmax(-1)
                with edit(model, {at: put}):
                    after = model(tokens)[0].double().log_softmax(-1)
            n = torch.arange(len(targets))
            sums += [
                float((before[n, targets] - after[n, targets]).sum()), float((before.exp() * (before - after)).sum()),
                len(targets), float((y - new).square().sum()), float((y - mean).square().sum()),
            ]  # fmt: skip
        expected = [sums[0] / sums[2], sums[1] / sums[2], sums[3] / sums[4]]
        assert frame.loc[way, ["increase", "kl", "fvu"]].tolist() == pytest.approx(expected, rel=2e-4, abs=1e-5), way
        wanted = 1 - frame.loc[way, "increase"] / frame.loc["mean", "increase"]
        assert frame.loc[way, "recovered"] == pytest.approx(wanted, abs=1e-4)
    active = torch.cat([found.encode(states(row, hook)) for row in rows[True]]) > 0
    expected = [1 - float(active.any(0).float().mean()), float(active.sum(1).float().mean())]
    assert frame.loc["d", ["dead", "l0"]].tolist() == pytest.approx(expected)
    assert frame.loc["mean", ["dead", "l0"]].isna().all()


def test_the_context_of_a_window_is_rebuilt_as_well(tmp_path: Path) -> None:
    """The loss with the mean state at every position but BOS, of windows; losses are those of scored targets."""
    model, path, hook = model_of("lfa"), tmp_path / "long.jsonl", "blocks.0.hook_context_post"
    words = [" ".join([f"{name} saw a box and ran home to {name}."] * 14) for name in ("Tom", "Mia", "Tim", "Sam")]
    path.write_text("\n".join(json.dumps({"text": text}) for text in words))
    data = Documents(str(path))
    drawn(tmp_path / "d", model, hook, stream="context")
    frame = DictionaryQuality(dictionary=(str(tmp_path / "d"),)).measure(model, data).table().frame
    fitted, measured = open_data(data, model).split(0.25, 0)
    states, sums = list[torch.Tensor](), np.zeros(2)
    for _, tokens, targets in fitted.batches():
        with torch.no_grad(), capture(model, [hook]) as captures:
            model(tokens)
        states.append(captures[hook][(targets != IGNORE) & (tokens != model.tokenizer.bos_id)])
    mean, context = torch.cat(states).mean(0), 0
    for row, unscored in zip(measured.rows(), measured.shards.unscored.tolist(), strict=True):
        tokens, targets = torch.tensor([row[:-1]]), torch.tensor(row[1:])[unscored:]
        context += unscored
        put = torch.where((tokens != model.tokenizer.bos_id)[..., None], mean, 0.0)
        with torch.no_grad():
            before = model(tokens)[0, unscored:]
            with edit(model, {hook: lambda x, hook, put=put: torch.where(put.any(-1, True), put, x)}):
                after = model(tokens)[0, unscored:]
        losses = [torch.nn.functional.cross_entropy(logits, targets, reduction="sum") for logits in (before, after)]
        sums += [float(losses[1] - losses[0]), len(targets)]
    assert context > 0
    assert frame.set_index("dictionary").loc["mean", "increase"] == pytest.approx(sums[0] / sums[1], rel=1e-4)


def test_documents_that_were_trained_on_are_counted(tmp_path: Path) -> None:
    """Against the places of the measured ones in the text; of another text none is known to be."""
    model, to = model_of("lfa"), tmp_path / "found"
    how = Dictionaries(to=to, width=40, k=4, batch=64, controls=False)
    how.measure(model, Tokens("stories:1:20"))
    trained = read_dictionary(str(to / "blocks.1.hook_context_post-s0")).about["documents"]
    assert 10 < trained <= 18
    quality = DictionaryQuality(dictionary=(str(to / "blocks.1.hook_context_post-s0"),))
    data = Documents("stories:1:20")
    result = quality.measure(model, data)
    texts = open_data(data, model).units()["cluster"].drop_duplicates().tolist()
    measured = [texts.index(name) for name in result.blocks["loss"].units["cluster"].drop_duplicates()]
    n = sum(place < trained for place in measured)
    assert n > 0 and f"{n} of {len(measured)} documents were trained on" in result.table().title
    assert "trained on" not in quality.measure(model, Documents("stories:2:20")).table().title


def test_a_stream_that_no_layer_changes_is_a_table_of_tokens(tmp_path: Path) -> None:
    model = model_of("lfa")
    drawn(tmp_path / "token", model, "blocks.1.hook_token_post", stream="token")
    drawn(tmp_path / "context", model, "blocks.1.hook_context_post", stream="context")
    how = DictionaryQuality(dictionary=(str(tmp_path / "token"), str(tmp_path / "context")))
    result = how.measure(model, Documents("stories:1:1500", max_documents=1500))
    title = result.table().title
    assert "blocks.1.hook_token_post holds only a table of tokens" in title
    assert "at blocks.1.hook_context_post the token alone tells more" in title
    assert len(result.table().frame) == 8
    match = result.tables["matches"].frame
    assert match["cosine"].tolist() == pytest.approx([1, 1]) and (match["found"] == 1).all(), "drawn by one seed"
    assert (match["shuffled"] < 0.75).all()
    plain = DictionaryQuality().measure(model, DATA).table().frame
    assert plain["place"].unique().tolist() == ["blocks.1.hook_token_post", "blocks.1.hook_context_post"]
    assert "16 principal components" in plain["dictionary"].tolist()


def test_latents_are_shown_where_they_are_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the largest of plain passes over the measured documents, with the text around the position."""
    monkeypatch.setattr(measure, "MOST", 60)
    model = model_of("kromhc")
    dictionary = drawn(tmp_path / "d", model, "blocks.0.hook_streams_post", stream="s1")
    result = DictionaryQuality(dictionary=(f"{tmp_path / 'd'}:3,30",)).measure(model, DATA)
    opened = open_data(DATA, model)
    measured = set(result.blocks["loss"].units["unit"].str.split(":").str[1])
    values: dict[int, list[tuple[float, str]]] = {3: [], 30: []}
    for unit, row in zip(opened.units()["unit"].str.split(":").str[1], opened.rows(), strict=True):
        if unit in measured:
            with torch.no_grad(), capture(model, [dictionary.hook]) as captures:
                model(torch.tensor([row[:-1]]))
            z = dictionary.encode(captures[dictionary.hook][0, 1:, 1])
            for latent, pairs in values.items():
                words = [model.tokenizer.decode([i]).lstrip(" ").replace("\n", "⏎") for i in row[1 : len(z) + 1]]
                pairs += zip(z[:, latent].tolist(), words, strict=True)
    frame = result.tables["contexts"].frame
    assert {*frame["latent"]} == {3, 30} and not frame["context"].str.contains("endoftext").any(), "BOS is no text"
    for latent, rows in frame.groupby("latent"):
        expected = [pair for pair in sorted(values[latent], reverse=True)[:60] if pair[0] > 0]
        assert rows["value"].tolist() == pytest.approx([value for value, _ in expected], rel=1e-4)
        assert rows["context"].str.extract("⟦(.*)⟧")[0].tolist() == [word for _, word in expected]
        share = np.mean([value > 0 for value, _ in values[latent]])
        assert rows["share"].tolist() == pytest.approx([share] * len(expected))
    with pytest.raises(InputError, match="latent 40 does not exist: the dictionary has 0 to 39"):
        DictionaryQuality(dictionary=(f"{tmp_path / 'd'}:40",)).measure(model, DATA)


@torch.no_grad()
def test_transcoders_are_written_for_circuit_tracer(tmp_path: Path) -> None:
    """A plain reader that computes as circuit-tracer does gives our latents and our rebuilt states."""
    model = model_of("std-t")
    layers = [drawn(tmp_path / f"l{i}", model, f"blocks.{i}.hook_mlp_in", f"blocks.{i}.hook_mlp_out") for i in range(2)]
    result = DictionaryQuality(dictionary=tuple(str(tmp_path / f"l{i}") for i in (1, 0))).measure(model, DATA)
    path = tmp_path / "tracer" / "config.yaml"
    assert result.save(path) == [path, *(path.with_name(f"layer_{i}.safetensors") for i in range(2))]
    assert yaml.safe_load(path.read_text()) == {
        "model_kind": "transcoder_set", "model_name": "", "feature_input_hook": "hook_mlp_in",
        "feature_output_hook": "hook_mlp_out",
    }  # fmt: skip
    x = torch.randn(20, model.config.d_model)
    for i, dictionary in enumerate(layers):
        W = load_file(path.with_name(f"layer_{i}.safetensors"))
        assert W["W_enc"].shape == (40, model.config.d_model)
        pre = torch.nn.functional.linear(x, W["W_enc"], W["b_enc"])
        z = pre * (pre > W["activation_function.threshold"])
        assert (z > 0).any() and (z == 0).any()
        torch.testing.assert_close(z, dictionary.encode(x), atol=1e-6, rtol=0)
        rebuilt = z @ W["W_dec"] + W["b_dec"] + x @ W["W_skip"].T
        torch.testing.assert_close(rebuilt, dictionary.decode(z, x), atol=1e-6, rtol=0)
    drawn(tmp_path / "plain", model, "blocks.0.hook_resid_post")
    shutil.copytree(tmp_path / "l1", tmp_path / "largest")  # the four largest latents, so no thresholds
    config = tmp_path / "largest" / CONFIG
    config.write_text(config.read_text().replace('"jumprelu_skip_transcoder"', '"topk", "k": 4'))
    for names, message in (
        (["plain"], r"blocks\.0\.hook_resid_post is none"), (["l0", "largest"], r"blocks\.1\.hook_mlp_in is none"),
        (["l1"], "every layer from 0 on"), ([], "every layer from 0 on"),
    ):  # fmt: skip
        result = DictionaryQuality(dictionary=tuple(str(tmp_path / name) for name in names)).measure(model, DATA)
        with pytest.raises(InputError, match=message):
            result.save(path)


def test_what_is_refused(tmp_path: Path) -> None:
    model = model_of("std-t")
    drawn(tmp_path / "other", model, "blocks.0.hook_resid_post", weights_digest="0")
    drawn(tmp_path / "lost", model, "blocks.7.hook_resid_post")
    drawn(tmp_path / "none", model, "")
    drawn(tmp_path / "late", model, "blocks.1.hook_mlp_out", "blocks.1.hook_mlp_in")
    for name, line in (("other", "trained on other weights"), ("lost", r"blocks\.7"), ("none", "names no hook"),
                       ("late", r"blocks\.1\.hook_mlp_in comes before blocks\.1\.hook_mlp_out")):  # fmt: skip
        with refused(line):
            DictionaryQuality(dictionary=(str(tmp_path / name),)).measure(model, DATA)
    with refused("give 3, not 2"):
        DictionaryQuality().measure(model, Documents("stories:1:2"))
