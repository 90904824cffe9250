"""The commands of this room: on every preset, with bad input, interrupted, and beside a control."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import streamscope.interventions as room
import streamscope.models
from streamscope.instruments.data import Documents, Prompts, Tasks
from streamscope.instruments.result import Result
from streamscope.interventions import ablate, ablation_effects, amplify, hydra, latents, patch, streams, token_effects
from streamscope.models import load
from tests.interventions import copiers
from tests.interventions.copiers import DELTA, A
from tests.interventions.swapped import suite_of_the_corpus
from tests.interventions.test_ablate import interrupt_pass
from tests.tiny import MOST_PARTS, randomise, refused, some, untrained

PRESETS = ["std-t", "lfa", "dst-kron", "pls", "c2", "llama", "hdpl", "gpt2", "kromcanon"]
OWN = ["--clean", "The cat saw the", "--corrupt", "The dog saw the", "--answer", " cat", "--foil", " dog"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A saved tiny model of a preset with the bundled tokenizer."""
    made: dict[str, str] = {}
    tokenizer = load("lfa").tokenizer

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
    effects = room.AblationEffects(groups=("entity=L0.H0+L1.H1", "anchor=L1.H2"), draws=1).measure(model, tasks)
    assert len(effects.table().frame) == 2 and (effects.table("log_odds").frame["spread"] > 0).all()
    scaled = room.SteerHeads(groups=("L0.*",), measures=("task",), scales=(0.0,), draws=1).measure(model, tasks)
    assert (scaled.table("curves").frame["range"] > 0).all()
    parts = room.Hydra(heads=("L0.H0",)).measure(model, tasks).table().frame
    total = parts["direct"] + parts["compensation"] + parts["mixing"] + parts["norm"]
    assert (total - parts["total"]).abs().max() < 1e-3 and parts["unexplained"].notna().all()
    how = room.Streams(streams=() if named else ("resid",), method=("zero", "random", "mean", "resample"), draws=1,
                  where=("1", "everywhere"))  # fmt: skip
    removed = how.measure(model, texts).table().frame
    streams = {"streams": {"s0", "s1", "s2", "s3"}}.get(next(iter(named), ""), {*named} or {"resid"})
    assert {*removed["stream"]} == streams and np.isfinite(removed["loss"]).all()
    assert (removed["delta"].abs() > 1e-4).any()
    sharp = room.Amplify(alpha=(4.0, 0.5), text="a cat sat", picture=("L1.H2",), sample_tokens=2).measure(model, texts)
    curve, seen = sharp.table().frame, sharp.table("picture").frame
    assert curve["alpha"].tolist() == [0.5, 1.0, 4.0] and curve["entropy"].is_monotonic_decreasing
    assert seen["head"].unique().tolist() == ["L1.H2, α = 0.5", "L1.H2, α = 1", "L1.H2, α = 4"]
    np.testing.assert_allclose(seen.groupby(["head", "query"])["attention"].sum(), 1, atol=1e-5)
    assert sharp.table("samples").frame["sample"].str.startswith("Once upon").all()
    noun = room.Patch(
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
    options = ["--groups", "found", "--k", "1", "--control", run("c2"), "--draws", "0", "--out", str(out)]
    ablation_effects.main([run("pls"), *options, "--tasks", "capitalization-8", "gender-16"])
    result = Result.load(out)
    assert set(result.table().frame["group"]) == {"found-entity", "found-anchor", "found-semantic"}
    ratios = result.table("ratios").frame
    assert len(ratios) == 2 * 2 * 3 and (ratios["sd_ratio"] > 0).all()
    assert set(result.table("diagonality").frame["tasks"]) == {"capitalization-8=found-entity, gender-16=found-anchor"}
    assert len(result.table("log_odds-control").frame) == 2 * 3
    assert "found-entity" in result.about["groups"] and "found-entity" in result.about["control"]["groups"]
    assert "Effects of the model divided by effects of the control" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (ablation_effects, ["std-t", "--control", "OTHER"], "has 1 layer of 4 heads, the model 6 of 6"),
        (ablation_effects, ["OTHER"], "entity is L5.H4\\+L5.H5 .* 1 layer of 4 heads; use found"),
        (ablation_effects, ["lfa", "--tasks", "capitalisation"], "did you mean capitalization"),
        (ablation_effects, ["lfa", "--tasks"], "at least one task"),
        (ablation_effects, ["lfa", "--tasks", "coreference"], "no case of 'coreference' can be scored"),
        (ablation_effects, ["no/such/run"], "no/such/run"),
        (hydra, ["lfa", "--heads", "L7.*"], "this model has layers 0 to 5"),
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
def test_bad_input_is_one_line(command: Any, argv: list[str], message: str, run: Callable[..., str]) -> None:
    other = run("lfa", n_layers=1)
    with refused(message):
        command.main([other if a == "OTHER" else a for a in argv])


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (ablate, ["--heads", "L5.*", "--draws", "2"]),
        (amplify, ["--alpha", "8", "--prompt", "", "--text", ""]),
        (streams, ["--streams", "token", "--method", "random", "--where", "everywhere", "--draws", "2"]),
    ],
)
def test_an_interrupted_command_has_the_tables_of_what_it_measured(
    command: Any, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in its third batch it writes what two batches alone give: losses, areas, entropies, draws."""
    argv = ["lfa", *options, "--batch-size", "2", "--out"]
    interrupt_pass(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        command.main([*argv, str(tmp_path / "part.parquet"), "--max-documents", "8"])
    monkeypatch.undo()
    command.main([*argv, str(tmp_path / "four.parquet"), "--max-documents", "4"])
    part, four = (Result.load(tmp_path / f"{name}.parquet") for name in ("part", "four"))
    for name, table in four.tables.items():
        pd.testing.assert_frame_equal(part.table(name).frame, table.frame, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def changed(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run with other heads: L0.H0 writes forty times as much, L1.H1 nothing."""
    model, folder = load(tiny_run), tmp_path_factory.mktemp("changed")
    with torch.no_grad():
        model.blocks[0].attn.o.weight[0] *= 40
        model.blocks[1].attn.o.weight[1] = 0
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minimal pairs in the words of the tiny corpus."""
    nouns = ("cat", "dog", "bird", "red", "big", "tree", "blue", "ran")
    return suite_of_the_corpus(tmp_path_factory.mktemp("suite") / "words.jsonl", nouns)


def kept(command: Any, folder: Path, run: Path, *options: str, control: Path | None = None) -> Result:
    """Run the command of an instrument, and load its result."""
    more = [] if control is None else ["--control", str(control)]
    out = folder / f"{len(list(folder.iterdir()))}" / "t.parquet"
    command.main([str(run), *options, *more, "--out", str(out)])
    return Result.load(out)


OF_HEADS = {"heads": ("L0.*", "L1.H1"), "draws": 2, "measures": ("loss", "coherence", "sps"), "scale": (0.5,)}
OF_PAIRS = {"heads": ("L0.*",), "size": 2, "method": "mean", "draws": 0}


@pytest.mark.parametrize("how", [OF_HEADS, pytest.param(OF_PAIRS, marks=pytest.mark.slow)], ids=["heads", "pairs"])
def test_ablate(
    how: dict[str, Any], tiny_run: Path, changed: Path, corpus: tuple[Path, Path], words: Path, tmp_path: Path
) -> None:
    """The columns of the run and of the control are those of two single runs."""
    measures = how.get("measures", ("loss",))
    argv = [word for name, x in how.items() for word in (f"--{name}", *map(str, x if isinstance(x, tuple) else (x,)))]
    data = ["--data", str(corpus[1]), "--max-documents", "6", *(["--suite", str(words)] if "sps" in measures else [])]
    both = kept(ablate, tmp_path, tiny_run, *argv, *data, control=changed)
    assert both.about["control"]["model"] == f"lfa ({changed})"
    opened = [Documents(str(corpus[1]), max_documents=6), *([Prompts(str(words))] if "sps" in measures else [])]
    single = [ablate.Ablate(**how).measure(load(run), *opened) for run in (tiny_run, changed)]
    for block in (*measures, "percent"):
        table = both.tables[f"{block}-control"].frame.set_index(["head", "scale"])
        quantities = [c.removesuffix("_difference") for c in table if c.endswith("_difference")]
        assert {"percent"} == {*quantities} if block == "percent" else {"delta"} <= {*quantities}
        assert block != "loss" or ("interaction" in quantities) == ("size" in how)
        for quantity in quantities:
            of = [one.tables["loss" if block == "percent" else block].frame for one in single]
            a, b = (frame.set_index(["head", "scale"])[quantity].reindex(table.index).astype(float) for frame in of)
            for end, expected in (("run", a), ("control", b), ("difference", a - b)):
                np.testing.assert_allclose(table[f"{quantity}_{end}"], expected, atol=1e-9)
            known = table[table[f"{quantity}_difference_p"].notna()]
            low, mid, high, p, holm = (
                known[f"{quantity}_difference{end}"] for end in ("_low", "", "_high", "_p", "_p_holm")
            )
            assert ((low < mid) & (mid < high) & (holm >= p)).all()
    if "sps" in measures:  # which heads of the last layer cannot change
        sps = both.tables["sps-control"]
        at = sps.frame["head"].tolist().index("L1.H1")
        assert np.isnan(sps.frame["delta_difference"][at])
        assert "by construction" in sps.missing[at, "delta_difference"]


def test_hydra_of_a_planted_backup(tmp_path: Path) -> None:
    """A backup of κ = 0.5 beside none: the compensation is the difference, the direct effect is not."""
    backed, alone, suite = (tmp_path / name for name in ("backed", "alone", "copies.jsonl"))
    for run, kappa in ((backed, 0.5), (alone, 0.0)):
        copiers.model(backup=kappa).save(run)
    prompts = [{k: v for k, v in asdict(p).items() if v is not None} for p in copiers.suite().prompts]
    suite.write_text("\n".join(map(json.dumps, prompts)))
    options = ["--tasks", str(suite), "--heads", "L0.H1", "L1.H0", "--groups", "both=L0.H1+L1.H0"]
    itself, both = (kept(hydra, tmp_path, backed, *options, control=control) for control in (backed, alone))
    for name in ("effects-control", "layers-control"):
        frame = itself.table(name).frame
        columns = [c for c in frame if c.endswith("_difference")]
        assert columns and (frame[columns] == 0).all(axis=None)
        assert frame[[f"{c}_p" for c in columns]].isna().all(axis=None)
    shares = itself.table("made_up")
    assert shares.frame["difference"].dropna().tolist() == [0, 0] and shares.frame["difference_low"].isna().all()
    assert "significantly different from 0" in shares.missing[1, "difference"]
    assert "does not vary" in shares.missing[0, "difference_low"]
    row = both.table("effects-control").frame.set_index("group")
    assert both.table("made_up").frame["difference"][0] == pytest.approx(0.5, abs=1e-5)
    made_up = np.mean([2 * A * 0.5 * DELTA / copiers.scale(c * DELTA) for c in (1, -1)])
    for group, part, expected in (("L0.H1", "compensation", made_up), ("L0.H1", "direct", 0), ("both", "total", 0)):
        assert row.loc[group, f"{part}_difference"] == pytest.approx(expected, abs=1e-5)


def test_patch(tiny_run: Path, changed: Path, words: Path, tmp_path: Path) -> None:
    """Columns are those of two single runs, the control with the sender that the run has chosen."""
    options = ["--suite", str(words), "--contrast", "noun", "--threshold", "1e-6", "--pairs", "4", "--hooks", "z"]
    both = kept(patch, tmp_path, tiny_run, *options, "--senders", "top1:recovery", control=changed)
    (sender,) = both.about["options"]["senders"]
    single = [kept(patch, tmp_path, run, *options, "--senders", sender) for run in (tiny_run, changed)]
    places = ["direction", "hook", "layer", "head", "position"]
    for name, column, of, keys in (
        *((f"{name}-control", name, "patches", places) for name in ("effect", "recovery")),
        ("paths-control", "effect", "paths", ["reader"]),
    ):
        table = both.table(name).frame.set_index(keys)
        mine, theirs = (one.table(of).frame.set_index(keys)[column].reindex(table.index) for one in single)
        for end, expected in (("run", mine), ("control", theirs), ("difference", mine - theirs)):
            np.testing.assert_allclose(table[f"{column}_{end}"], expected, atol=1e-9)
        assert table[f"{column}_difference_p"].notna().any()
    assert set(both.table("paths").frame["sender"]) == {sender}


@pytest.mark.parametrize(
    ("command", "control", "message"),
    [
        *((c, "shallow", "has 1 layer of 4 heads, the model 2 of 4") for c in (ablate, hydra)),
        (ablate, "words", "another vocabulary .* tokens, the model"),
        (patch, "words", "another vocabulary .* tokens, the model"),
        (amplify, "short", "context of 16 tokens, the model 32"),
        (patch, "missing", "not a run folder"),
        (patch, "std-t", "token_pre.*--hooks that both models have"),
        (streams, "std-t", "std-t has one residual stream"),
    ],
)
def test_other_controls_are_refused_before_anything_is_measured(
    command: Any, control: str, message: str, tiny_run: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, run, options = tmp_path / control, tiny_run, []
    if command is patch:
        options = ["--suite", str(words), "--contrast", "noun", "--pairs", "2", "--method", "attribution"]
    if control == "words":
        run = tmp_path / "planted"
        copiers.model().save(run)
    if control != "missing":
        sizes = {"shallow": {"n_layers": 1}, "short": {"n_ctx": 16}}.get(control, {})
        untrained("std-t" if control == "std-t" else "lfa", run, folder, **sizes)
    with refused(message):
        command.main([str(tiny_run), *options, "--control", str(folder)])
    assert not capsys.readouterr().out


def test_an_empty_control_is_not_the_model_itself(tiny_run: Path) -> None:
    for argv in ([str(tiny_run), "--control", ""], [""]):
        with refused("the name of a run is empty"):
            hydra.main(argv)
