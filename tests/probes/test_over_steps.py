"""Measures over the snapshots of a training: formulas by hand, a training on a tiny scale, killed and continued."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import streamscope.probes.over_steps
from streamscope.models.checkpoint import load, run_folder
from streamscope.models.errors import InputError
from streamscope.models.train import main as train
from streamscope.models.training.data import evaluation_shards
from streamscope.probes.over_steps import Measuring, Snapshot, _text, halfway, main, over_steps, settling
from streamscope.probes.over_steps_figure import plot
from streamscope.probes.stats.estimators import mean
from streamscope.probes.tables import read_about
from tests.tiny import arguments


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("over")
    found = [folder / "a", folder / "b"]
    for i, out in enumerate(found):
        more = ["--snapshots", "0,4", "--sample-every", "0", "--set", "n_ctx=256", "--lr", "0.02", "--seed", str(i)]
        train(arguments(corpus, out, *more))
    return found


def test_settling_by_hand() -> None:
    #                    token   0  1  2  3
    predicted = torch.tensor([[5, 1, 7, 9], [5, 2, 7, 9], [5, 3, 8, 9], [5, 3, 7, 4]])
    assert settling(predicted).tolist() == [0, 2, 3, 3]


def test_loss_and_depth_are_those_of_the_documents(runs: list[Path]) -> None:
    one = Snapshot(str(runs[0]), 4, "")
    table = streamscope.probes.over_steps.observe(one, Measuring(measures=("loss", "depth"), max_documents=7))
    folder = run_folder(f"{runs[0]}@4")
    model = load(folder)
    shards = evaluation_shards(folder, model.tokenizer, None)
    losses, depths, n = [], [], 0
    for d in range(7):
        ids = torch.tensor(shards.document(d)[: model.config.n_ctx + 1].tolist())[None]
        logits = model.layer_logits(ids[:, :-1])[0]  # [T, layers, V]
        losses.append(torch.nn.functional.cross_entropy(logits[:, -1].double(), ids[0, 1:], reduction="sum"))
        tops = logits.argmax(-1).T
        for t in range(tops.shape[1]):
            layer = tops.shape[0] - 1
            while layer and tops[layer - 1, t] == tops[-1, t]:
                layer -= 1
            depths.append(layer)
        n += ids.shape[1] - 1
    found = over_steps({one: table}).set_index("measure")
    assert found.loc["loss", "value"] == pytest.approx(float(sum(losses)) / n, rel=1e-6)
    assert found.loc["depth", "value"] == pytest.approx(np.mean(depths), rel=1e-12)
    assert (found["n"] == n).all() and (found["clusters"] == 7).all()


def planted(run: str, step: int, values: list[float], preset: str = "lfa", measure: str = "loss") -> pd.DataFrame:
    units = [str(i) for i in range(len(values))]
    table = {"measure": measure, "head": "", "unit": units, "cluster": units, "total": values, "n": 1}
    return pd.DataFrame(table).assign(run=run, step=step, preset=preset)


def test_the_difference_is_paired(runs: list[Path]) -> None:
    # documents differ by whole nats, the runs by 0.1: only the paired difference has a narrow interval
    base = np.arange(10.0)
    noise = np.array([1, -1] * 5) * 0.01
    found = {
        Snapshot("a", 4, ""): planted("a", 4, list(base + 0.1 + noise)),
        Snapshot("b", 4, ""): planted("b", 4, list(base)),
    }
    (row,) = over_steps(found, "b").to_dict("records")
    assert (row["run"], row["step"]) == ("a", 4)
    assert (row["value"], row["control"], row["difference"]) == pytest.approx((4.6, 4.5, 0.1))
    half = 2.2621571628540993 * noise.std(ddof=1) / np.sqrt(10)  # t of 9 degrees of freedom
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-6)
    assert row["ci_high"] - row["ci_low"] > 4
    found[Snapshot("b", 4, "")]["n"] = 2
    with pytest.raises(InputError, match="of other documents or tokens: compare runs with one tokenizer"):
        over_steps(found, "b")
    del found[Snapshot("b", 4, "")]
    assert np.isnan(over_steps(found, "b")["control"].iloc[0]), "the control has no such step"


def test_halfway_by_hand() -> None:
    def curve(values: list[float], width: float = 0.1) -> pd.DataFrame:
        steps = [0, *(2**i for i in range(len(values) - 1))]
        table = {
            "step": steps,
            "value": values,
            "ci_low": np.array(values) - width,
            "ci_high": np.array(values) + width,
        }
        return pd.DataFrame(table).assign(run="a", preset="lfa", measure="loss")

    (row,) = halfway(curve([5.0, 4.9, 2.0, 4.8, 2.5, 1.0])).to_dict("records")
    assert (row["first"], row["last"], row["after"], row["by"]) == (5.0, 1.0, 4, 8), "for good: the dip does not count"
    (row,) = halfway(curve([0.0, 0.0, 1.0])).to_dict("records")
    assert (row["after"], row["by"]) == (1, 2), "upwards as well"
    (row,) = halfway(curve([1.0, 0.0, 1.1])).to_dict("records")
    assert np.isnan(row["by"]) and "do not differ clearly" in row["undefined"]


def test_the_command(runs: list[Path], tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "over.parquet"
    argv = [str(runs[0]), "--control", str(runs[1]), "--max-documents", "5", "--sequences", "3", "--n", "60"]
    argv += ["--measures", "loss", "depth", "induction", "pds", "due", "--device", "cpu"]
    observe, seen = streamscope.probes.over_steps.observe, []

    def dying(snapshot: Snapshot, *rest) -> pd.DataFrame:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(snapshot)
        return observe(snapshot, *rest)

    monkeypatch.setattr(streamscope.probes.over_steps, "observe", dying)
    with pytest.raises(KeyboardInterrupt):
        main([*argv, "--out", str(out)])
    assert not out.exists()
    again = []
    monkeypatch.setattr(streamscope.probes.over_steps, "observe", lambda s, *rest: again.append(s) or observe(s, *rest))
    main([*argv, "--out", str(out)])
    assert len(again) == 4 and not set(again) & set(seen), "snapshots that were measured are not measured again"
    table, half = pd.read_parquet(out), pd.read_parquet(tmp_path / "over-half.parquet")
    assert table["step"].tolist() == [0] * 5 + [4] * 5 + [12] * 5
    assert set(half["measure"]) == set(streamscope.probes.over_steps.MEASURES)
    assert (table.loc[table["measure"] == "loss", "control"] > 0).all()
    heads = table.loc[table["measure"].isin(["induction", "pds"]), "head"]
    assert heads.str.fullmatch(r"L[01]H[0-3]").all()
    loss = table[table["measure"] == "loss"].set_index("step")["value"]
    assert loss[12] < loss[0] - 0.5, "it learns"
    assert read_about(out)["about"]["control"] == str(runs[1])
    assert "over steps" in capsys.readouterr().out and (tmp_path / "over.html").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["over-half.parquet", "over.html", "over.parquet"]
    figure = plot(table)
    assert {trace.name for trace in figure.data if trace.name} == {"a", "control"}


def test_what_is_wrong_is_one_line(runs: list[Path], tiny_run: Path, tmp_path: Path) -> None:
    for argv, line in (
        ([], "give runs with snapshots"),
        (["lfa"], "lfa has no snapshots: train with --snapshots log"),
        ([str(runs[0]), "--measures", "los"], "unknown measure 'los': did you mean loss"),
        ([str(runs[0]), "--steps", "5"], "has no snapshot '5'; it has 0, 4, 12"),
        ([str(runs[0]), "--launch", "ray"], "--launch needs --out"),
        ([str(runs[0]), "--out", "x.csv"], "the table is parquet"),
    ):
        with pytest.raises(InputError, match=line):
            main(argv)


def test_cases_that_share_words_crosswise_are_clustered_by_all_of_them() -> None:
    rng = np.random.default_rng(0)
    words = [(f"a{i}", f"b{j}") for i in range(8) for j in range(8)]
    values = rng.normal(size=8).repeat(8) + np.tile(rng.normal(size=8), 8) + 0.1 * rng.normal(size=64)
    table = planted("a", 4, list(values), measure="due").assign(cluster=[_text(pair) for pair in words])
    (row,) = over_steps({Snapshot("a", 4, ""): table}).to_dict("records")
    both, first = mean(values, words), mean(values, [pair[0] for pair in words])
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((both.ci_low, both.ci_high))
    assert row["clusters"] == 8 and both.ci_high - both.ci_low > 1.1 * (first.ci_high - first.ci_low)
