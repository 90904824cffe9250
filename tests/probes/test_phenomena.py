"""The competence gate: verdicts and choices by hand, planted heads and losses, each line against its own probe."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from streamscope.models.errors import InputError
from streamscope.models.train import main as train
from streamscope.probes import coherence
from streamscope.probes.over_steps import over_documents
from streamscope.probes.phenomena import (
    NAMES,
    Gate,
    Opened,
    cheaper,
    look,
    main,
    matrix,
    on_the_other_half,
    open_model,
    plot,
    verdict,
)
from streamscope.probes.tables import read_about
from tests import tiny
from tests.probes import planted

SMALL = Gate(n=60, sequences=4, length=6, max_documents=5)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phenomena") / "krom"
    more = ["--set", "n_ctx=256", "--set", "residual.b_res=-2", "--lr", "0.02"]
    train(tiny.arguments(corpus, out, *more, preset="kromhc"))
    return out


@pytest.fixture(scope="module")
def one(run: Path) -> Opened:
    return open_model(str(run))


def test_verdicts_by_hand() -> None:
    nan = float("nan")
    assert [verdict(0.5, low, high, 0.3) for low, high in ((0.31, 0.7), (0.3, 0.7), (0.1, 0.31), (0.1, 0.3))] == [
        "present", "undecided", "undecided", "absent",
    ]  # fmt: skip
    assert [verdict(v, nan, nan, 0.0) for v in (0.1, 0.0, nan)] == ["present", "absent", ""]


def noise(seed: int, heads: int = 200, cases: int = 20) -> pd.DataFrame:
    values = np.random.default_rng(seed).normal(size=(cases, heads)).ravel()
    names = np.tile([f"h{i}" for i in range(heads)], cases)
    return pd.DataFrame({"head": names, "case": np.repeat(np.arange(cases), heads), "value": values})


@pytest.mark.parametrize("signed", [False, True])
def test_the_best_of_many_noisy_heads_is_none(signed: bool) -> None:
    """200 heads of noise: the best of all cases has .6, the one that is scored on the other half 0 on average."""
    luck, fair = [], []
    for seed in range(20):
        table = noise(seed)
        means = table.groupby("head")["value"].mean()
        luck.append((means.abs() if signed else means).max())
        chosen, _ = on_the_other_half(table, "value", (table["case"] % 2).to_numpy(), signed=signed)
        assert len(chosen) == 20
        fair.append(chosen["value"].mean())
    # 20 means of standard error 1 / sqrt(20), or twice that where both halves choose one head: .05 to .1
    assert min(luck) > 0.4 and abs(np.mean(fair)) < 0.2


def test_a_head_that_moves_downwards_is_found_by_its_size() -> None:
    table = noise(1)
    side, moved = (table["case"] % 2).to_numpy(), table["head"] == "h7"
    table.loc[moved, "value"] -= 3.0
    chosen, head = on_the_other_half(table, "value", side, signed=True)
    assert head == "h7 / h7" and chosen["value"].mean() == pytest.approx(-table.loc[moved, "value"].mean())
    assert on_the_other_half(table, "value", side)[1] != "h7 / h7"


def test_what_a_repeat_saves_by_hand() -> None:
    """Losses set to 3 nats the first time and 1 the second; the first token of each saying does not count."""
    n, vocabulary = 4, 9
    tokens = [[0, 1, 2, 3, 4, 1, 2, 3, 4], [0, 8, 5, 6, 7, 8, 5, 6, 7]]
    logits = []
    for ids in tokens:
        rows = torch.zeros(len(ids), vocabulary, dtype=torch.float64)
        for at, after in enumerate(ids[1:]):
            p = np.exp({0: -9.0, n: -9.0}.get(at, -3.0 if at < n else -1.0))
            rows[at] = np.log((1 - p) / (vocabulary - 1))
            rows[at, after] = np.log(p)
        logits.append(rows)
    assert cheaper(logits, tokens, n) == pytest.approx([2.0, 2.0])


def test_a_planted_induction_head_is_found(one: Opened) -> None:
    """Head 2 of layer 1 looks at what followed the same word: a permanent hook puts it there."""
    before = look(one, "induction", SMALL)
    assert before["verdict"] == "absent" and before["n"] == 4
    point = one.model.hook_dict["blocks.1.attn.hook_pattern"]

    def plant(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        new = pattern.clone()
        for i in range(7, 13):
            new[:, 2, i] = 0
            new[:, 2, i, i - 6 + 1] = 1
        return new

    point.add_hook(plant, is_permanent=True)
    try:
        found = look(one, "induction", SMALL)
    finally:
        point.remove_hooks("fwd", including_permanent=True)
    assert (found["value"], found["verdict"], found["head"]) == (1.0, "present", "L1H2 / L1H2")
    assert look(one, "induction", SMALL) == before


def test_random_words_are_words(one: Opened) -> None:
    from streamscope.probes.heads import Heads

    query = Heads(sequences=3, length=6, pool="words").plan([], one.tokenizer)
    for ids in query.tokens:
        pieces = one.tokenizer.pieces(ids[1:])
        assert all(text[0] == " " and text[1:].isalpha() and len(text) > 2 for text in pieces)
        assert ids[1:7] == ids[7:] and len(set(ids[1:7])) == 6
    with pytest.raises(InputError, match="200 different words wanted, the vocabulary has"):
        Heads(length=200, pool="words").plan([], one.tokenizer)


def test_copying_is_what_coherence_says_is_due_to_the_nouns(one: Opened, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.parquet"
    coherence.main([str(run), "--suite", "stories", "--n", "60", "--out", str(out)])
    row = pd.read_parquet(out).set_index("relation").loc["all"]
    found = look(one, "copying", SMALL)
    assert (found["value"], found["ci_low"], found["ci_high"]) == pytest.approx(
        (row["due"], row["due_low"], row["due_high"]), rel=1e-9
    )
    assert found["n"] == row["controls"]


def test_depth_by_hand(one: Opened) -> None:
    found = look(one, "depth", SMALL)
    layers = [
        int(layer)
        for _, real, _, depth in over_documents(one.model, one.folder, one.tokenizer, None, 5)
        for layer in depth[real]
    ]
    share = max(layers.count(layer) for layer in set(layers)) / len(layers)
    assert (found["value"], found["n"]) == pytest.approx((1 - share, len(layers)))


def test_mixing_is_that_of_the_monitor(one: Opened, run: Path) -> None:
    found = look(one, "mixing", SMALL)  # twelve steps add nothing to a bias of −2
    assert (found["value"], found["verdict"], found["n"]) == (0.0, "absent", 3)


def test_position_of_a_planted_head() -> None:
    """The hand-set model of `planted`: its recency head has PDS 1 on pairs of its own suite."""
    from streamscope.probes.pds import Pds
    from streamscope.probes.probe import measure
    from streamscope.probes.prompts import align
    from streamscope.probes.stats.held_out import halves

    model = planted.model()
    table = measure(model, Pds(), align(planted.suite(12), model.tokenizer, planted.CONTEXT))
    chosen, head = on_the_other_half(table, "difference", halves(table, 0)[0], signed=True)
    assert head == "L0H0 / L0H0" and chosen["difference"].mean() == pytest.approx(1.0)


def test_the_command(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "p.parquet"
    argv = [str(run), f"{run}@4", "--n", "60", "--sequences", "4", "--length", "6", "--max-documents", "4"]
    main([*argv, "--only", "induction", "repeats", "capitalization", "depth", "mixing", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "yes" in printed and "no hyper-connections" not in printed
    table = pd.read_parquet(out)
    assert table["phenomenon"].tolist() == ["induction", "repeats", "capitalization", "depth", "mixing"] * 2
    assert read_about(out)["units"]["value"] == "of the phenomenon" and out.with_suffix(".html").exists()
    wide = matrix(table)
    assert wide.columns.tolist() == ["run", "induction", "repeats", "capitalization", "depth", "mixing"]
    assert len(plot(table).data[0]["z"]) == 2
    with pytest.raises(InputError, match="unknown phenomenon 'inducton': did you mean induction"):
        main([*argv, "--only", "inducton"])
    with pytest.raises(InputError, match="a run is named twice"):
        main([str(run), *argv])
    assert set(NAMES) >= set(table["phenomenon"])
