"""Abliteration: nothing is written along d, the wrong side does not do that, and what writes nothing along d stays."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.result import Result
from streamscope.interventions.abliterate import Abliterate, main, measure
from streamscope.interventions.abliterate.measure import abliterate_weights, largest_output, project_out
from streamscope.interventions.observe import document_losses
from streamscope.models import build, load
from streamscope.models.runs import main as runs
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.probes.directions import main as directions
from tests.interventions.test_ablate import interrupt_pass
from tests.tiny import arguments, randomise

TOKENS = torch.randint(1, 200, (3, 12), generator=torch.Generator().manual_seed(0))


def direction_of(model: Any) -> torch.Tensor:
    d = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(0))
    return d / d.norm()


def noisy(preset: str, **changes: Any) -> Any:
    """A tiny model with large weights, biases among them."""
    return randomise(build(preset, "tiny", **changes).eval(), std=0.1, seed=1)


@pytest.mark.parametrize("preset", ["lfa", "gpt2", "kromcanon", "pls"])
def test_nothing_is_written_along_the_direction(preset: str) -> None:
    model = noisy(preset)
    d = direction_of(model)
    new, whole = (abliterate_weights(model, d, dense=True, embedding=embedding) for embedding in (False, True))
    before, after, none = (largest_output(one, TOKENS, d) for one in (model, new, whole))
    for part in ("attention", "FFN"):
        assert before[part] > 1e-2 and after[part] < 1e-5 * before[part] + 1e-6
    assert after["readout"] > 1e-3, "the embedding still writes along d"
    assert none["readout"] < 1e-4
    for block in new.blocks:
        for projection in (block.attn.o, block.mlp.down):
            assert (projection.matrix().double() @ d.double()).abs().max() < 1e-6
            if projection.bias is not None:
                assert abs(float(projection.bias.detach() @ d)) < 1e-6
    assert not torch.equal(model.blocks[0].mlp.down.weight, new.blocks[0].mlp.down.weight)


@pytest.mark.parametrize("preset", ["gpt2", "kromcanon", "llama"])
@pytest.mark.parametrize("embedding", [False, True])
def test_a_model_that_is_only_measured_holds_nothing_but_what_changed(preset: str, embedding: bool) -> None:
    model = noisy(preset)
    d, was = direction_of(model), {name: x.clone() for name, x in model.state_dict().items()}
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
    d = direction_of(model)
    new = abliterate_weights(model, d, side="read")
    o = new.blocks[0].attn.o.weight  # [out, in], as in the wrong formula W − (W d) d^T
    was = model.blocks[0].attn.o.weight
    torch.testing.assert_close(o, was - torch.outer(was @ d, d))
    assert (o @ d).abs().max() < 1e-6, "the check that the wrong formula passes"
    assert (d @ o).abs().max() > 1e-2, "and the one that it fails"
    assert largest_output(new, TOKENS, d)["attention"] > 1e-2
    assert torch.equal(new.blocks[0].mlp.down.weight, model.blocks[0].mlp.down.weight)


def test_a_direction_that_nothing_is_written_along_changes_nothing() -> None:
    model = noisy("kromhc")
    d = direction_of(model)
    without = abliterate_weights(model, d, embedding=True)
    again = abliterate_weights(without, d, embedding=True)
    with torch.no_grad():
        torch.testing.assert_close(again(TOKENS), without(TOKENS), rtol=0, atol=2e-5)
        assert (without(TOKENS) - model(TOKENS)).abs().max() > 1e-2


def test_channelized_projections_are_refused_or_made_dense_exactly() -> None:
    model = noisy("dst-kron", **{"attention.o.bias": True})
    d = direction_of(model)
    for direction, dense, line in ((d, False, "kronecker.*--dense"), (0 * d, True, "not 0")):
        with pytest.raises(InputError, match=line):
            abliterate_weights(model, direction, dense=dense)
    new = abliterate_weights(model, d, dense=True)
    assert new.config.attention.o.kind == "dense" and model.config.attention.o.kind == "kronecker"
    assert new.n_params() > model.n_params()
    was, now = (one.blocks[1].attn.o for one in (model, new))
    torch.testing.assert_close(now.matrix(), project_out(was.matrix(), d))
    torch.testing.assert_close(now.bias, was.bias - (was.bias @ d) * d)


def test_one_changed_model_exists_at_a_time(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each random direction's model is made for a batch and gone before the next."""
    made, alive, make = list[weakref.ref](), list[int](), measure.changed_model

    def counted(*args: Any) -> Any:
        made.append(weakref.ref(new := make(*args)))
        alive.append(sum(ref() is not None for ref in made))
        return new

    monkeypatch.setattr(measure, "changed_model", counted)
    Abliterate(draws=3, dense=True).measure(load(tiny_run), Documents("stories:1:9", max_documents=6))
    assert set(alive) == {1} and len(made) > 3


def test_divergence_of_a_model_from_itself_is_zero(tiny_run: Path) -> None:
    model = load(tiny_run)
    shards = evaluation_shards(tiny_run, model.tokenizer, None)
    result = document_losses(model, shards, [load(tiny_run)], kl="reverse", max_documents=5, batch_size=2)
    assert (result.kl == 0).all() and (result.edited[0] == result.baseline).all() and (result.tokens > 0).all()


def test_command(
    corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out, other, cut = (str(tmp_path / name) for name in ("lfa", "new", "x", "cut"))
    train(arguments(corpus, Path(run), "--set", "n_ctx=64"))
    directions([run, "--draws", "0", "--out", str(tmp_path / "d.parquet")])
    file = str(tmp_path / "d.safetensors")
    main([run, "--direction", f"{file}:1", "--dense", "--to", out, "--max-documents", "8"])
    printed = capsys.readouterr().out
    assert "loss after" in printed and "max |d·output|" in printed
    manifest = json.loads(Path(out, "manifest.json").read_text())
    assert manifest["parent"]["run"] == run and manifest["direction"]["layer"] == 1
    assert manifest["largest_output"]["after"]["attention"] < 1e-5
    runs(["show", out])
    runs(["list", str(tmp_path)])
    new = load(out)
    evaluation_shards(Path(out), new.tokenizer, None)  # the parent's validation data is known
    assert not torch.equal(new.blocks[0].attn.o.weight, load(run).blocks[0].attn.o.weight)
    assert not list(tmp_path.glob(".*.part"))
    for direction, options, message in (
        (file, ["--to", out], "not empty"),
        (str(tmp_path / "d.parquet"), ["--to", other], "safetensors|directions|damaged"),
        (f"{file}:1", ["--stream", "joint", "--to", other], "dimensions"),
        (file, ["--to", other, "--dense", "--control", run], "without it"),
        (file, ["--to", other], "independent.*--dense"),
        (file, ["--side", "read", "--embedding", "--to", other], "an embedding has none"),
    ):
        with pytest.raises(InputError, match=message):
            main([run, "--direction", direction, *options])
    assert not Path(other).exists()
    main([run, "--direction", file, "--side", "read", "--dense", "--to", other, "--max-documents", "4"])
    assert "--side write" in capsys.readouterr().out
    interrupt_pass(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        main([run, "--direction", file, "--dense", "--to", cut, "--max-documents", "6", "--batch-size", "3"])
    assert "cut is not written" in capsys.readouterr().err and not Path(cut).exists()
    monkeypatch.undo()
    main([out, "--direction", file, "--max-documents", "4", "--out", str(tmp_path / "other.parquet")])
    assert Result.load(tmp_path / "other.parquet").about["title"].endswith(f" tokens; direction found in {run}")
