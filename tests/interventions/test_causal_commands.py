"""The instruments of this room run on every preset, and refuse bad input in a line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents, Prompts, Tasks
from streamscope.instruments.result import Result
from streamscope.interventions import AblationEffects, Amplify, Hydra, Patch, SteerHeads, Streams
from streamscope.interventions.ablate import main as ablate
from streamscope.interventions.ablation_effects import main as ablation_effects
from streamscope.interventions.amplify import main as amplify
from streamscope.interventions.hydra import main as hydra
from streamscope.interventions.latents import main as latents
from streamscope.interventions.patch import main as patch
from streamscope.interventions.streams import main as streams
from streamscope.interventions.token_effects import main as token_effects
from streamscope.models import load
from streamscope.text.tokenizer import Tokenizer
from tests.interventions.test_ablate import interrupt_pass
from tests.tiny import MOST_PARTS, randomise, some

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ["std-t", "lfa", "dst-kron", "pls", "c2", "llama", "hdpl", "gpt2", "kromcanon"]
SMALL = ["--tasks", "capitalization-8", "gender-16"]
OWN = ["--clean", "The cat saw the", "--corrupt", "The dog saw the", "--answer", " cat", "--foil", " dog"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A saved tiny model of a preset with the bundled tokenizer."""
    made: dict[str, str] = {}
    tokenizer = Tokenizer.load(ROOT / "models" / "zoo" / "lfa")

    def make(preset: str, **changes: int) -> str:
        key = preset + str(changes)
        if key not in made:
            folder = tmp_path_factory.mktemp("runs") / key.strip("{}")
            sizes = {"d_vocab": 2048, "n_ctx": 128, **changes}
            streamscope.models.build(preset, scale="tiny", seed=len(made), tokenizer=tokenizer, **sizes).save(folder)
            made[key] = str(folder)
        return made[key]

    return make


@pytest.mark.parametrize("preset", some(PRESETS, MOST_PARTS))
def test_every_preset(preset: str, run: Callable[..., str]) -> None:
    """Parts add up, all streams are removed, and the nouns' embeddings carry all that differs between two prompts."""
    model, tasks = randomise(load(run(preset)), std=0.1), Tasks(("capitalization-8",))
    texts = Documents("stories:1:4", max_documents=2)
    named = model.config.residual.streams
    effects = AblationEffects(groups=("entity=L0.H0+L1.H1", "anchor=L1.H2"), draws=1).measure(model, tasks)
    assert len(effects.table().frame) == 2 and (effects.table("log_odds").frame["spread"] > 0).all()
    scaled = SteerHeads(groups=("L0.*",), measures=("task",), scales=(0.0,), draws=1).measure(model, tasks)
    assert (scaled.table("curves").frame["range"] > 0).all()
    parts = Hydra(heads=("L0.H0",)).measure(model, tasks).table().frame
    total = parts["direct"] + parts["compensation"] + parts["mixing"] + parts["norm"]
    assert (total - parts["total"]).abs().max() < 1e-3 and parts["unexplained"].notna().all()
    how = Streams(streams=() if named else ("resid",), method=("zero", "random", "mean", "resample"), draws=1,
                  where=("1", "everywhere"))  # fmt: skip
    removed = how.measure(model, texts).table().frame
    streams = {"streams": {"s0", "s1", "s2", "s3"}}.get(next(iter(named), ""), {*named} or {"resid"})
    assert {*removed["stream"]} == streams and np.isfinite(removed["loss"]).all()
    assert (removed["delta"].abs() > 1e-4).any()
    sharp = Amplify(alpha=(4.0, 0.5), text="a cat sat", picture=("L1.H2",), sample_tokens=2).measure(model, texts)
    curve, seen = sharp.table().frame, sharp.table("picture").frame
    assert curve["alpha"].tolist() == [0.5, 1.0, 4.0] and curve["entropy"].is_monotonic_decreasing
    assert seen["head"].unique().tolist() == ["L1.H2, α = 0.5", "L1.H2, α = 1", "L1.H2, α = 4"]
    np.testing.assert_allclose(seen.groupby(["head", "query"])["attention"].sum(), 1, atol=1e-5)
    assert sharp.table("samples").frame["sample"].str.startswith("Once upon").all()
    noun = Patch(
        contrast="noun", pairs=2, by="all", threshold=1e-6, senders=("L0.mlp",), direction=("denoise", "noise")
    )
    patched = noun.measure(model, Prompts("competing"))
    frame = patched.table().frame
    first = frame[(frame["layer"] == 0) & frame["hook"].isin(("resid_pre", "token_pre", "streams_pre"))]
    whole = first.set_index("direction")["recovery"]
    assert (whole["denoise"], whole["noise"]) == (pytest.approx(1, abs=1e-3), pytest.approx(0, abs=1e-3))
    assert frame["effect"].abs().max() > 1e-4 and (patched.table("attribution").frame["values"] > 0).all()
    assert {"sender", "reader", "recovery"} <= {*patched.table("paths").frame}


@pytest.mark.slow
def test_a_model_beside_its_control_and_found_groups(
    run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "e.parquet"
    options = ["--groups", "found", "--k", "1", "--control", run("c2"), *SMALL]
    ablation_effects([run("pls"), *options, "--draws", "0", "--out", str(out)])
    result = Result.load(out)
    assert set(result.table().frame["group"]) == {"found-entity", "found-anchor", "found-semantic"}
    ratios = result.table("ratios").frame
    assert len(ratios) == 2 * 2 * 3 and (ratios["sd_ratio"] > 0).all()
    assert set(result.table("diagonality").frame["tasks"]) == {"capitalization-8=found-entity, gender-16=found-anchor"}
    assert len(result.table("log_odds-control").frame) == 2 * 3
    assert "found-entity" in result.about["groups"] and "found-entity" in result.about["control"]["groups"]
    assert "Effects of the model divided by effects of the control" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (ablation_effects, ["std-t", "--control", "OTHER"], "has 1 layer of 4 heads, the model 6 of 6"),
        (ablation_effects, ["OTHER"], "entity is L5.H4\\+L5.H5 .* 1 layer of 4 heads; use found"),
        (ablation_effects, ["lfa", "--tasks", "capitalisation"], "did you mean capitalization"),
        (ablation_effects, ["lfa", "--tasks"], "at least one task"),
        (ablation_effects, ["lfa", "--tasks", "coreference"], "no case of 'coreference' can be scored"),
        (ablation_effects, ["no/such/run"], "no/such/run"),
        (hydra, ["lfa", "--heads", "L7.*"], "this model has layers 0 to 5"),
        (amplify, ["lfa", "--heads", "L7.H0"], "this model has layers 0 to 5"),
        (amplify, ["lfa", "--sample-tokens", "999"], "room"),
        (streams, ["lfa", "--streams", "s1"], "s1"),
        (streams, ["std-t"], r"one residual stream.*interventions\.ablate.*--streams resid"),
        (streams, ["lfa", "--streams", "resid"], "token"),
        (streams, ["lfa", "--where", "7"], "--where 7.*layers 0 to 5"),
        (streams, ["lfa", "--where", "hed"], "head or everywhere"),
        (streams, ["lfa", "--streams", "context", "--method", "random"], "resample"),
        (latents, ["lfa"], "lfa has no HDPL projection .*python -m models.train hdpl"),
        (latents, ["stories/hdpl", "--blend", "1"], "--blend takes latents from another prompt"),
        (latents, ["stories/hdpl", "--text", "a", "--source", "b", "c"], "1 --text and 2 --source"),
        (latents, ["stories/hdpl", "--each", "--together"], "leave out --together"),
        (latents, ["stories/hdpl", "--dims", "999"], "L0.q has latent dimensions 0 to .*, not 999"),
        (token_effects, ["lfa", "--heads", "L9.H0"], "this model has layers 0 to"),
        (token_effects, ["lfa", "--groups", "L0.H1=L0.H0", "--heads", "L0.H1"], "name of a single head"),
        (token_effects, ["lfa", "--out", "effects.xlsx"], "effects.parquet"),
        (ablate, ["lfa", "--together", "--size", "2"], "leave out --size and --sets"),
        (ablate, ["lfa", "--sets", "3"], "give a --size of 2 or more"),
        (ablate, ["lfa", "--heads", "top2:foo"], "unknown head score 'foo': known: pds"),
        (patch, ["lfa", "--clean", "x"], "needs all of"),
        (patch, ["lfa", *OWN, "--layers", "7"], "layers 0 to 5"),
        (patch, ["lfa", *OWN, "--senders", "top1:pds"], "recovery"),
        (patch, ["lfa", *OWN, "--senders", "top1:recovery", "--threshold", "1000"], "heads cannot be ranked"),
    ],
)
def test_bad_input_is_one_line(main: Callable, argv: list[str], message: str, run: Callable[..., str]) -> None:
    other = run("lfa", n_layers=1)
    with pytest.raises(InputError, match=message) as caught:
        main([other if a == "OTHER" else a for a in argv])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("main", "options"),
    [
        (ablate, ["--heads", "L5.*", "--draws", "2"]),
        (amplify, ["--alpha", "8", "--prompt", "", "--text", ""]),
        (streams, ["--streams", "token", "--method", "random", "--where", "everywhere", "--draws", "2"]),
    ],
)
def test_an_interrupted_command_has_the_tables_of_what_it_measured(
    main: Callable, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in its third batch it writes what two batches alone give: losses, areas, entropies, draws."""
    argv = ["lfa", *options, "--batch-size", "2", "--out"]
    interrupt_pass(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        main([*argv, str(tmp_path / "part.parquet"), "--max-documents", "8"])
    monkeypatch.undo()
    main([*argv, str(tmp_path / "four.parquet"), "--max-documents", "4"])
    part, four = (Result.load(tmp_path / f"{name}.parquet") for name in ("part", "four"))
    for name, table in four.tables.items():
        pd.testing.assert_frame_equal(part.table(name).frame, table.frame, rtol=1e-4, atol=1e-5)
