"""The columns of the tiers: how many, in which order, under which names (PLS B.7, C.3)."""

import pytest

from streamscope.features.compute.formulas import columns
from streamscope.features.extract import Extract
from streamscope.models.errors import InputError


def names(n_layers: int, n_heads: int, **options) -> list[str]:
    return [column.name for column in columns(n_layers, n_heads, Extract(**options))]


@pytest.mark.parametrize(("tier", "n"), [("core", 5), ("structural", 163), ("structural+position", 167), ("topk", 455)])
def test_the_papers_dimensions(tier: str, n: int) -> None:
    found = names(6, 6, tier=tier)
    assert len(found) == len(set(found)) == n


def test_layout_of_app_b7() -> None:
    found = names(6, 6, tier="structural+position")
    firsts = {
        0: "traj_prob_L0", 6: "traj_margin_L0", 12: "traj_drop_L1", 17: "k_star", 18: "kappa",
        19: "head_act_stable_L0H0", 55: "head_act_final_L0H0", 91: "head_ent_stable_L0H0", 127: "head_ent_final_L0H0",
        163: "attn_span_stable", 164: "attn_span_final", 165: "local_mass_stable", 166: "local_mass_final",
    }  # fmt: skip
    assert {i: found[i] for i in firsts} == firsts
    assert found[19 + 5 * 6 + 4] == "head_act_stable_L5H4"  # index layer · H + head
    assert found[126] == "head_ent_stable_L5H5"


def test_layout_of_app_c3() -> None:
    found = names(6, 6, tier="topk")
    assert found[19:25] == [*(f"topk_stable_L0H0_r{r}" for r in range(1, 6)), "topk_stable_L0H1_r1"]
    assert (found[199], found[379], found[451]) == ("topk_final_L0H0_r1", "head_ent_stable_L0H0", "attn_span_stable")


@pytest.mark.parametrize(("layers", "heads", "k"), [(1, 1, 1), (2, 3, 4), (12, 8, 5)])
def test_any_size(layers: int, heads: int, k: int) -> None:
    base = 3 * layers - 1 + 2
    assert len(names(layers, heads)) == base + 4 * layers * heads
    assert len(names(layers, heads, tier="topk", k=k)) == base + 2 * layers * heads * (k + 1) + 4


def test_constant_columns_are_those_of_final_below_the_last_layer() -> None:
    constant = [c for c in columns(3, 2, Extract(tier="topk", k=2)) if c.constant]
    assert len(constant) == 2 * 2 * 2 + 2 * 2
    assert all("_final_" in c.name and c.layer in (0, 1) for c in constant)


def test_columns_say_what_the_options_make_of_them() -> None:
    plain = {c.name: c for c in columns(2, 6, Extract())}
    truth = {c.name: c for c in columns(2, 6, Extract(target="truth", traj_prob="raw", kstar="strict"))}
    assert plain["traj_prob_L0"].formula == "p^(ℓ)(ŷ) if argmax p^(ℓ) = ŷ else 0"
    assert truth["traj_prob_L0"].formula == "p^(ℓ)(y)"
    assert "L where" in plain["k_star"].formula and "L where" not in truth["k_star"].formula
    assert plain["head_ent_stable_L0H3"].unit == "nats"


def test_core_heads_are_the_papers_or_the_users() -> None:
    def masses(**options) -> list[str]:
        found = columns(6, 6, Extract(tier="core", **options))
        return [c.formula.split(" in ")[1] for c in found if c.name.endswith("_mass")]

    assert masses() == ["L5H2, L5H3", "L5H4, L5H5"]
    assert masses(anchor_heads=("L0.H1", "L2.H0")) == ["L0H1, L2H0", "L5H4, L5H5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"theta_entropy": -0.1}, "theta_entropy"),
        ({"theta_gate": 1.5}, "theta_gate"),
    ],
)
def test_options_that_make_no_sense(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Extract(**options)


def test_core_of_a_model_without_the_papers_heads_asks_for_heads() -> None:
    with pytest.raises(InputError, match="--anchor-heads"):
        columns(2, 2, Extract(tier="core"))


@pytest.mark.parametrize("tier", ["core", "structural", "topk"])
@pytest.mark.parametrize("group", ["anchor", "entity"])
def test_unknown_heads_are_refused_whatever_the_tier(tier, group: str) -> None:
    with pytest.raises(InputError, match=f"layers go from 0 to 1.*--{group}-heads"):
        columns(2, 6, Extract(tier=tier, **{f"{group}_heads": ("L9.H0",)}))
    assert columns(2, 6, Extract(tier=tier, **{f"{group}_heads": ("L0.H0",)}))
