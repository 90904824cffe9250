"""The columns of the tiers: how many, in which order, under which names (PLS B.7, C.3)."""

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.features import compute
from streamscope.features.extract import Extract


def names(n_layers: int, n_heads: int, **options) -> list[str]:
    return [column.name for column in compute.columns(n_layers, n_heads, Extract(**options))]


@pytest.mark.parametrize(("layers", "heads", "k"), [(6, 6, 5), (1, 1, 1), (2, 3, 4), (12, 8, 5)])
def test_the_papers_dimensions_and_any_size(layers: int, heads: int, k: int) -> None:
    base, all_heads = 3 * layers - 1 + 2, {"anchor_heads": ("all",), "entity_heads": ("all",)}
    for tier, n, options in (("core", 5, all_heads), ("structural", base + 4 * layers * heads, {}),
                             ("structural+position", base + 4 * layers * heads + 4, {}),
                             ("topk", base + 2 * layers * heads * (k + 1) + 4, {"k": k})):  # fmt: skip
        found = names(layers, heads, tier=tier, **options)
        assert len(found) == len(set(found)) == n
    assert (len(names(6, 6)), len(names(6, 6, tier="topk"))) == (163, 455)


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


def test_constant_columns_are_those_of_final_below_the_last_layer() -> None:
    constant = [c for c in compute.columns(3, 2, Extract(tier="topk", k=2)) if c.constant]
    assert len(constant) == 2 * 2 * 2 + 2 * 2
    assert all("_final_" in c.name and c.layer in (0, 1) for c in constant)


def test_columns_say_what_the_options_make_of_them() -> None:
    plain = {c.name: c for c in compute.columns(2, 6, Extract())}
    truth = {c.name: c for c in compute.columns(2, 6, Extract(target="truth", traj_prob="raw", kstar="strict"))}
    assert plain["traj_prob_L0"].formula == "p^(ℓ)(ŷ) if argmax p^(ℓ) = ŷ else 0"
    assert truth["traj_prob_L0"].formula == "p^(ℓ)(y)"
    assert "L where" in plain["k_star"].formula and "L where" not in truth["k_star"].formula
    assert (plain["head_act_stable_L1H3"].layer, plain["head_act_stable_L1H3"].head) == (1, 3)
    assert plain["head_ent_stable_L0H3"].unit == "nats"


def test_core_heads_are_the_papers_or_the_users() -> None:
    def masses(**options) -> list[str]:
        found = compute.columns(6, 6, Extract(tier="core", **options))
        return [c.formula.split(" in ")[1] for c in found if c.name.endswith("_mass")]

    assert masses() == ["L5.H2, L5.H3", "L5.H4, L5.H5"]
    assert masses(anchor_heads=("L0.H1", "L2.H0")) == ["L0.H1, L2.H0", "L5.H4, L5.H5"]


@pytest.mark.parametrize("group", ["anchor", "entity"])
def test_unknown_heads_are_refused_and_other_tiers_take_none(group: str) -> None:
    with pytest.raises(InputError, match=f"this model has layers 0 to 1.*--{group}-heads"):
        compute.columns(2, 6, Extract(tier="core", **{f"{group}_heads": ("L9.H0",)}))
    assert compute.columns(2, 6, Extract(tier="core", **{f"{group}_heads": ("L0.H0",)}))
    for tier in ("structural", "structural+position", "topk"):
        with pytest.raises(InputError, match=f"--{group}-heads has no effect with --tier"):
            Extract(tier=tier, **{f"{group}_heads": ("L0.H0",)})


def test_what_is_of_the_final_layer_says_so_whatever_the_depth() -> None:
    for tier in ("core", "topk"):
        heads = {"anchor_heads": ("all",), "entity_heads": ("all",)} if tier == "core" else {}
        found = compute.columns(3, 1, Extract(tier=tier, **heads))
        final = {c.name for c in found if c.layer == 2 and c.head is None and c.component != "trajectory"}
        assert final == ({"confidence", "context_span"} if tier == "core" else {"attn_span_final", "local_mass_final"})


def test_features_in_their_order_as_numbers_of_one_kind() -> None:
    """Of one head of two layers that showed nothing at three positions."""
    nothing, p = torch.zeros(3, 2, 1), torch.full((2, 3), 0.25)
    predicted, stats = torch.tensor([[5], [7]]).expand(2, 3), compute.AttentionStats(nothing, nothing, nothing)
    record = compute.ForwardRecord(Extract(), predicted[1], stats, predicted, p, p, p[0])
    names = [c.name for c in compute.columns(2, 1, Extract())]
    found = compute.compute(record)
    assert found.shape == (3, len(names)) and found.dtype == torch.float32, "counts too"
    assert found[:, [names.index("kappa"), names.index("k_star")]].tolist() == [[1, 2]] * 3
