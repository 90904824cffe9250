"""Changes of mixing: models of known outcome, a loop with plain hooks, what cannot act, and models with one stream."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import open_data
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import holm
from streamscope.interventions.mixing import Change, Mixing
from streamscope.interventions.mixing.measure import (
    average_streams,
    constants_of,
    edits_of,
    parse_modules,
    permutations,
    permute_streams,
    placed_changes,
)
from streamscope.models import build, load
from streamscope.models.hooks import capture, edit
from streamscope.models.mixing import PlacedConnection, connections
from streamscope.papers.krom.tables import set_bias
from tests.tiny import some

DATA = Documents(data="stories:1:6", batch_size=4, stride=0)
KINDS = ("kromhc", "hc", "mhc", "mhc_lite")
CHANGES = get_args(Change)
SAME: dict[str, Any] = {"residual.post_input": "same"}


def model_of(residual: str = "kromhc", **overrides: Any) -> Any:
    """An untrained model with parallel streams and the words of the bundled ones."""
    tokenizer = load("stories/kromcanon").tokenizer
    return build("kromhc", "tiny", tokenizer=tokenizer, seed=3, residual=residual, d_vocab=2048, **overrides).eval()


@torch.no_grad()
def moved(model: Any) -> Any:
    """With streams that differ and coefficients that depend on the token."""
    generator = torch.Generator().manual_seed(5)
    for one in connections(model).values():
        for p in one.b.values():
            p.add_(0.5 * torch.randn(p.shape, generator=generator))
        for p in one.W.values():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        for p in one.alpha.values():
            p.fill_(0.7)
    return model


def measured(model: Any, **options: Any) -> Result:
    return Mixing(**options).measure(model, DATA)


def modules_of(model: Any, **options: Any) -> pd.DataFrame:
    return measured(model, where=("all",), **options).table("modules").frame


def test_what_is_known_on_paper() -> None:
    """H_res that is I already; H_res of the bias 0 or −∞ planted; even mixing makes averaging and permuting nothing."""
    model = model_of(**SAME)
    set_bias(model, -torch.inf)
    same = measured(model, change=("res-identity", "res-mean", "res-even"))
    for name in ("everywhere", "modules"):
        frame = same.table(name).frame
        even = frame["change"] == "res-even"
        assert (frame.loc[~even, ["delta", "kl"]].dropna() == 0).all(axis=None), "to the last bit"
        assert frame.loc[~even, "delta_p"].isna().all() and (frame["acts"] == "no").equals(frame["delta"].isna())
        changed = frame[even & (frame["acts"] == "yes")]
        assert (changed["kl"] > 1e-9).all() and len(changed)
    planted = same.table().frame.set_index("change").loc["res-even"]
    set_bias(model, 0.0)
    back = measured(model, change=("res-identity", "res-even"), where=("everywhere",)).table().frame.set_index("change")
    assert back.loc["res-even", "delta"] == pytest.approx(0.0, abs=1e-6)
    assert back.loc["res-even", "baseline"] == pytest.approx(planted["loss"], abs=1e-6), "as if it were so biased"
    assert back.loc["res-identity", "loss"] == pytest.approx(planted["baseline"], abs=1e-6)
    assert abs(planted["delta"]) > 1e-5
    with torch.no_grad():
        for one in connections(model).values():
            one.b["pre"].fill_(-1.0)
    frame = modules_of(model, change=("permute", "average"), draws=23)
    acts = frame[frame["acts"] == "yes"]
    assert acts["kl"].to_numpy() == pytest.approx(0.0, abs=1e-9) and len(acts) == 6
    assert set(frame.loc[frame["acts"] == "no", "where"]) == {"L0.attn"}


def test_equal_streams_may_trade_places_and_be_averaged() -> None:
    """Before training, hyper-connections keep n copies of one stream: nothing changes, to the last bit."""
    frame = modules_of(model_of("hc"), change=("permute", "average"), draws=2)
    acts = frame[frame["acts"] == "yes"]
    assert (acts[["delta", "kl"]] == 0).all(axis=None) and len(acts) == 6
    x = torch.rand(2, 5, 1, 8).expand(2, 5, 3, 8)
    ((_, average),) = average_streams([PlacedConnection(0, "attn")]).items()
    assert torch.equal(average(x, None), x)


@pytest.mark.parametrize("residual", KINDS)
@torch.no_grad()
def test_streams_may_trade_places_with_what_belongs_to_them(residual: str) -> None:
    """Permuted streams, and from there on every coefficient permuted alike, are the same model."""
    model, order = moved(model_of(residual)).double(), (2, 0, 3, 1)
    tokens = torch.randint(1, 300, (2, 9), generator=torch.Generator().manual_seed(1))
    after = [name for name in connections(model) if name != "blocks.0.attn_hc"]
    hooks = [f"{name}.hook_{of}" for name in after for of in ("pre", "res", "post")]
    with capture(model, hooks) as seen:
        plain = model(tokens)
    belongs = {name: H[..., order] if H.ndim == 3 else H[..., order, :][..., order] for name, H in seen.items()}
    moving = permute_streams([PlacedConnection(0, "mlp")], order)
    with edit(model, {**moving, **{name: lambda _, hook, H=H: H for name, H in belongs.items()}}):
        torch.testing.assert_close(model(tokens), plain, rtol=0, atol=1e-10)
    with edit(model, moving):
        assert (model(tokens) - plain).abs().max() > 1e-4, "alone they meet what belongs to others"


def hooked(model: Any, changed: dict[str, Callable[[Tensor], Any]], row: Sequence[int]) -> Tensor:
    """log p [T, V] of one document, with PyTorch's own hooks on the points."""
    points = dict(model.named_modules())
    with ExitStack() as stack, torch.no_grad():
        for name, fn in changed.items():
            stack.callback(points[name].register_forward_hook(lambda m, i, x, fn=fn: fn(x)).remove)
        return model(torch.tensor([row[:-1]]))[0].double().log_softmax(-1)


def plain(change: str, layer: int, part: str, means: dict[str, Tensor], order: Sequence[int] | None) -> dict[str, Any]:
    """What is hooked where, of one module."""
    hc = f"blocks.{layer}.{part}_hc.hook"
    entry = f"blocks.{layer}.hook_streams_{'pre' if part == 'attn' else 'mid'}"
    if change == "permute":
        return {entry: lambda x: x[:, :, list(order or ())]}
    if change == "average":
        return {entry: lambda x: x.mean(2, keepdim=True).repeat(1, 1, 4, 1)}
    of, to = change.split("-")
    if of == "both":
        return plain(f"pre-{to}", layer, part, means, order) | plain(f"post-{to}", layer, part, means, order)
    mean = means[f"{hc}_{of}"]
    made = {"identity": torch.eye(4), "mean": mean, "even": torch.full_like(mean, 0.25)}[to]
    made = mean.mean().repeat(4) if (of, to) == ("post", "even") else made
    return {f"{hc}_{of}": lambda H: made.float().repeat(*H.shape[:2], *[1] * made.ndim)}


@pytest.mark.parametrize("residual", some(KINDS, ("kromhc",)))
def test_the_numbers_beside_a_loop_with_plain_hooks(residual: str) -> None:
    model, draws = moved(model_of(residual, n_ctx=24)), 2
    result = measured(model, where=("everywhere", "L0.*", "L1.mlp"), draws=draws, seed=4)
    rows = [list(row[: model.config.n_ctx + 1]) for row in open_data(DATA, model).rows()]
    n, targets = sum(len(row) - 1 for row in rows), [row[1:] for row in rows]
    names = [f"{name}.hook_{of}" for name in connections(model) for of in ("pre", "res", "post")]
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    unedited = [hooked(model, {name: seen[name].append for name in names}, row) for row in rows]
    means = {name: torch.cat([x[0] for x in seen[name]]).double().mean(0) for name in names}

    def losses(after: Sequence[Tensor]) -> np.ndarray:
        return np.array([-float(log_p[range(len(to)), to].sum()) for log_p, to in zip(after, targets, strict=True)])

    base, places = losses(unedited), {"everywhere": [(i, p) for i in (0, 1) for p in ("attn", "mlp")]}
    places |= {"L0.attn": [(0, "attn")], "L0.mlp": [(0, "mlp")], "L1.mlp": [(1, "mlp")]}
    told = pd.concat([table.frame for table in result.tables.values()])
    assert set(told["where"]) == set(places) and len(told) == len(places) * len(CHANGES)
    for row in told.to_dict("records"):
        loss, kl, what = 0.0, 0.0, f"{row['change']} {row['where']}"
        many = permutations(4, draws, 4) if row["change"] == "permute" else [None]
        for order in many:
            changed: dict[str, Any] = {}
            for layer, part in places[row["where"]]:
                changed |= plain(row["change"], layer, part, means, order)
            after = [hooked(model, changed, text) for text in rows]
            loss += losses(after) / len(many)
            kl += sum(float((p.exp() * (p - q)).sum()) for p, q in zip(unedited, after, strict=True)) / len(many)
        if row["acts"] == "no":
            assert np.isnan(row["delta"]) and abs(loss - base).max() < 1e-3, what
            continue
        assert row["delta"] == pytest.approx((loss - base).sum() / n, abs=2e-6), what
        assert row["percent"] == pytest.approx(100 * (loss.sum() / base.sum() - 1), abs=2e-4), what
        assert row["kl"] == pytest.approx(kl / n, abs=2e-6), what
        assert row["n"] == len(rows) and row["tokens"] == n
    every, modules = (result.table(name).frame for name in ("everywhere", "modules"))
    for family in (every, *(one for _, one in modules[modules["acts"] == "yes"].groupby("change"))):
        assert family["delta_p_holm"].to_numpy() == pytest.approx(holm(family["delta_p"]))
    drawn = told[told["draws"] > 0]
    assert set(drawn["change"]) == {"permute"} and (drawn["draw_sd"] > 0).all() and (drawn["draws"] == 2).all()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("post_input", ["same", "mixed"])
@pytest.mark.parametrize("residual", some(KINDS, ("kromhc", "hc")))
@torch.no_grad()
def test_what_is_said_not_to_act_is_what_changes_nothing(
    residual: str, post_input: str, frozen: bool, static: bool
) -> None:
    """Each edit is made all the same: no logit moves where it cannot act, and some do everywhere else."""
    own = {"residual.post_input": post_input, "residual.freeze_res": frozen, "residual.dynamic": not static}
    model = moved(model_of(residual, **own)).double()
    opened, how = open_data(DATA, model), Mixing(where=("all", "everywhere"))
    changes = placed_changes(how, model)
    constants = constants_of(model, [(change, modules) for change, _, modules, _ in changes], opened)
    constants = {key: value.double() for key, value in constants.items()}
    tokens = torch.tensor([next(iter(opened.rows()))[:20]])
    before = model(tokens)
    for change, where, modules, inert in changes:
        (edits,) = edits_of(change, modules, constants, [(1, 2, 3, 0)])
        with edit(model, edits):
            moved_by = float((model(tokens) - before).abs().max())
        if inert:  # means are kept in single precision, and a doubly stochastic matrix is so up to rounding
            assert moved_by < 1e-5, (change, where)
            assert inert.startswith("cannot act, ") and ";" not in inert
        else:
            assert moved_by > 1e-5, (change, where)


def test_what_cannot_act_says_why_and_is_not_measured() -> None:
    model = moved(model_of(**SAME))
    result = measured(model, change=("res-identity", "permute"), draws=2)
    table, block = result.table("modules"), result.blocks["loss"]
    frame = table.frame.set_index(["change", "where"])
    why = table.missing[frame.index.get_loc(("permute", "L0.attn")), "delta"]
    assert why.startswith("cannot act, its streams are equal")
    assert frame["acts"]["res-identity", "L1.mlp"] == "no" and frame["acts"]["permute", "L1.mlp"] == "yes"
    assert np.isnan(block.total[block.cells["acts"] == "no"]).all()
    assert (result.table().frame["acts"] == "yes").all(), "everywhere there is one that acts"
    still = measured(model_of(**{"residual.freeze_res": True}), change=("res-identity",))
    assert all((table.frame["acts"] == "no").all() for table in still.tables.values()) and len(still.tables) == 2
    name, unequal = "blocks.0.hook_streams_pre", lambda x, hook: x * torch.arange(1.0, 5.0)[:, None]
    with edit(model, {name: unequal}):
        assert (modules_of(model, change=("permute",), draws=1)["acts"] == "yes").all(), "its streams are not equal now"
    model.add_hook(name, unequal)
    with pytest.warns(UserWarning, match=f"hooks of yours at {name}"):
        assert (modules_of(model, change=("permute",), draws=1)["acts"] == "yes").all(), "nor are they with a hook"


def test_permutations_are_drawn_once_each_and_by_the_seed() -> None:
    assert permutations(3, 5, 0) == permutations(3, 99, 7) and len(permutations(3, 99, 0)) == 5
    assert permutations(2, 1, 0) == [(1, 0)]
    drawn = permutations(4, 8, 3)
    assert drawn == permutations(4, 8, 3) and drawn != permutations(4, 8, 4)
    assert len(set(drawn)) == 8 and (0, 1, 2, 3) not in drawn and all(sorted(one) == [0, 1, 2, 3] for one in drawn)
    often = [one for seed in range(400) for one in permutations(3, 1, seed)]
    assert len(set(often)) == 5 and min(map(often.count, set(often))) > 50, "evenly"
    model = moved(model_of())
    one, same, other = (modules_of(model, change=("permute",), draws=2, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(one, same)
    assert (one["delta"] - other["delta"]).abs().max() > 1e-6


def test_places_and_refusals() -> None:
    assert [module.label for module in parse_modules(("*.mlp", "L0.attn"), 2)] == ["L0.attn", "L0.mlp", "L1.mlp"]
    assert [(m.number, m.path, m.entry) for m in parse_modules("L1.*", 2)] == [
        (2, "blocks.1.attn_hc", "blocks.1.hook_streams_pre"), (3, "blocks.1.mlp_hc", "blocks.1.hook_streams_mid"),
    ]  # fmt: skip
    for preset, options, line in (
        ("kromhc", {"where": ("L2.attn",)}, "'L2.attn': this model has layers 0 to 1"),
        ("kromhc", {"where": ("attn",)}, "'attn' does not name a module: write L2.attn"),
        ("kromhc", {"where": ("L0.ffn",)}, "unknown module in 'L0.ffn' 'ffn': did you mean|known: attn, mlp"),
        ("kromhc", {"change": ()}, "change: give at least one"),
        ("kromhc", {"draws": 0}, "draws must be at least 1"),
        ("llama", {}, "^mixing measures parallel streams, which this model lacks: give one"),
        ("lfa", {}, "^mixing measures parallel streams, which this model lacks: give one"),
    ):
        with pytest.raises(InputError, match=line):
            Mixing(**options).check(build(preset, "tiny"))
