"""The tables and figures of `probes.mixing_monitor`, on trained runs and on weights set by hand."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from streamscope import InputError, build, load
from streamscope.models.mixing import inert_modules
from streamscope.models.train import main as train
from streamscope.probes.mixing_monitor import main
from streamscope.probes.mixing_monitor import measure as monitor
from tests.tiny import arguments

NO_LOG = pd.DataFrame(columns=["step", "module", "metric", "part", "value", "why"]).astype({"value": float})


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("mixing") / "krom"
    train(arguments(corpus, out, "--set", "residual.b_res=-2", preset="kromhc"))
    return out


def test_the_overview_is_that_of_the_log(run: Path) -> None:
    """Means over modules, by hand from metrics.jsonl at the last step; the first module cannot act."""
    (row,) = monitor.overview(monitor.watch(load(run))).to_dict("records")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    mixing = [r for r in rows if r["kind"] == "mixing" and not r["module"].startswith("blocks.0.attn")]
    for metric in ("swap_static", "swap_best", "distance_dynamic", "alpha_res"):
        own = [r["value"] for r in mixing if (r["step"], r["metric"]) == (12, metric)]
        assert row[metric] == pytest.approx(sum(own) / len(own), rel=1e-5)
    assert row["loss"] == [r["loss"] for r in rows if r["kind"] == "eval"][-1]


def watched(swaps: dict[str, float], rest: float | str) -> monitor.RunMixing:
    """A model of −8 without tokens whose modules have these swaps in both factors; what decay alone gives."""
    model = build("kromhc", "tiny").eval()
    with torch.no_grad():
        for name, s in swaps.items():
            logits = torch.tensor([[math.log((1 - s) / s), 0.0]] * 2)
            dict(model.named_modules())[f"blocks.{name}_hc"].b["res"].copy_(logits)
    if not isinstance(rest, str):
        rest = {f"blocks.{n}.{part}_hc": apart(rest) for n in (0, 1) for part in ("attn", "mlp")}
    about = {"preset": "kromhc", "seed": "0", "step": 0, "bias": -8.0, "loss": 1.0}
    return monitor.RunMixing(NO_LOG, monitor.final(model, NO_LOG, 0), about, inert_modules(model), rest)


def apart(s: float) -> float:
    """‖H − I‖_F of two factors with swap s, by a plain loop over H = U ⊗ U."""
    u = [[1 - s, s], [s, 1 - s]]
    H = [[u[i // 2][j // 2] * u[i % 2][j % 2] for j in range(4)] for i in range(4)]
    return math.sqrt(sum((H[i][j] - (i == j)) ** 2 for i in range(4) for j in range(4)))


@pytest.mark.parametrize(
    ("swaps", "rest", "said"),
    [
        ({"0.attn": 0.5}, 0.0003, "still"),  # the first module mixes equal streams
        ({"0.mlp": 0.2}, 0.0003, "mix 1, still 2 of 3"),
        ({"0.mlp": 0.2, "1.attn": 0.2, "1.mlp": 0.2}, 0.2, "no more than decay alone"),
        ({"0.mlp": 0.2, "1.attn": 0.2, "1.mlp": 0.205}, 0.2, "no more than decay alone"),  # half a point is nothing
        ({"0.mlp": 0.2, "1.attn": 0.22, "1.mlp": 0.005}, 0.2, "mix 1, no more than decay alone 1, still 1 of 3"),
        ({"0.mlp": 0.2}, "not known", "not still; decay unknown"),
        ({}, "not known", "still"),
    ],
)
def test_streams_mix_beyond_what_decay_alone_gives(swaps: dict, rest: float | str, said: str) -> None:
    (row,) = monitor.overview(watched(swaps, rest)).to_dict("records")
    assert row["streams"] == said and row["modules"] == 3
    assert ("distance_decay: not known" in row["undefined"]) == isinstance(rest, str)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_replay_is_a_product_of_decays(optimizer: str) -> None:
    """b (1 − η_t λ) over a warm-up and a cosine, by hand; and up to the step whose weights were kept."""
    t = {
        "hc_optimizer": optimizer, "hc_lr": 0.005, "hc_decay": 0.2, "hc_beta1": 0.8, "hc_beta2": 0.95, "warmup": 20,
        "lr_floor": 0.1,
    }  # fmt: skip
    b, ways = -2.0, []
    for step in range(200):
        share = (step + 1) / 20 if step < 20 else 0.55 + 0.45 * math.cos(math.pi * (step - 20) / 179)
        b *= 1 - 0.005 * share * 0.2
        ways.append(b)
    for until in (200, 50):
        keep, swap = monitor.without_gradient(torch.tensor([0.0, -2.0]), t, 200, until).tolist()
        assert keep == 0 and swap == pytest.approx(ways[until - 1], rel=1e-5)
    bf16 = monitor.without_gradient(torch.tensor([0.0, -8.0], dtype=torch.bfloat16), t, 200)
    assert bf16.tolist() == [0.0, -8.0], "a step of 8e-3 rounds away beside an ulp of 0.03"
    mean = monitor.without_gradient(
        torch.tensor([0.0, -2.0], dtype=torch.bfloat16), {**t, "rounding": "stochastic"}, 200
    )
    assert mean.tolist() == [0.0, pytest.approx(ways[-1], rel=1e-5)], "what is rounded at random is exact in the mean"


def test_a_trained_module_that_cannot_act_is_where_the_replay_is() -> None:
    """The bundled KromCanons: 7,200 steps moved their first module by decay alone.

    And by what AdamW makes of gradients that are nothing but rounding: logits .002 from where decay takes them.
    """
    for name, logits in (("kromcanon", 0.0025), ("kromcanon-b2", 0.0015)):
        run = monitor.watch(load(name))
        (first,) = run.inert_modules
        own = run.final[(run.final["metric"] == "distance_static") & (run.final["module"] == first)]["value"]
        slope = 3**-0.5  # of ‖H − I‖ by the gap of both factors, largest at p = ½
        assert isinstance(run.rest, dict) and own.item() == pytest.approx(run.rest[first], abs=slope * logits)


def test_planted_weights_come_out() -> None:
    """SPEC §1.5's check: α .84, static swaps .100 and .148 in one module of a model at −8."""
    model = build("kromhc", "tiny").eval()
    module = model.blocks[0].mlp_hc
    with torch.no_grad():
        module.b["res"].copy_(torch.tensor([[math.log(9), 0.0], [math.log(0.852 / 0.148), 0.0]]))
        module.alpha["res"].fill_(0.84)
    table = monitor.by_module(monitor.final(model, NO_LOG, 0))
    assert table["swap_static"][2:4].tolist() == pytest.approx([0.1, 0.148], abs=1e-5)
    assert table["swap_best"][2:4].max() == pytest.approx(0.4825, abs=5e-4)
    assert table["swap_best"][:2].max() == pytest.approx(3.42e-4, abs=1e-5), "the others stay at −8, α .01"
    assert table["module"].unique().tolist() == [f"blocks.{n}.{b}_hc" for n in (0, 1) for b in ("attn", "mlp")]
    assert table["part"].tolist() == ["factor 0", "factor 1"] * 4
    assert table["alpha_res"].iloc[2] == table["alpha_res"].iloc[3] == pytest.approx(0.84)
    assert table["undefined"].str.contains("distance_dynamic, gradient: metrics.jsonl has no mixing rows").all()


@pytest.mark.slow
def test_other_kinds_of_mixing_have_their_reasons(corpus, tmp_path: Path, capsys) -> None:
    """A gate and Kronecker routing beside mHC: tables for each, swap probabilities undefined."""
    more = [x for s in ("residual=mhc", "attention.gate=gate", "attention.v=kron") for x in ("--set", s)]
    train(arguments(corpus, tmp_path / "a", *more, preset="kromhc"))
    out = tmp_path / "m.parquet"
    main([str(tmp_path / "a"), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "H_res is not a product of 2 x 2 factors" in printed and "head 3" in printed and "L1 attn.v" in printed
    assert (pd.read_parquet(out)["undefined"].str.len() > 0).all(), "every row lacks the metrics of the other kinds"


def test_a_gated_model_that_was_saved_and_never_logged(tmp_path: Path, capsys) -> None:
    build("pls", "tiny").save(tmp_path / "pls")
    main([str(tmp_path / "pls")])
    printed = capsys.readouterr().out
    assert "gate mean, gate sd, gate low: metrics.jsonl has no mixing rows" in printed and "NaN" not in printed


def test_a_run_from_before_the_monitor_or_with_weights_from_elsewhere(run: Path, tmp_path: Path) -> None:
    """Static metrics from the weights alone; what needs tokens is undefined, and without a replay nothing is shown."""
    old = shutil.copytree(run, tmp_path / "old")
    manifest = json.loads((old / "manifest.json").read_text())
    (old / "manifest.json").write_text(json.dumps(manifest | {"parent": {"run": "runs/a"}}))
    (row,) = monitor.overview(monitor.watch(load(old))).to_dict("records")
    assert row["streams"] == "not still; decay unknown" and "made from other weights" in row["undefined"]
    kept = [r for r in (old / "metrics.jsonl").read_text().splitlines() if '"mixing"' not in r]
    (old / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert monitor.log(old).empty
    (row,) = monitor.overview(monitor.watch(load(old))).to_dict("records")
    assert row["swap_static"] > 0.1 and "distance_dynamic: metrics.jsonl has no mixing rows" in row["undefined"]
    # a log of other steps: the dynamic metrics are not those of these weights
    rows = monitor.final(load(run), monitor.log(run), 7)
    assert set(rows.loc[rows["metric"] == "gradient", "why"]) == {"not logged at step 7"}


def test_a_run_without_mixing_is_told_what_has_some(tmp_path: Path) -> None:
    build("gpt2", "tiny").save(tmp_path / "a")
    with pytest.raises(InputError, match="no mixing matrices.*kromhc.*pls.*dst-kron"):
        main([str(tmp_path / "a")])
