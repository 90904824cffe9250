"""The ablation on planted models: what a head writes is what its removal costs, alone, in sets, beside controls."""

import re
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from streamscope.cli.errors import InputError
from streamscope.instruments import progress
from streamscope.instruments.contract import numerics_of
from streamscope.instruments.data import Documents
from streamscope.instruments.figures import Matrix
from streamscope.instruments.figures.drawing import draw
from streamscope.instruments.observations import estimate
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.progress import progress_bar
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.result import Result, pool_results
from streamscope.instruments.table import Table, key, number
from streamscope.interventions import Amplify, Latents, observe
from streamscope.interventions.ablate import Ablate, main
from streamscope.interventions.ablate import measure as ablate_measure
from streamscope.interventions.ablate.measure import cells_of, contrasts_of, heads_within
from streamscope.interventions.controls import IDENTITY, MOST_SETS, NO_DRAWS, Sweep, head_sets, plan
from streamscope.interventions.edits import resample_heads, scale_heads
from streamscope.interventions.observe import MEASURES, document_losses
from streamscope.interventions.patch.activations import attribute_heads
from streamscope.models import build, load
from streamscope.models.head_spec import Head, every_head, parse_heads
from streamscope.models.hooks import edit
from streamscope.models.sweep import chunk_tokens, pass_shares, passes
from streamscope.models.training.data import evaluation_shards
from streamscope.text.shards import document_batches
from tests.instruments.estimates import block, clustered_t, ratio_of_sums
from tests.interventions import copiers
from tests.interventions.copiers import DELTA, log_odds, scale, suite, tokenizer
from tests.interventions.passes import losses_alone
from tests.tiny import corpus_text, untrained


@pytest.fixture(scope="module")
def measured(tiny_run: Path):
    model = load(tiny_run)
    return model, evaluation_shards(tiny_run, model.tokenizer, None)


def opened(model: Any, shards: Any, most: int | None = None) -> OpenDocuments:
    """The documents of the shards, for an instrument."""
    return OpenDocuments(Documents(max_documents=most), shards, model.config.n_ctx, model.tokenizer)


def interrupt_pass(monkeypatch: pytest.MonkeyPatch, n: int) -> list:
    """Ctrl-C comes in the n-th pass of a sweep. Returns the list of passes; after it is cleared, it comes again."""
    calls: list = []

    def interrupted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == n:
            raise KeyboardInterrupt
        return passes(*given, **options)

    monkeypatch.setattr(observe, "passes", interrupted)
    return calls


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


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds, which pass when a test says so."""
    now = [0.0]
    for module in (progress, ablate_measure):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_long_sweep_says_first_what_it_will_cost(measured, capsys, clock) -> None:
    """Deep heads come first and are cheap: the forecast weighs each edit by the layers after it."""
    model, shards = measured
    sweep = [scale_heads([head], 0.0) for head in every_head(model)]
    document_losses(model, shards, sweep, max_documents=8, progress=progress_bar("x"))
    assert "about" not in capsys.readouterr().err, "a short sweep says nothing"
    shares, n = pass_shares(model, [{}, *sweep]), len(sweep) // model.config.n_layers
    blocks, head = sum(p.numel() for p in model.blocks.parameters()), model.head.numel()
    last = (blocks * 3 / 4 / model.config.n_layers + head) / (blocks + head)
    assert shares[0] == 1 and shares[-1] == pytest.approx(last)
    assert (np.diff(shares[1:].reshape(-1, n)) == 0).all() and (np.diff(shares[1::n]) < 0).all()
    forecast = progress.Forecast(progress_bar("x"), shares, 100, "8 documents")
    clock[0] = 10.0
    forecast(0, 100)  # one unedited pass took 10 s
    line = f"about {progress.duration(10 * shares.sum())} for {len(sweep)} edits on 8 documents; "
    assert line in (said := capsys.readouterr().err) and said.strip().endswith("GB of memory so far")
    forecast(1, 100)
    assert not capsys.readouterr().err, "once"


def test_a_forecast_counts_other_models_as_whole_passes(measured, capsys, monkeypatch, clock) -> None:
    """Two other models, 10 s for each pass: after the first one, all three are announced."""
    model, shards = measured

    def slow(*given: Any, **options: Any) -> Any:
        clock[0] += 10
        return passes(*given, **options)

    monkeypatch.setattr(observe, "passes", slow)
    document_losses(model, shards, [model, model], max_documents=8, progress=progress_bar("x"))
    assert "about 30 s for 2 edits on 8 documents" in capsys.readouterr().err


def test_an_interrupted_command_keeps_the_documents_that_it_measured(tmp_path, capsys, monkeypatch) -> None:
    """It says so, replaces no result, and ends as interrupted; a notebook is not told to wait for the rest."""
    calls = interrupt_pass(monkeypatch, 3)
    argv = ["--heads", "L5.*", "--draws", "2", "--batch-size", "2", "--max-documents", "8", "--out"]
    (file := tmp_path / "loss.parquet").write_text("an earlier result")
    with pytest.raises(KeyboardInterrupt):
        main(["lfa", *argv, str(file)])
    said = capsys.readouterr()
    assert "interrupted: 4 of 8 documents measured; the tables are of these" in said.err
    assert file.read_text() == "an earlier result" and "loss.parquet holds an earlier result and stays" in said.out
    part = Result.load(tmp_path / "loss-interrupted.parquet")
    assert part.about["interrupted"] in part.table().title
    calls.clear()
    with pytest.raises(KeyboardInterrupt):  # it does not go on with the second run
        main(["lfa", "std-t", *argv[:-1]])
    assert len(calls) == 3 and "measured; the tables" not in capsys.readouterr().err
    calls.clear()
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C in a notebook
        Ablate(heads=("L5.*",)).measure("lfa", Documents(max_documents=8, batch_size=2), progress=iter)


@pytest.mark.slow  # that of `ablate` is quick
def test_every_kind_of_sweep_is_announced(capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.0)
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
    np.testing.assert_allclose(attribute_heads(model, iter(padded)), expected, rtol=1e-4, atol=1e-7)


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
    monkeypatch.setattr("streamscope.interventions.patch.activations.attribute_heads", lambda *_: attribution)
    frame = Ablate(screen="attribution:3", draws=3).measure(planted, Documents(max_documents=2)).table().frame
    assert set(frame.loc[frame["selection"] == "attribution", "head"]) == {"L0.H1", "L1.H0", "L1.H2"}


def test_attribution_is_the_change_to_first_order(planted) -> None:
    how = Ablate(screen="attribution:8", scale=(0.98, 1.02), draws=3)
    frame = how.measure(planted, Documents(max_documents=8)).table().frame
    assert len(frame) == 16 and frame["delta"].abs().max() > 1e-5
    assert frame["attribution"].to_numpy() == pytest.approx(frame["delta"].to_numpy(), rel=0.05)


def test_a_budget_measures_what_fits_and_names_the_rest(measured, monkeypatch) -> None:
    """Where it has time for more than the given heads, the others are controls, as of the whole model."""
    model, documents = measured[0], Documents(max_documents=8)
    whole = Ablate().measure(model, documents).table().frame
    assert Ablate(budget="1h").measure(model, documents).table().frame.equals(whole)
    monkeypatch.setattr(ablate_measure, "heads_within", lambda *_: 3)
    found = Ablate(budget="10m", draws=2).measure(model, documents).table()
    kept = found.frame["head"].tolist()
    left = [head for head in whole["head"] if head not in kept]
    assert len(kept) == 3 and (found.frame["draws"] == 2).all(), "controls are among the heads that fit"
    note = f"--budget 10m: 3 of 8 heads, drawn at random, 5 left out: {', '.join(left)}; controls are drawn from the 3"
    assert found.title.endswith(f"; {note} measured heads")
    assert found.frame["delta"].to_numpy() == pytest.approx(whole.set_index("head").loc[kept, "delta"], abs=1e-6)
    given = Ablate(budget="10m", heads=("L1.H1",)).measure(model, documents)
    assert given.table().frame[["head", "draws"]].to_numpy().tolist() == [["L1.H1", 2]]
    assert len(given.blocks["loss"].cells) == 1 + 3
    assert given.table().title.endswith("all given heads; controls are drawn from the 3 measured heads")


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


def test_what_fits_is_reckoned_from_a_few_heads(measured, monkeypatch, clock) -> None:
    """With a clock of one second a pass and document, 8 heads of 8 documents cost the sum of their shares."""
    model, _ = measured
    how, heads = Ablate(budget="30s"), every_head(model)
    documents = how.open(model, Documents(max_documents=8))[Documents]
    shares = pass_shares(model, [scale_heads([head], 0.0) for head in heads])

    def run(model, shards, sweep) -> None:
        rows = sum(np.minimum(shards.lengths, model.config.n_ctx + 1) - 1)
        clock[0] += rows * (1 + pass_shares(model, sweep).sum()) / 100

    def within(end: float) -> int:
        clock[0] = 0.0
        return heads_within(how, model, heads, documents, (0.0,), scale_heads, end)

    monkeypatch.setattr(ablate_measure, "document_losses", run)
    tokens = sum(len(row) - 1 for row in documents.rows())
    pilot = within(1e9) and clock[0]
    for n in (3, 5):
        assert within(pilot + tokens * (1 + (n + 0.5) * shares.mean()) / 100) == n
    with pytest.raises(InputError, match="--budget 30s: two heads take about .* s; give more time"):
        within(pilot + 0.01)


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


EVERY = parse_heads("all", 2, 4)


@pytest.fixture(scope="module")
def on_planted(planted, tiny_run: Path):
    return planted, evaluation_shards(tiny_run, planted.tokenizer, None)


def test_a_sweep_over_all_heads_is_its_own_control() -> None:
    sweep = plan([[head] for head in EVERY], [0.0], EVERY, scale_heads)
    assert len(sweep.edits) == 8
    for heads, g, controls in sweep.cells:
        assert controls == [(h,) for h in EVERY if h not in heads]
        assert all((drawn, g) in sweep.index for drawn in controls)


def test_random_sets_are_as_large_and_others() -> None:
    plans = [plan([EVERY[:3]], [0.0, 0.5], EVERY, scale_heads, draws=6, seed=seed) for seed in (3, 3, 4)]
    sweep = plans[0]
    for _, g, controls in sweep.cells:
        assert len({*controls}) == 6 and all(len(drawn) == 3 and drawn != tuple(EVERY[:3]) for drawn in controls)
        for edits in (sweep.edits[sweep.index[drawn, g]] for drawn in controls):  # they are edited as the cell is
            assert all(fn(torch.ones(1, 1, 4, 1), None).min() == g for fn in edits.values())
    assert plans[0].cells == plans[1].cells != plans[2].cells


def test_controls_of_several_sets_are_all_other_sets_of_all_heads(on_planted) -> None:
    model, shards = on_planted
    how = Ablate(heads=("L0.H0-2",), size=2, draws=99)
    seen = how.observe(model, how.open(model, opened(model, shards, 2)), iter)
    given, every = (
        ["+".join(h.label for h in pair) for pair in combinations(heads, 2)] for heads in (EVERY[:3], EVERY)
    )
    controls = [c for c in seen.contrasts["loss"] if c.quantity == "control"]
    assert [c.labels["head"] for c in controls] == given
    for c in controls:
        assert {*seen.blocks["loss"].cells["head"].iloc[list(c.weights)]} == {"unedited", *every} - {c.labels["head"]}


def test_control_is_the_mean_of_the_others(on_planted) -> None:
    model, shards = on_planted
    table = Ablate().measure(model, opened(model, shards)).table().frame.set_index("head")
    base, tokens = losses_alone(model, shards, {})
    change = np.stack([losses_alone(model, shards, scale_heads([head], 0.0))[0] for head in EVERY]) - base
    deltas = change.sum(1) / tokens.sum()
    for i, head in enumerate(EVERY):
        row, others = table.loc[head.label], np.delete(change, i, 0)
        test = clustered_t(change[i] - others.mean(0), tokens)
        assert row["delta"] == pytest.approx(deltas[i], abs=1e-6)
        assert row["control"] == pytest.approx(np.delete(deltas, i).mean(), abs=1e-6)
        assert row["control_sd"] == pytest.approx(np.delete(deltas, i).std(ddof=1), abs=1e-6)
        assert row["above"] == pytest.approx(row["delta"] - row["control"], abs=1e-9)
        assert row["above_p"] == pytest.approx(float(test.p), rel=1e-3)
        assert row["draws"] == 7
    assert table["above"].abs().idxmax() == "L1.H1"
    assert table.loc["L1.H1", "p_rank"] == pytest.approx(2 / 8)  # the largest of eight, on two sides
    assert (table["above_p_holm"] >= table["above_p"]).all()
    assert table.loc["L1.H0", "delta"] == 0.0
    assert table.loc["L1.H0", "above_low"] <= -table.loc["L1.H0", "control"] <= table.loc["L1.H0", "above_high"]


def test_cells_without_controls_say_why(on_planted) -> None:
    model, shards = on_planted
    few = opened(model, shards, 10)
    unchanged = Ablate(heads=("L0.H0",), scale=(1.0,)).measure(model, few).table()
    assert unchanged.missing[0, "control"] == IDENTITY
    without = Ablate(heads=("L0.H0",), draws=0).measure(model, few).table()
    assert without.missing[0, "above_p_holm"] == NO_DRAWS
    assert np.isnan(without.frame["control"][0]) and without.frame["draws"][0] == 0
    most = Ablate(together=True).measure(model, few).table()  # there is no other set of all heads
    assert most.missing[0, "above"] == NO_DRAWS


GRID = [Head(layer, h) for layer in range(6) for h in range(6)]


def test_pairs_are_630_and_random_sets_are_different_and_reproducible() -> None:
    assert head_sets(GRID, 2, None, 0) == list(combinations(GRID, 2)) and len(head_sets(GRID, 2, None, 0)) == 630
    assert head_sets(GRID[:3], 1, None, 0) == [(head,) for head in GRID[:3]]
    drawn = head_sets(GRID, 5, 100, 3)
    assert len(set(drawn)) == 100 and all(len(set(one)) == 5 for one in drawn)
    assert drawn == head_sets(GRID, 5, 100, 3) != head_sets(GRID, 5, 100, 4)
    assert head_sets(GRID[:4], 3, 100, 0) == list(combinations(GRID[:4], 3)), "no more sets than there are"


@pytest.mark.parametrize(
    ("size", "sets", "message"),
    [(37, None, "1 to 36"), (5, None, "376,992 sets of 5"),
     (5, MOST_SETS + 1, "give --sets N")],
)  # fmt: skip
def test_sets_that_there_are_not_or_too_many_of(size: int, sets: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        head_sets(GRID, size, sets, 0)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_a_planted_backup_interacts_by_what_it_made_up_for(kappa: float) -> None:
    """Without the copier the backup adds κδ/s(0), without both nothing is left: interaction −log-odds(κδ/s(0))."""
    net = copiers.model(kappa)
    aligned = align(suite(), tokenizer(), net.config.n_ctx)
    how = Ablate(heads=("L0.H1", "L1.H0", "L1.H3"), size=2, measures=("coherence",), draws=0)
    found = how.measure(net, given_prompts(aligned, net, tokenizer())).table("coherence").frame.set_index("head")
    made_up = np.mean([log_odds(c * kappa * DELTA / scale(0.0), c) for c in (1, -1)])
    at = {"L0.H1+L1.H0": -made_up, "L0.H1+L1.H3": 0.0}
    for head, expected in at.items():
        assert found.loc[head, "interaction"] == pytest.approx(expected, abs=1e-4)
    assert (kappa > 0) == (abs(made_up) > 1)


@pytest.fixture(scope="module")
def large(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Weights so large that effects stand out from rounding."""
    net = load(untrained("lfa", tiny_run, tmp_path_factory.mktemp("large") / "lfa"))
    return net, evaluation_shards(tiny_run, net.tokenizer, None)


def test_interactions_are_those_of_whole_passes(large: tuple) -> None:
    net, shards = large
    heads = [Head(0, 1), Head(0, 2), Head(1, 3)]
    sets = head_sets(heads, 2, None, 0) + head_sets(heads, 3, None, 0)
    named = tuple(f"L{head.layer}.H{head.head}" for head in heads)
    parts = [
        Ablate(heads=named, size=size, scale=(0.0, 0.5)).measure(net, opened(net, shards)).table().frame
        for size in (2, 3)
    ]
    table = pd.concat(parts).set_index(["head", "scale"])
    base, tokens = losses_alone(net, shards, {})
    for g in (0.0, 0.5):
        singles = [(head,) for head in heads]
        change = {one: losses_alone(net, shards, scale_heads(one, g))[0] - base for one in [*singles, *sets]}
        for one in sets:
            beyond = change[one] - sum(change[head,] for head in one)
            expected, row = ratio_of_sums(beyond, tokens), table.loc["+".join(h.label for h in one), g]
            got = row[["interaction", "interaction_low", "interaction_high"]].to_numpy(float)
            assert expected.sd > 1e-4, "no more than rounding"
            assert got == pytest.approx([expected.mean, expected.low, expected.high], abs=2e-6)
            assert row["interaction_p"] <= row["interaction_p_holm"] <= 1


def test_heads_that_cannot_act_have_no_part_in_an_interaction() -> None:
    """Of three heads the last cannot change the measure: Δ(S) − Δ(a) − Δ(b), by hand on random values."""
    heads = (Head(0, 1), Head(1, 0), Head(1, 3))
    sweep = plan([heads], [0.0], GRID, lambda some, g: {}, draws=0, also=[(head,) for head in heads])
    contrasts = contrasts_of(sweep, "sps", lambda some: "" if min(some) < heads[2] else "cannot act")
    values = np.random.default_rng(0).normal(size=(5, 7))  # unedited, the set, and its heads
    row = estimate(block(values, measure=MEASURES["sps"], **cells_of(sweep)), contrasts).wide(["head"])[0].iloc[0]
    base, whole, a, b, _ = values.mean(1)
    alone = a + b - 2 * base
    assert row[["alone", "interaction"]].tolist() == pytest.approx([alone, whole - base - alone])


def test_scale_one_has_no_interaction_and_a_scale_given_twice_is_one(large: tuple) -> None:
    net, shards = large
    same = Ablate(heads=("L0.H0", "L1.H1"), size=2, scale=(1.0,)).measure(net, opened(net, shards)).table()
    assert same.frame["interaction"][0] == 0.0
    assert same.missing[0, "interaction_p"] == "the same in every independent case"
    twice = Ablate(heads=("L0.H0",), scale=(0.0, -0.0), draws=0).measure(net, opened(net, shards))
    assert len(twice.table().frame) == 1


def test_small_interactions_of_many_documents_are_tested() -> None:
    """Documents that differ by more than rounding: the error of their mean is below it, the spread is not."""
    pair, noise = (Head(5, 0), Head(5, 1)), np.random.default_rng(0).standard_normal((2, 400))
    sets = [pair, *((head,) for head in pair)]
    sweep = Sweep([{}] * 3, [(pair, 0.0, [])], {(heads, 0.0): i for i, heads in enumerate(sets)})
    for spread, own in zip((1e-5, 1e-8), noise, strict=True):
        effect = 4e-6 + spread * own
        losses = np.zeros((4, 400))
        losses[1] = 100 * effect
        found, why = estimate(block(losses, 100, **cells_of(sweep)), contrasts_of(sweep, "loss")).wide(["head"])
        expected = stats.ttest_1samp(effect, 0.0).pvalue if spread > 1e-6 else np.nan
        assert found["interaction_p"][0] == pytest.approx(expected, nan_ok=True)
        reason = "" if spread > 1e-6 else "the same in every independent case"
        assert why.get((0, "interaction_p"), "") == reason


def test_a_picture_shows_every_pair_twice() -> None:
    heads = ["+".join(h.label for h in pair) for pair in combinations(GRID[:8], 2)]
    frame = pd.DataFrame({"head": heads, "interaction": np.arange(28.0) % 7 - 3})
    columns = (key("head", "head", "a pair"), number("interaction", "interaction", "nats", "x", "+.4f"))
    table = Table(frame, columns, {}, "pairs", by="interaction", most=8)
    pairs = draw(Matrix("interaction"), Result({"pairs": table})).data[0]
    z = np.array(pairs.z, float)
    assert list(pairs.x) == [h.label for h in GRID[:8]] and np.isnan(np.diag(z)).all()
    assert z[0, 3] == z[3, 0] == frame.set_index("head").loc["L0.H0+L0.H3", "interaction"]
