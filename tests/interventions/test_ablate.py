"""The ablation on planted models: what a head writes is what its removal costs."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments.command import progress_bar
from streamscope.instruments.contract import numerics_of
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.pool_results import pool_results
from streamscope.instruments.result import Result
from streamscope.interventions import Amplify, Latents, observe
from streamscope.interventions.ablate import Ablate, main
from streamscope.interventions.ablate import measure as ablate_measure
from streamscope.interventions.ablate.measure import heads_within
from streamscope.interventions.edits import resample_heads, scale_heads
from streamscope.interventions.observe import document_losses
from streamscope.interventions.patch.activations import attribute_heads
from streamscope.models import build, load
from streamscope.models.head_spec import Head, every_head, parse_heads
from streamscope.models.hooks import edit
from streamscope.models.sweep import chunk_tokens, pass_shares, prefix_of
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import document_batches
from tests.interventions.passes import losses_alone
from tests.tiny import corpus_text


@pytest.fixture(scope="module")
def measured(tiny_run: Path):
    model = load(tiny_run)
    return model, evaluation_shards(tiny_run, model.tokenizer, None)


def opened(model: Any, shards: Any, most: int | None = None) -> OpenDocuments:
    """The documents of the shards, for an instrument."""
    return OpenDocuments(Documents(max_documents=most), shards, model.config.n_ctx, model.tokenizer)


def interrupt_pass(monkeypatch: pytest.MonkeyPatch, n: int) -> list:
    """Ctrl-C comes in the n-th pass of a sweep. Returns the list of passes; after it is cleared, it comes again."""
    passes: list = []

    def interrupted(*given: Any, **options: Any) -> Any:
        passes.append(given)
        if len(passes) == n:
            raise KeyboardInterrupt
        return prefix_of(*given, **options)

    monkeypatch.setattr(observe, "prefix_of", interrupted)
    return passes


def test_every_kind_of_edit_has_the_losses_of_whole_passes(measured) -> None:
    """Embedding, pattern, final norm and resampling too, and how far the predictions move."""
    model, shards = measured
    names = ("hook_embed", "blocks.1.attn.hook_pattern", "blocks.0.hook_mlp_out", "ln_final.hook_normalized")
    sweep = [*({name: lambda x, hook: 0.5 * x} for name in names), resample_heads([Head(1, 1)], seed=2)]
    sweep += [scale_heads([Head(1, 2)], 0.0), scale_heads([Head(0, 0), Head(1, 3)], 0.5)]
    losses = document_losses(model, shards, sweep, batch_size=8, kl="forward", budget=1000)
    for e, edits in enumerate(sweep):
        for index, tokens, targets in document_batches(shards, model.config.n_ctx, 8):
            with torch.no_grad():
                log_q = model(tokens).log_softmax(-1)
                with edit(model, edits):
                    log_p = model(tokens).log_softmax(-1)
            real = targets != -100
            loss = -(log_p.gather(2, targets.clamp(min=0)[..., None])[..., 0] * real).sum(1)
            moved = ((log_q.exp() * (log_q - log_p)).sum(-1) * real).sum(1)
            np.testing.assert_allclose(losses.edited[e, index], loss, rtol=1e-5)
            np.testing.assert_allclose(losses.kl[e, index], moved, rtol=1e-3, atol=1e-5)
    expected, tokens = losses_alone(model, shards, {})
    np.testing.assert_allclose(losses.baseline, expected, rtol=1e-5)
    assert losses.tokens.tolist() == tokens.tolist()


def test_large_batches_are_split_and_no_part_is_a_single_row(measured) -> None:
    model, shards = measured
    shapes: list[torch.Size] = []

    def halved(x: torch.Tensor, hook) -> torch.Tensor:
        shapes.append(x.shape[:2])
        return 0.5 * x

    sweep = [{"blocks.1.hook_mlp_out": halved}]
    losses = document_losses(model, shards, sweep, batch_size=9, max_documents=9, budget=3 * model.config.n_ctx)
    parts = shapes.copy()
    whole = document_losses(model, shards, sweep, batch_size=9, max_documents=9)
    assert [b for b, _ in parts] == [3] * 3 and all(b * t <= 3 * model.config.n_ctx for b, t in parts)
    assert shapes[3:] == [(9, parts[0][1])] and losses.tokens.tolist() == whole.tokens.tolist()
    expected, _ = losses_alone(model, shards, sweep[0], 9)
    for found in (losses, whole):
        np.testing.assert_allclose(found.edited[0], expected, rtol=1e-5)


def test_a_wide_model_runs_fewer_tokens_at_once_and_a_bundled_one_as_many_as_before() -> None:
    assert {chunk_tokens(load(name), "cpu") for name in ("lfa", "stories/llama", "stories/gpt2", "pls")} == {4096}
    assert chunk_tokens(build("llama", "tiny", **{"mlp.d_mlp": 1536}), "cpu") == 1024
    assert chunk_tokens(build("llama", "tiny", **{"mlp.d_mlp": 2**15}), "cpu") == 256


def test_a_head_that_writes_nothing_costs_nothing_and_the_planted_one_costs_its_share(measured, planted) -> None:
    table = Ablate(heads=("L1.*",)).measure(planted, opened(planted, measured[1])).table().frame.set_index("head")
    assert table.loc["L1.H0", "delta"] == 0.0
    assert table["delta"].abs().idxmax() == "L1.H1"
    assert not table.loc["L1.H1", "delta_low"] <= 0 <= table.loc["L1.H1", "delta_high"]


def test_head_grammar() -> None:
    heads = [Head(layer, h) for layer in (0, 1) for h in range(4)]
    scores = {"score": {h: h.layer + 4.0 * (h.head == 1) + 3.5 * (h.head == 3) - (h.head == 0) for h in heads}}
    scores["score"][Head(1, 1)] = -0.5
    for spec, labels in {
        "L1.H2": "L1.H2", "L0.*": "L0.H0 L0.H1 L0.H2 L0.H3", "L0-1.H1-2": "L0.H1 L0.H2 L1.H1 L1.H2",
        "*.H3": "L0.H3 L1.H3", "top2:score": "L0.H1 L1.H3", "bottom1:score": "L0.H0",
    }.items():  # fmt: skip
        assert " ".join(h.label for h in parse_heads(spec, 2, 4, scores)) == labels
    assert len(parse_heads("all", 6, 6)) == 36
    drawn = parse_heads("random3:7", 6, 6)
    assert drawn == parse_heads("random3:7", 6, 6) != parse_heads("random3:8", 6, 6) and len(set(drawn)) == 3
    assert parse_heads(["L1.H0", "L0.*", "L1.H0"], 2, 2) == [Head(0, 0), Head(0, 1), Head(1, 0)]


@pytest.mark.parametrize("torchs", [False, True])
def test_hooks_that_somebody_attached_are_said(torchs: bool) -> None:
    """A permanent hook changes every loss: title, `about` and one warning say that the model is not the run's."""
    model, how, data = load("stories/gpt2"), Ablate(heads=("L1.H0",), draws=0), Documents("stories:1:3")
    plain = how.measure(model, data)
    assert plain.about["hooked_at"] == [] and "hooked" not in plain.about["model"]
    name = "blocks.2.mlp" if torchs else "blocks.2.hook_mlp_out"
    if torchs:
        handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: output * -2)
    else:
        model.add_hook(name, lambda x, hook: x * -2, is_permanent=True)
    with pytest.warns(UserWarning) as said:
        hooked = how.measure(model, data)
    (line,) = (str(one.message) for one in said)
    assert line.startswith(f"the model has hooks of yours at {name}: ablate measures it with them; to remove them")
    assert "\n" not in line
    assert hooked.about["hooked_at"] == [name] and hooked.about["model"] == "stories/gpt2, hooked"
    base, changed = (one.blocks["loss"].total[0] / one.blocks["loss"].sizes[0] for one in (plain, hooked))
    assert (changed > base).all() and (changed - base).mean() > 0.5
    if torchs:
        handle.remove()
    model.reset_hooks(including_permanent=True)
    assert how.measure(model, data).about == plain.about


def test_dtype_and_autocast_are_said() -> None:
    model, how, data = load("stories/gpt2"), Ablate(heads=("L1.H0",), draws=0), Documents("stories:1:3")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = how.measure(model, data)
        with torch.autocast("cpu", enabled=False):
            off = how.measure(model, data)
    plain = how.measure(model, data)
    assert (cast.about["dtype"], cast.about["autocast"]) == ("float32", "bfloat16")
    assert off.about == plain.about and (plain.about["dtype"], plain.about["autocast"]) == ("float32", None)
    assert (cast.blocks["loss"].total != plain.blocks["loss"].total).any()
    half = how.measure(model.bfloat16(), data)
    assert (half.about["dtype"], half.about["autocast"]) == ("bfloat16", None)
    model.ln_final.float()
    assert how.open(model, data).model is model and numerics_of(model)["dtype"] == "bfloat16, float32"


def test_a_long_sweep_says_first_what_it_will_cost(measured, capsys, monkeypatch) -> None:
    """Deep heads come first and are cheap: the forecast weighs each edit by the layers after it."""
    model, shards = measured
    sweep = [scale_heads([head], 0.0) for head in parse_heads(("all",), model.config.n_layers, model.config.n_heads)]
    options = {"max_documents": 8, "progress": progress_bar("x")}
    document_losses(model, shards, sweep, **options)
    assert "about" not in capsys.readouterr().err, "a short sweep says nothing"
    shares, n = pass_shares(model, [{}, *sweep]), len(sweep) // model.config.n_layers
    blocks, head = sum(p.numel() for p in model.blocks.parameters()), model.head.numel()
    last = (blocks * 3 / 4 / model.config.n_layers + head) / (blocks + head)
    assert shares[0] == 1 and shares[-1] == pytest.approx(last)
    assert (np.diff(shares[1:].reshape(-1, n)) == 0).all() and (np.diff(shares[1::n]) < 0).all()
    now = [0.0]
    monkeypatch.setattr(observe, "time", SimpleNamespace(monotonic=lambda: now[0]))
    forecast = observe.Forecast(progress_bar("x"), model, [{}, *sweep], 100, "8 documents")
    now[0] = 10.0
    forecast(0, 100)  # one unedited pass took 10 s
    line = f"about {observe.duration(10 * shares.sum())} for {len(sweep)} edits on 8 documents; "
    assert line in (said := capsys.readouterr().err) and said.strip().endswith("GB of memory so far")
    forecast(1, 100)
    assert not capsys.readouterr().err, "once"


def test_a_forecast_counts_other_models_as_whole_passes(measured, capsys, monkeypatch) -> None:
    """Two other models, 10 s for each pass: after the first one, all three are announced."""
    model, shards = measured
    now = [0.0]
    monkeypatch.setattr(observe, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(*given: Any, **options: Any) -> Any:
        now[0] += 10
        return prefix_of(*given, **options)

    monkeypatch.setattr(observe, "prefix_of", slow)
    document_losses(model, shards, [model, model], max_documents=8, progress=progress_bar("x"))
    assert "about 30 s for 2 edits on 8 documents" in capsys.readouterr().err


def test_an_interrupted_command_keeps_the_documents_that_it_measured(tmp_path, capsys, monkeypatch) -> None:
    """It says so, replaces no result, and ends as interrupted; a notebook is not told to wait for the rest."""
    passes = interrupt_pass(monkeypatch, 3)
    argv = ["--heads", "L5.*", "--draws", "2", "--batch-size", "2", "--max-documents", "8", "--out"]
    (file := tmp_path / "loss.parquet").write_text("an earlier result")
    with pytest.raises(KeyboardInterrupt):
        main(["lfa", *argv, str(file)])
    said = capsys.readouterr()
    assert "interrupted: 4 of 8 documents measured; the tables are of these" in said.err
    assert file.read_text() == "an earlier result" and "loss.parquet holds an earlier result and stays" in said.out
    part = Result.load(tmp_path / "loss-interrupted.parquet")
    assert part.about["interrupted"] in part.table().title
    passes.clear()
    with pytest.raises(KeyboardInterrupt):  # it does not go on with the second run
        main(["lfa", "std-t", *argv[:-1]])
    assert len(passes) == 3 and "measured; the tables" not in capsys.readouterr().err
    passes.clear()
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C in a notebook
        Ablate(heads=("L5.*",)).measure("lfa", Documents(max_documents=8, batch_size=2), progress=iter)


@pytest.mark.slow  # that of `ablate` is quick
def test_every_kind_of_sweep_is_announced(capsys, monkeypatch) -> None:
    monkeypatch.setattr(observe, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(observe, "LONG_SECONDS", 0.0)
    lines = {
        "amplify": (["lfa", "--max-documents", "2", "--text", "", "--prompt", ""], "documents"),
        "suppress": (["lfa", "--k", "1", "--gates", "0", "--suite", "competing", "--draws", "1"], "prompts"),
        "ablation_effects": (["lfa", "--tasks", "winograd", "--draws", "1"], "cases"),
        "token_effects": (["lfa", "--heads", "L0.H0", "--max-tokens", "100"], "documents"),
    }
    for name, (argv, cases) in lines.items():
        import_module(f"streamscope.interventions.{name}").main(argv)
        assert re.search(rf"about \d+ s for \d+ edits? on \d+ {cases[:-1]}s?;", capsys.readouterr().err), name


@pytest.fixture(scope="module")
def planted(tiny_run: Path):
    """The trained model in which head 1 of layer 1 writes thirty times as much, and head 0 nothing."""
    model = load(tiny_run)
    with torch.no_grad():
        model.blocks[1].attn.o.weight[0] = 0.0  # independent output
        model.blocks[1].attn.o.weight[1] *= 30.0
    return model


def test_attribution_is_the_gradient_by_gates_on_every_head(planted, tiny_run, tmp_path) -> None:
    """A plain loop over documents of unequal length: z of every head times a gate of 1, the loss differentiated."""
    (tmp_path / "uneven.txt").write_text(corpus_text(20, 1, least=3))
    model = planted
    shards = evaluation_shards(tiny_run, model.tokenizer, str(tmp_path / "uneven.txt"))
    gates = torch.ones(model.config.n_layers, model.config.n_heads, requires_grad=True)
    total, n = 0.0, 0
    for i in range(6):
        ids = torch.as_tensor(shards.document(i)[: model.config.n_ctx + 1].tolist())[None]
        names = {f"blocks.{layer}.attn.hook_z": gates[layer] for layer in range(len(gates))}
        with edit(model, {name: lambda z, hook, g=g: z * g[:, None] for name, g in names.items()}):
            log_p = model(ids[:, :-1])[0].log_softmax(-1)
        total, n = total - log_p.gather(1, ids[0, 1:, None]).sum(), n + ids.shape[1] - 1
    (expected,) = torch.autograd.grad(total / n, gates)
    padded = list(document_batches(shards, model.config.n_ctx, 4, 6))
    assert any((targets == -100).any() for _, _, targets in padded)
    found = attribute_heads(model, iter(padded))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_a_screen_finds_the_head_that_matters_and_says_how_good_it_is(planted) -> None:
    model = planted
    documents = Documents(max_documents=8)
    whole = Ablate(draws=3).measure(model, documents).table().frame.set_index("head")
    result = Ablate(screen="attribution:1", draws=3, seed=1).measure(model, documents)
    found = result.table()
    assert len(result.blocks["loss"].cells) <= 1 + 1 + 3 + 1, "the random heads are the controls too"
    frame = found.frame.set_index("head")
    assert frame.index[frame["selection"] == "attribution"].tolist() == ["L1.H1"] == [whole["delta"].abs().idxmax()]
    assert 3 <= len(frame) <= 4
    assert frame["delta"].to_numpy() == pytest.approx(whole.loc[frame.index, "delta"], abs=1e-6)
    missed = frame.drop("L1.H1")
    row = missed.loc[missed["delta"].abs().idxmax()]
    sample = frame if len(frame) == 3 else missed
    rho = stats.spearmanr(sample["attribution"].abs(), sample["delta"].abs()).statistic
    quality = f"rank correlation of sizes among the random ones {rho:.2f}; largest"
    assert f"; 1 of 8 heads by attribution, and 3 at random; {quality}" in found.title
    line = f"{len(missed)} random heads that attribution did not select: {row.name} {row['delta']:+.4f} "
    line += f"({row['delta_low']:+.4f} … {row['delta_high']:+.4f}, 95 % for this head alone)"
    assert found.title.endswith(f"largest effect among the {line}")


def test_a_screen_selects_the_largest_attributions_of_either_sign(planted, monkeypatch) -> None:
    attribution = np.array([[0.1, -0.5, 0.2, 0.0], [-0.3, 0.05, 0.4, -0.15]])
    monkeypatch.setattr(ablate_measure, "attribute_heads", lambda *_: attribution)
    frame = Ablate(screen="attribution:3", draws=3).measure(planted, Documents(max_documents=2)).table().frame
    assert set(frame.loc[frame["selection"] == "attribution", "head"]) == {"L0.H1", "L1.H0", "L1.H2"}


def test_attribution_is_the_change_to_first_order(planted) -> None:
    how = Ablate(screen="attribution:8", scale=(0.98, 1.02), draws=3)
    frame = how.measure(planted, Documents(max_documents=8)).table().frame
    assert len(frame) == 16 and frame["delta"].abs().max() > 1e-5
    assert frame["attribution"].to_numpy() == pytest.approx(frame["delta"].to_numpy(), rel=0.05)


def test_a_budget_measures_what_fits_and_names_the_rest(measured, monkeypatch) -> None:
    model, _ = measured
    documents, whole = Documents(max_documents=8), Ablate().measure(model, Documents(max_documents=8)).table()
    assert Ablate(budget="1h").measure(model, documents).table().frame.equals(whole.frame)
    monkeypatch.setattr(ablate_measure, "heads_within", lambda *_: 3)
    found = Ablate(budget="10m", draws=2).measure(model, documents).table()
    kept = found.frame["head"].tolist()
    left = [head for head in whole.frame["head"] if head not in kept]
    assert len(kept) == 3 and (found.frame["draws"] == 2).all(), "controls are among the heads that fit"
    note = f"--budget 10m: 3 of 8 heads, drawn at random, 5 left out: {', '.join(left)}; controls are drawn from the 3"
    assert found.title.endswith(f"; {note} measured heads")
    assert found.frame["delta"].to_numpy() == pytest.approx(whole.frame.set_index("head").loc[kept, "delta"], abs=1e-6)


def test_a_budget_for_all_given_heads_is_spent_on_controls(measured, monkeypatch) -> None:
    """One given head and time for three: the other two are controls, and those of the whole model."""
    model, _ = measured
    monkeypatch.setattr(ablate_measure, "heads_within", lambda *_: 3)
    result = Ablate(budget="10m", heads=("L1.H1",)).measure(model, Documents(max_documents=8))
    assert result.table().frame[["head", "draws"]].to_numpy().tolist() == [["L1.H1", 2]]
    assert len(result.blocks["loss"].cells) == 1 + 3
    assert result.table().title.endswith("all given heads; controls are drawn from the 3 measured heads")


def test_several_runs_say_which_heads_each_measured(measured, monkeypatch) -> None:
    """A joined table has no titles of its runs, and other heads in every run have no mean."""
    model, documents = measured[0], Documents(max_documents=8)
    parts = []
    for n in (3, 4):
        monkeypatch.setattr(ablate_measure, "heads_within", lambda *_, n=n: n)
        parts.append(Ablate(budget="10m", draws=2).measure(model, documents))
    tables = pool_results(parts).tables
    said = tables["head_selection"].frame["head_selection"].tolist()
    assert [line.split(", drawn")[0] for line in said] == [f"--budget 10m: {n} of 8 heads" for n in (3, 4)]
    assert "loss-runs" not in tables
    whole = [Ablate(heads=("L1.H1",), draws=2).measure(model, documents)] * 2
    assert "head_selection" not in pool_results(whole).tables


def test_what_fits_is_reckoned_from_a_few_heads(measured, monkeypatch) -> None:
    """With a clock of one second a pass and document, 8 heads of 8 documents cost the sum of their shares."""
    model, _ = measured
    how, heads = Ablate(budget="30s"), every_head(model)
    documents, make = how.open(model, Documents(max_documents=8))[Documents], scale_heads
    shares = pass_shares(model, [make([head], 0.0) for head in heads])
    now = [0.0]

    def run(model, shards, sweep) -> None:
        rows = sum(np.minimum(shards.lengths, model.config.n_ctx + 1) - 1)
        now[0] += rows * (1 + pass_shares(model, sweep).sum()) / 100

    monkeypatch.setattr(ablate_measure, "document_losses", run)
    monkeypatch.setattr(ablate_measure, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tokens = sum(len(row) - 1 for row in documents.rows())
    pilot = heads_within(how, model, heads, documents, (0.0,), make, 1e9) and now[0]
    for n in (3, 5):
        now[0], end = 0.0, pilot + tokens * (1 + (n + 0.5) * shares.mean()) / 100
        assert heads_within(how, model, heads, documents, (0.0,), make, end) == n
    now[0] = 0.0
    with pytest.raises(InputError, match="--budget 30s: two heads take about .* s; give more time"):
        heads_within(how, model, heads, documents, (0.0,), make, pilot + 0.01)


@pytest.mark.parametrize(
    ("options", "line"),
    [({"screen": "gradient:3"}, "give attribution:N"), ({"screen": "attribution:0"}, "give attribution:N"),
     ({"screen": "attribution:3", "budget": "1m"}, "give one of them"), ({"budget": "10"}, "such as 90s, 10m or 1.5h"),
     ({"screen": "attribution:3", "method": "mean"}, "--screen needs --method zero"),
     ({"screen": "attribution:3", "size": 2}, "loss of single heads"), ({"budget": "0m"}, "such as 90s, 10m or 1.5h"),
     ({"budget": "1m", "measures": ("loss", "sps")}, "loss of single heads")],
)  # fmt: skip
def test_a_screen_or_a_budget_that_cannot_be_is_refused(options, line: str) -> None:
    with pytest.raises(InputError, match=line):
        Ablate(**options)


def test_no_heads_are_not_all_heads(capsys: pytest.CaptureFixture) -> None:
    """A selection that finds nothing is an error; --heads without a value means all, as its help says."""
    for kind in (Ablate, Amplify):
        with pytest.raises(InputError, match="heads: give at least one"):
            kind(heads=())
    with pytest.raises(InputError, match="at: give at least one"):
        Latents(at=())
    main(["lfa", "--heads", "--draws", "0", "--max-documents", "2", "--batch-size", "2"])
    bare = capsys.readouterr().out
    main(["lfa", "--draws", "0", "--max-documents", "2", "--batch-size", "2", "--heads", "all"])
    assert capsys.readouterr().out == bare and "L0.H0" in bare
