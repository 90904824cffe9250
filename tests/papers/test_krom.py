"""KROM's comparison: what is the loss's and what is decay's, on replays, on weights set by hand, on trained runs."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import InputError
from models.train import main as train
from papers.krom import main, open_runs, read
from papers.krom_conclusion import conclusion
from papers.krom_mixing import factors, without_gradient
from papers.krom_printed import ARCHITECTURES
from papers.losses import Printed, against
from tests.tiny import arguments


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory) -> dict[str, Path]:
    """Two seeds of gpt2 and kromhc, kromhc stored in bf16, kromhc from −2."""
    folder = tmp_path_factory.mktemp("krom")
    plan = {
        "gpt2-0": ("gpt2", "--seed", "0"),
        "gpt2-1": ("gpt2", "--seed", "1"),
        "kromhc-0": ("kromhc", "--seed", "0"),
        "kromhc-1": ("kromhc", "--seed", "1"),
        "bf16-0": ("kromhc", "--seed", "0", "--set", "residual.hc_dtype=bf16"),
        "b2-0": ("kromhc", "--seed", "0", "--set", "residual.b_res=-2"),
    }
    for name, (preset, *more) in plan.items():
        train(arguments(corpus, folder / name, *more, preset=preset))
    return {name: folder / name for name in plan}


def test_replay_without_gradient_is_decay_alone(runs: dict) -> None:
    """b ← b (1 − η_t λ): warm-up of a tenth of the run, then a cosine to a tenth, by hand."""
    (run,) = open_runs([str(runs["kromhc-0"])])
    t, steps = run.config["training"], run.manifest["steps"]
    warmup, b = min(t["warmup"], max(1, steps // 10)), -8.0
    for step in range(steps):
        share = (step + 1) / warmup
        if step >= warmup:
            share = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - 1 - warmup)))
        b *= 1 - 0.005 * share * 0.2
    assert without_gradient(run) == (0.0, pytest.approx(b, abs=1e-5))
    (stored,) = open_runs([str(runs["bf16-0"])])
    assert without_gradient(stored) == (0.0, -8.0), "a step of 8e-3 rounds away beside an ulp of 0.03"


def test_what_the_loss_did_is_what_lies_beyond_the_replay(runs: dict, tmp_path: Path) -> None:
    """Logits set by hand: the replay's in the controls, 0.3 more in one factor, 0.2 less in another."""
    planted = tmp_path / "planted"
    shutil.copytree(runs["kromhc-0"], planted)
    (run,) = open_runs([str(planted)])
    keep, swap = without_gradient(run)
    weights = planted / "model.safetensors"
    with_step = {"step": str(run.manifest["steps"])}
    tensors = load_file(weights)
    names = [n for n in tensors if n.endswith("_hc.b.res")]
    for name in names:
        tensors[name] = torch.tensor([[keep, swap], [keep, swap]])
    tensors["blocks.1.attn_hc.b.res"] = torch.tensor([[keep, swap + 0.3], [keep + 0.2, swap]])
    save_file(tensors, weights, metadata=with_step)
    found = factors(run).set_index(["module", "factor"])
    assert found.loc[("blocks.1.attn_hc", 0), "by_loss"] == pytest.approx(0.3, abs=1e-5)
    assert found.loc[("blocks.1.attn_hc", 1), "by_loss"] == pytest.approx(-0.2, abs=1e-5)
    rest = found.drop(index=[("blocks.1.attn_hc", 0), ("blocks.1.attn_hc", 1)])
    assert rest["by_loss"].abs().max() < 1e-5
    assert not found.loc[("blocks.0.attn_hc", 0), "acts"] and found.loc[("blocks.1.attn_hc", 0), "acts"]
    assert found.loc[("blocks.1.attn_hc", 0), "swap"] == pytest.approx(1 / (1 + math.exp(keep - swap - 0.3)), rel=1e-4)


def test_losses_are_compared_seed_by_seed() -> None:
    """Differences −.1 and −.3 by hand: mean −.2, t interval of one degree of freedom."""
    rows = pd.DataFrame(
        {
            "preset": ["gpt2", "gpt2", "canon", "canon"], "seed": [0, 1, 1, 0], "loss": [5.0, 6.0, 5.7, 4.9],
            "parameters": 10,
        }
    )  # fmt: skip
    table = against(rows, "gpt2", {"gpt2": Printed(6.0, ""), "canon": Printed(5.9, "")}).set_index("preset")
    row = table.loc["canon"]
    assert row["difference"] == pytest.approx(-0.2) and row["printed_difference"] == pytest.approx(-0.1)
    half = 12.7062 * 0.1  # t of 1 degree of freedom times s/√2
    assert (row["ci_low"], row["ci_high"]) == (
        pytest.approx(-0.2 - half, abs=1e-3),
        pytest.approx(-0.2 + half, abs=1e-3),
    )
    assert row["order"] == "unresolved" and row["all_seeds"] == "2 of 2"
    assert "the control itself" in table.loc["gpt2", "undefined"]


def test_the_command_writes_a_page_from_its_tables(runs: dict, tmp_path: Path, capsys) -> None:
    out = tmp_path / "krom"
    main([*(str(path) for path in runs.values()), "--out", str(out)])
    text = (out / "README.md").read_text()
    assert "nan" not in text.lower().replace("kromcanon", "")
    mixing = pd.read_parquet(out / "mixing.parquet")
    assert sorted(mixing["storage"]) == ["bf16", "fp32", "fp32", "fp32"]
    frozen = mixing[mixing["storage"] == "bf16"].iloc[0]
    assert frozen["swap"] == pytest.approx(1 / (1 + math.exp(8)), rel=0.05)
    arms = pd.read_parquet(out / "arms.parquet").set_index("storage")
    assert arms.loc["bf16", "share"] == pytest.approx(1, abs=1e-6), (
        "where decay rounds away, all of the way is the loss's"
    )
    compared = pd.read_parquet(out / "comparison.parquet").set_index("preset")
    assert compared.loc["kromhc", "pairs"] == 2, "bf16 and −2 are no part of it"
    loss = json.loads((runs["gpt2-0"] / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"{ARCHITECTURES['gpt2'].value:.3f}" in text and "python -m models.train kromhc" in text
    assert loss and "validation loss" in capsys.readouterr().out


def test_doubles_and_other_recipes_are_refused(runs: dict, corpus, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs["kromhc-0"], copy)
    with pytest.raises(InputError, match="one arm and seed"):
        open_runs([str(runs["kromhc-0"]), str(copy)])
    other = tmp_path / "other"
    train(arguments(corpus, other, "--lr", "2e-3", preset="gpt2"))
    with pytest.raises(InputError, match=r"training\.lr"):
        open_runs([str(runs["kromhc-0"]), str(other)])
    with pytest.raises(InputError, match="give run folders"):
        main([])


def test_without_the_control_there_is_only_the_mixing(runs: dict) -> None:
    found = read(open_runs([str(runs["kromhc-0"])]))
    assert found.comparison.empty and len(found.mixing) == 1 and len(found.factors) == 8


def _arms(**columns: list) -> pd.DataFrame:
    """Planted runs, one per value of the longest column; the rest as in the recipe."""
    n = max(map(len, columns.values()))
    usual = {
        "preset": "kromhc", "optimizer": "adamw", "storage": "fp32", "lr": 0.005, "decay": 0.2, "steps": 1000,
        "b_res": -8.0, "by_loss": -0.5, "by_loss_max": 0.75, "towards": 3, "factors": 22, "swap": 0.006,
        "swap_dynamic": 0.008, "swap_without_gradient": 0.0096, "streams": "mix", "stream_cosine": 0.97,
        "shuffled_cosine": 0.96,
    }  # fmt: skip
    return pd.DataFrame({name: columns.get(name, [value] * n) for name, value in usual.items()})


BIASES = [-8.0, -8.0, -2.0, -2.0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"b_res": BIASES}, "moves away from mixing"),
        ({"b_res": BIASES, "by_loss": [0.5, 0.25, 0.5, 1.0]}, "moves towards mixing"),
        ({"b_res": BIASES, "by_loss": [-0.5, -0.5, 0.5, -0.5]}, "not resolved"),
        ({"b_res": [-8.0, -8.0]}, "not resolved"),
        ({"b_res": BIASES[1:]}, "not resolved"),
        ({"b_res": BIASES, "optimizer": ["sgd"] * 4}, "not resolved"),
        ({"b_res": BIASES, "storage": ["bf16"] * 4}, "not resolved"),
    ],
)
def test_the_verdict_needs_two_biases_of_two_seeds_that_agree(columns: dict, said: str) -> None:
    assert said in conclusion(_arms(**columns))[-1]


def test_storage_is_judged_within_a_recipe() -> None:
    arms = {"storage": ["fp32", "fp32", "bf16"], "swap": [0.006, 0.0063, 0.00026], "streams": ["mix", "mix", "still"]}
    sentence = conclusion(_arms(**arms))[0]
    assert "kromhc from bias -8, AdamW, decay 0.2: the swap starts at 0.0003" in sentence
    assert "stored in fp32 it ends at 0.0060 to 0.0063" in sentence and "2 runs; the monitor says mix" in sentence
    assert "stored in bf16 it ends at 0.0003" in sentence and "1 run; the monitor says still" in sentence
    apart = conclusion(_arms(storage=["fp32", "bf16"], decay=[0.2, 0.0]))
    assert not any("stored in bf16 it ends" in line for line in apart)


def test_frozen_runs_go_nowhere_and_the_swap_in_use_has_its_own_count() -> None:
    said = " ".join(conclusion(_arms(by_loss=[0.0, -0.5], swap_dynamic=[0.02, 0.008])))
    assert "moves away from mixing in 1 of 2 runs" in said and "above what decay alone gives in 1 of 2" in said


def test_other_topologies_and_models_are_refused(runs: dict, tmp_path: Path) -> None:
    def changed(name: str, source: str, **residual: object) -> str:
        folder = shutil.copytree(runs[source], tmp_path / name)
        config = json.loads((folder / "config.json").read_text())
        config["model"]["residual"] |= residual
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    with pytest.raises(InputError, match="residual mhc: this comparison"):
        open_runs([changed("mhc", "kromhc-0", kind="mhc")])
    with pytest.raises(InputError, match="kromhc, frozen"):
        open_runs([changed("frozen", "kromhc-0", freeze_res=True)])
    with pytest.raises(InputError, match="dyn_act is tanh there, none here"):
        open_runs([str(runs["kromhc-0"]), changed("none", "kromhc-1", dyn_act="none")])
