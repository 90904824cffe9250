"""Commands with --control: itself as control, a control with a known change, and the controls that are refused."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents, Prompts
from streamscope.instruments.prompts.suite import Prompt
from streamscope.instruments.result import Result
from streamscope.interventions import ablate, amplify, hydra, patch, streams
from streamscope.models import load
from tests.interventions import copiers
from tests.interventions.copiers import DELTA, A
from tests.interventions.swapped import suite_of_the_corpus
from tests.tiny import untrained


@pytest.fixture(scope="module")
def changed(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run with other heads: L0.H0 writes forty times as much, L1.H1 nothing."""
    model, folder = load(tiny_run), tmp_path_factory.mktemp("changed")
    with torch.no_grad():
        model.blocks[0].attn.o.weight[0] *= 40
        model.blocks[1].attn.o.weight[1] = 0
    model.save(folder)
    return folder


def write_suite(path: Path, prompts: list[Prompt]) -> Path:
    rows = [{k: v for k, v in asdict(p).items() if v is not None} for p in prompts]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


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


HEADS = {"heads": ("L0.*", "L1.H1"), "draws": 2, "measures": ("loss", "coherence", "sps"), "scale": (0.5,)}
PAIRS = {"heads": ("L0.*",), "size": 2, "method": "mean", "draws": 0}


@pytest.mark.parametrize("how", [HEADS, pytest.param(PAIRS, marks=pytest.mark.slow)], ids=["heads", "pairs"])
def test_ablate(how: dict[str, Any], tiny_run: Path, changed: Path, corpus: tuple[Path, Path], words: Path) -> None:
    """The columns of the run and of the control are those of two single runs."""
    out, measures = words.with_name("t.parquet"), how.get("measures", ("loss",))
    argv = [word for name, x in how.items() for word in (f"--{name}", *map(str, x if isinstance(x, tuple) else (x,)))]
    data = ["--data", str(corpus[1]), "--max-documents", "6", *(["--suite", str(words)] if "sps" in measures else [])]
    ablate.main([str(tiny_run), *argv, *data, "--control", str(changed), "--out", str(out)])
    both = Result.load(out)
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
            low, mid, high = (known[f"{quantity}_difference{end}"] for end in ("_low", "", "_high"))
            assert ((low < mid) & (mid < high)).all()
            assert (known[f"{quantity}_difference_p_holm"] >= known[f"{quantity}_difference_p"]).all()


def test_heads_of_the_last_layer_cannot_change_sps(tiny_run: Path, changed: Path, words: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    options = ["--heads", "L1.H1", "--measures", "sps", "--suite", str(words), "--draws", "0"]
    ablate.main([str(tiny_run), *options, "--control", str(changed), "--out", str(out)])
    table = Result.load(out).tables["sps-control"]
    assert np.isnan(table.frame["delta_difference"][0])
    assert "by construction" in table.missing[0, "delta_difference"]


def test_hydra_of_a_planted_backup(tmp_path: Path) -> None:
    """A backup of κ = 0.5 beside none: the compensation is the difference, the direct effect is not."""
    runs = []
    for kappa in (0.5, 0.0):
        runs.append(tmp_path / f"kappa{kappa:g}")
        copiers.model(backup=kappa).save(runs[-1])
    suite = write_suite(tmp_path / "copies.jsonl", list(copiers.suite().prompts))
    options = ["--tasks", str(suite), "--heads", "L0.H1", "L1.H0", "--groups", "both=L0.H1+L1.H0"]
    itself = kept(hydra, tmp_path, runs[0], *options, control=runs[0])
    for name in ("effects-control", "layers-control"):
        frame = itself.table(name).frame
        columns = [c for c in frame if c.endswith("_difference")]
        assert columns and (frame[columns] == 0).all(axis=None)
        assert frame[[f"{c}_p" for c in columns]].isna().all(axis=None)
    shares = itself.table("made_up")
    assert shares.frame["difference"].dropna().tolist() == [0, 0] and shares.frame["difference_low"].isna().all()
    assert "significantly different from 0" in shares.missing[1, "difference"]
    assert "does not vary" in shares.missing[0, "difference_low"]
    both = kept(hydra, tmp_path, runs[0], *options, control=runs[1])
    row = both.table("effects-control").frame.set_index("group")
    assert both.table("made_up").frame["difference"][0] == pytest.approx(0.5, abs=1e-5)
    made_up = np.mean([2 * A * 0.5 * DELTA / copiers.scale(c * DELTA) for c in (1, -1)])
    assert row.loc["L0.H1", "compensation_difference"] == pytest.approx(made_up, abs=1e-5)
    assert row.loc["L0.H1", "direct_difference"] == pytest.approx(0, abs=1e-6)
    assert row.loc["both", "total_difference"] == pytest.approx(0, abs=1e-5)


def test_patch(tiny_run: Path, changed: Path, words: Path, tmp_path: Path) -> None:
    """Columns are those of two single runs, the control with the sender that the run has chosen."""
    options = ["--suite", str(words), "--contrast", "noun", "--threshold", "1e-6", "--pairs", "4", "--hooks", "z"]
    both = kept(patch, tmp_path, tiny_run, *options, "--senders", "top1:recovery", control=changed)
    (sender,) = both.about["options"]["senders"]
    single = [kept(patch, tmp_path, run, *options, "--senders", sender) for run in (tiny_run, changed)]
    keys = ["direction", "hook", "layer", "head", "position"]
    for name in ("effect", "recovery"):
        table = both.table(f"{name}-control").frame.set_index(keys)
        mine, theirs = (one.table().frame.set_index(keys)[name].reindex(table.index) for one in single)
        np.testing.assert_allclose(table[f"{name}_run"], mine, atol=1e-9)
        np.testing.assert_allclose(table[f"{name}_difference"], mine - theirs, atol=1e-9)
        assert table[f"{name}_difference_p"].notna().any()
    assert set(both.table("paths").frame["sender"]) == {sender}
    table = both.table("paths-control").frame.set_index("reader")["effect_control"].dropna()
    of = single[1].table("paths").frame.set_index("reader")["effect"]
    np.testing.assert_allclose(table, of.reindex(table.index), atol=1e-9)


@pytest.mark.parametrize(
    ("command", "control", "message"),
    [
        *((c, "shallow", "has 1 layer of 4 heads, the model 2 of 4") for c in (ablate, hydra)),
        (ablate, "words", "another vocabulary .* tokens, the model"),
        (amplify, "short", "context of 16 tokens, the model 32"),
        (patch, "missing", "not a run folder"),
        (streams, "std-t", "std-t has one residual stream"),
    ],
)
def test_other_controls_are_refused_before_anything_is_measured(
    command: Any, control: str, message: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / control
    if control == "words":
        copiers.model().save(tmp_path / "planted")
        net = load(tmp_path / "planted")
        untrained("lfa", tmp_path / "planted", folder)
        assert net.config.d_vocab != load(tiny_run).config.d_vocab
    elif control != "missing":
        sizes = {"shallow": {"n_layers": 1}, "short": {"n_ctx": 16}}.get(control, {})
        untrained("std-t" if control == "std-t" else "lfa", tiny_run, folder, **sizes)
    with pytest.raises(InputError, match=message) as caught:
        command.main([str(tiny_run), "--control", str(folder)])
    assert "\n" not in str(caught.value) and not capsys.readouterr().out


@pytest.mark.parametrize(
    ("control", "message"),
    [("words", "another vocabulary .* tokens, the model"), ("std-t", "token_pre.*--hooks that both models have")],
)
def test_a_control_that_cannot_be_patched_alike_is_refused(control: str, message: str, tiny_run: Path, words: Path,
                                                           tmp_path: Path) -> None:  # fmt: skip
    run = tiny_run
    if control == "words":
        copiers.model().save(tmp_path / "planted")
        run = tmp_path / "planted"
    folder = untrained("lfa" if control == "words" else control, run, tmp_path / control)
    options = ["--suite", str(words), "--contrast", "noun", "--pairs", "2", "--method", "attribution"]
    with pytest.raises(InputError, match=message):
        patch.main([str(tiny_run), *options, "--control", str(folder)])


def test_an_empty_control_is_not_the_model_itself(tiny_run: Path) -> None:
    for argv in ([str(tiny_run), "--control", ""], [""]):
        with pytest.raises(InputError, match="the name of a run is empty"):
            hydra.main(argv)
