"""Abliteration: nothing is written along d, the wrong side does not do that, and what writes nothing along d stays."""

import json
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.result import Result
from streamscope.interventions.abliterate import Abliterate, main
from streamscope.interventions.abliterate.measure import abliterate_weights, largest_output, project_out
from streamscope.interventions.observe import document_losses
from streamscope.models import build, load
from streamscope.models.runs import main as runs
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.probes.directions import main as directions
from tests.interventions.test_ablate import interrupt_pass
from tests.tiny import arguments


def unit(d: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(d, generator=torch.Generator().manual_seed(seed)), dim=0)


def noisy(preset: str, **changes) -> torch.nn.Module:
    """A tiny model with large weights, biases among them."""
    model, generator = build(preset, "tiny", **changes).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p.dtype))
    return model


def tokens() -> torch.Tensor:
    return torch.randint(1, 200, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("preset", ["lfa", "gpt2", "kromcanon", "pls"])
def test_nothing_is_written_along_the_direction(preset: str) -> None:
    model = noisy(preset)
    d = unit(model.config.d_model)
    before = largest_output(model, tokens(), d)
    new = abliterate_weights(model, d, dense=True)
    assert before["attention"] > 1e-2 and before["FFN"] > 1e-2
    after = largest_output(new, tokens(), d)
    assert after["attention"] < 1e-5 * before["attention"] + 1e-6 and after["FFN"] < 1e-5 * before["FFN"] + 1e-6
    assert after["readout"] > 1e-3, "the embedding still writes along d"
    for block in new.blocks:
        for projection in (block.attn.o, block.mlp.down):
            assert (projection.matrix().double() @ d.double()).abs().max() < 1e-6
            if projection.bias is not None:
                assert abs(float(projection.bias.detach() @ d)) < 1e-6
    whole = abliterate_weights(model, d, dense=True, embedding=True)
    assert largest_output(whole, tokens(), d)["readout"] < 1e-4
    assert not torch.equal(model.blocks[0].mlp.down.weight, new.blocks[0].mlp.down.weight)


@pytest.mark.parametrize("preset", ["gpt2", "kromcanon", "llama"])
@pytest.mark.parametrize("embedding", [False, True])
def test_a_model_that_is_only_measured_holds_nothing_but_what_changed(preset: str, embedding: bool) -> None:
    model = noisy(preset)
    d, was = unit(model.config.d_model), {name: x.clone() for name, x in model.state_dict().items()}
    models = [abliterate_weights(model, d, embedding=embedding, share=share) for share in (False, True)]
    assert all(p.requires_grad for new in models for p in new.parameters())
    whole, shared = (new.state_dict() for new in models)
    assert whole.keys() == shared.keys()
    for name, x in model.state_dict().items():
        assert torch.equal(shared[name], whole[name]) and torch.equal(x, was[name]), name
        if x.numel() and name in dict(model.named_parameters()):
            assert (shared[name].data_ptr() == x.data_ptr()) == torch.equal(x, whole[name]), name
            assert whole[name].data_ptr() != x.data_ptr(), name


def test_one_matrix_by_hand() -> None:
    W, d = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    expected = W @ (torch.eye(3, dtype=torch.float64) - torch.outer(d, d))
    torch.testing.assert_close(project_out(W, d), expected)
    torch.testing.assert_close(project_out(W, 3 * d), expected)


def test_the_read_side_leaves_what_is_written() -> None:
    model = noisy("gpt2")
    d = unit(model.config.d_model)
    new = abliterate_weights(model, d, side="read")
    o = new.blocks[0].attn.o.weight  # [out, in], as in the wrong formula W − (W d) d^T
    was = model.blocks[0].attn.o.weight
    torch.testing.assert_close(o, was - torch.outer(was @ d, d))
    assert (o @ d).abs().max() < 1e-6, "the check that the wrong formula passes"
    assert (d @ o).abs().max() > 1e-2, "and the one that it fails"
    assert largest_output(new, tokens(), d)["attention"] > 1e-2
    assert torch.equal(new.blocks[0].mlp.down.weight, model.blocks[0].mlp.down.weight)


def test_a_direction_that_nothing_is_written_along_changes_nothing() -> None:
    model = noisy("kromhc")
    d = unit(model.config.d_model)
    without = abliterate_weights(model, d, embedding=True)
    again = abliterate_weights(without, d, embedding=True)
    with torch.no_grad():
        torch.testing.assert_close(again(tokens()), without(tokens()), rtol=0, atol=2e-5)
        assert (without(tokens()) - model(tokens())).abs().max() > 1e-2


def test_channelized_projections_are_refused_or_made_dense_exactly() -> None:
    model = noisy("dst-kron")
    d = unit(model.config.d_model)
    with pytest.raises(InputError, match="kronecker.*--dense"):
        abliterate_weights(model, d)
    new = abliterate_weights(model, d, dense=True)
    assert new.config.attention.o.kind == "dense" and model.config.attention.o.kind == "kronecker"
    expected = project_out(model.blocks[1].attn.o.matrix(), d)
    torch.testing.assert_close(new.blocks[1].attn.o.matrix(), expected)
    tiny = 1e-6 * d  # projecting out next to nothing: the dense model is the same function
    with torch.no_grad():
        nearly = abliterate_weights(model, tiny, dense=True)
        assert nearly.n_params() > model.n_params()
    with pytest.raises(InputError, match="not 0"):
        abliterate_weights(model, 0 * d, dense=True)


def test_one_changed_model_exists_at_a_time(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each random direction's model is made for a batch and gone before the next."""
    measure = import_module("streamscope.interventions.abliterate.measure")
    alive: list[weakref.ref] = []
    counted, make = [0], measure.changed_model

    def made(*args: Any) -> Any:
        alive[:] = [ref for ref in alive if ref() is not None]
        new = make(*args)
        alive.append(weakref.ref(new))
        counted[0] = max(counted[0], len(alive))
        return new

    monkeypatch.setattr(measure, "changed_model", made)
    Abliterate(draws=3, dense=True).measure(load(tiny_run), Documents("stories:1:9", max_documents=6))
    assert counted == [1]


def test_divergence_of_a_model_from_itself_is_zero(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    result = document_losses(model, shards, [load(tiny_run)], kl="reverse", max_documents=5, batch_size=2)
    assert (result.kl == 0).all() and (result.edited[0] == result.baseline).all() and (result.tokens > 0).all()


def test_command(
    corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "lfa", tmp_path / "new"
    train(arguments(corpus, run, "--set", "n_ctx=64"))
    directions([str(run), "--draws", "0", "--out", str(tmp_path / "d.parquet")])
    file = str(tmp_path / "d.safetensors")
    main([str(run), "--direction", f"{file}:1", "--dense", "--to", str(out), "--max-documents", "8"])
    printed = capsys.readouterr().out
    assert "loss after" in printed and "max |d·output|" in printed
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["parent"]["run"] == str(run) and manifest["direction"]["layer"] == 1
    assert manifest["largest_output"]["after"]["attention"] < 1e-5
    runs(["show", str(out)])
    runs(["list", str(tmp_path)])
    new = load(out)
    evaluation_shards(out, new.tokenizer, None)  # the parent's validation data is known
    assert not torch.equal(new.blocks[0].attn.o.weight, load(run).blocks[0].attn.o.weight)
    assert not list(tmp_path.glob(".*.part"))
    for argv, message in (
        (["--direction", file, "--to", str(out)], "not empty"),
        (["--direction", str(tmp_path / "d.parquet"), "--to", str(tmp_path / "x")], "safetensors|directions|damaged"),
        (["--direction", f"{file}:1", "--stream", "joint", "--to", str(tmp_path / "x")], "dimensions"),
        (["--direction", file, "--to", str(tmp_path / "x"), "--dense", "--control", str(run)], "without it"),
        (["--direction", file, "--to", str(tmp_path / "x")], "independent.*--dense"),
        (["--direction", file, "--side", "read", "--embedding", "--to", str(tmp_path / "x")], "an embedding has none"),
    ):
        with pytest.raises(InputError, match=message):
            main([str(run), *argv])
    assert not (tmp_path / "x").exists()
    read = ["--side", "read", "--dense", "--to", str(tmp_path / "x"), "--max-documents", "4"]
    main([str(run), "--direction", file, *read])
    assert "--side write" in capsys.readouterr().out
    interrupt_pass(monkeypatch, 2)
    cut = ["--dense", "--to", str(tmp_path / "cut"), "--max-documents", "6", "--batch-size", "3"]
    with pytest.raises(KeyboardInterrupt):
        main([str(run), "--direction", file, *cut])
    assert "cut is not written" in capsys.readouterr().err and not (tmp_path / "cut").exists()
    monkeypatch.undo()
    main([str(out), "--direction", file, "--max-documents", "4", "--out", str(tmp_path / "other.parquet")])
    assert Result.load(tmp_path / "other.parquet").about["title"].endswith(f" tokens; direction found in {run}")
    assert len(Result.load(tmp_path / "d.parquet").table().frame) > 0
