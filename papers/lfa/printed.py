"""What paper LFA (arXiv 2603.07482) prints, and the claims it makes of its numbers.

A number is kept as printed, with the words around it as a plain-text copy of the paper gives them (formulas twice).
The claims are compared with measured ones in `papers.lfa.claims`.
"""

from streamscope.papers.comparison.printed import Bound, Order, Printed

TABLE2, TABLE4, TABLE5 = "Table 2", "Table 4", "Table 5"
COUNTS = (
    "Using threshold PDS >0.075>0.075 for counts, Table 4 confirms this: LFA has 5 recency heads in L4-L5 "
    "(max PDS = 0.276 at L5.H0), Std-T has 0 in L5 (max = 0.058), and CFM has 0 in L4-L5 (max = 0.032)."
)
SPS = 0.002
"""The smallest effect of interest in SPS: the paper calls a change of .00215 shallow, its largest is .0133 (§5.2)."""

PEAKS = 0.05
"""The smallest difference of interest in Sarle's coefficient: an even spread has 5/9, a normal one 1/3."""
NOUNS = ("key-box", "hammer-basket", "brush-bag")
"""The pairs of competing nouns of the suite; the first is the paper's (§3.1), of its other two it prints no nouns."""

PRINTED: tuple[Printed, ...] = (
    Printed("std-t", "parameters", "22.2M", TABLE2, "Std-T dns dns 22.2M 1.8114"),
    Printed("d-cas", "parameters", "21.2M", TABLE2, "D-Cas dns dns 21.2M 1.8399"),
    Printed("lfa", "parameters", "18.5M", TABLE2, "LFA ind dns 18.5M 1.9063"),
    Printed("cfm", "parameters", "13.4M", TABLE2, "CFM ind ind 13.4M 2.1019"),
    Printed("std-t", "loss", "1.8114", TABLE2, "Std-T dns dns 22.2M 1.8114"),
    Printed("d-cas", "loss", "1.8399", TABLE2, "D-Cas dns dns 21.2M 1.8399"),
    Printed("lfa", "loss", "1.9063", TABLE2, "LFA ind dns 18.5M 1.9063"),
    Printed("cfm", "loss", "2.1019", TABLE2, "CFM ind ind 13.4M 2.1019"),
    Printed("d-cas", "cost", "1.6%", "§5.4", "frozen positional stream alone (D-Cas) costs 1.6% vs. Std-T"),
    Printed("lfa", "cost", "5%", "§5.4, §7", "achieving modularity for 5% total cost"),
    Printed("cfm", "cost.added", "11%", "§5.4", "Excessive constraint (CFM) adds 11% (2.1019)"),
    Printed("lfa", "cost.d-cas", "3.6%", "App. H", "Channel factorization cost: LFA vs. D-Cas = 3.6%"),
    Printed("lfa", "pds.over", "7", TABLE4, "LFA 7 5 0.276 0.061"),
    Printed("lfa", "pds.over.late", "5", TABLE4, "LFA 7 5 0.276 0.061"),
    Printed("lfa", "pds.max.L5", "0.276", TABLE4, "LFA 7 5 0.276 0.061"),
    Printed("lfa", "pds.mean", "0.061", TABLE4, "LFA 7 5 0.276 0.061"),
    Printed("std-t", "pds.over", "3", TABLE4, "Std-T 3 1 0.058 0.032"),
    Printed("std-t", "pds.over.late", "1", TABLE4, "Std-T 3 1 0.058 0.032"),
    Printed("std-t", "pds.max.L5", "0.058", TABLE4, "Std-T 3 1 0.058 0.032"),
    Printed("std-t", "pds.mean", "0.032", TABLE4, "Std-T 3 1 0.058 0.032"),
    Printed("cfm", "pds.over", "5", TABLE4, "CFM 5 0 0.032 0.042"),
    Printed("cfm", "pds.over.late", "0", TABLE4, "CFM 5 0 0.032 0.042"),
    Printed("cfm", "pds.max.L5", "0.032", TABLE4, "CFM 5 0 0.032 0.042"),
    Printed("cfm", "pds.mean", "0.042", TABLE4, "CFM 5 0 0.032 0.042"),
    Printed("std-t", "pds.over.early", "2", "§5.1", "(2 of 3 heads in L0-L1)"),
    Printed("lfa", "coreference.keys.best", "48.3%", "Table 3", "correctly resolves 48.3% of all instances"),
    Printed("std-t", "coreference.keys.best", "46.9%", "§4.1", "(best head L1.H5: 46.9%)"),
    Printed("lfa", "coreference.keys.over30", "12", "App. E", "LFA has 12 heads with Top1 accuracy"),
    Printed("std-t", "coreference.keys.over30", "7", "App. E", "versus 7 for Std-T"),
    Printed("lfa", "attention.best", "0.323", "Table 3", "with mean attention 0.323"),
    Printed("std-t", "attention.best", "0.315", "App. E", "top 10 range from 0.098 to 0.315"),
    Printed("lfa", "attention.tenth", "0.179", "App. E", "heads range from 0.179 to 0.323"),
    Printed("std-t", "attention.tenth", "0.098", "App. E", "top 10 range from 0.098 to 0.315"),
    Printed("lfa", "coreference.keys.best_layer", "4", "§4.1", "The top head (L4.H3) correctly resolves"),
    Printed("std-t", "coreference.keys.best_layer", "1", "§4.1", "(best head L1.H5: 46.9%)"),
    Printed("lfa", "coreference.top5_in_L3-L4", "5", "§4.3", "LFA’s top 5 specialists co-locate in L3-L4"),
    Printed("lfa", "stability.keys.jaccard.coreference", "0.42", "App. G", "0.50, 0.27, and 0.50 (mean 0.42)"),
    Printed("std-t", "stability.keys.jaccard.coreference", "0.19", "App. G", "0.25, 0.20, and 0.125 (mean 0.19)"),
    Printed("cfm", "stability.keys.jaccard.coreference", "0.11", "App. G", "0.0, 0.33, and 0.0 (mean 0.11)"),
    *(
        Printed(preset, f"stability.keys.pair.{nouns}", text, "App. G", quote)
        for preset, texts, quote in (
            ("lfa", ("0.50", "0.27", "0.50"), "0.50, 0.27, and 0.50 (mean 0.42)"),
            ("std-t", ("0.25", "0.20", "0.125"), "0.25, 0.20, and 0.125 (mean 0.19)"),
            ("cfm", ("0.0", "0.33", "0.0"), "0.0, 0.33, and 0.0 (mean 0.11)"),
        )
        for nouns, text in zip(NOUNS, texts, strict=True)
    ),
    Printed("lfa", "sps", "0.0058", "§5.2", "SPS decreases from 0.0058 to 0.0008"),
    Printed("cfm", "sps", "0.0201", "§5.2", "SPS drops from 0.0201 to 0.0068"),
    Printed("lfa", "suppress.over.sps.d", "-0.158", TABLE5, "LFA L5 7 -0.158 0.028"),
    Printed("std-t", "suppress.over.sps.d", "-0.298", TABLE5, "Std-T L1, L4 3 -0.298"),
    Printed("cfm", "suppress.over.sps.d", "-0.672", TABLE5, "CFM L2 5 -0.672"),
    Printed("lfa", "suppress.over.sps.abs_d", "0.158", TABLE5, "LFA L5 7 -0.158 0.028"),
    Printed("std-t", "suppress.over.sps.abs_d", "0.298", TABLE5, "Std-T L1, L4 3 -0.298"),
    Printed("cfm", "suppress.over.sps.abs_d", "0.672", TABLE5, "CFM L2 5 -0.672"),
    Printed("lfa", "suppress.top1.sps", "+0.00215", "§5.2", "SPS = +0.00215 for k=1"),
    Printed("std-t", "suppress.top1.sps", "-0.008", "§5.2", r"while Std-T collapses (Δ\DeltaSPS 0.008\approx-0.008)"),
)

ORDERS: tuple[Order, ...] = (
    Order("parameters", "std-t", "d-cas", TABLE2),
    Order("parameters", "d-cas", "lfa", TABLE2),
    Order("parameters", "lfa", "cfm", TABLE2),
    Order("loss", "d-cas", "std-t", "Table 2, §5.4"),
    Order("loss", "lfa", "d-cas", "Table 2, App. H"),
    Order("loss", "lfa", "std-t", "Table 2, §5.4"),
    Order("loss", "cfm", "lfa", "Table 2, App. H"),
    Order("pds.max.L5", "lfa", "std-t", "Table 4, §5.1"),
    Order("pds.max.L5", "lfa", "cfm", "Table 4, §5.1"),
    Order("pds.mean", "lfa", "std-t", TABLE4),
    Order("pds.mean", "lfa", "cfm", TABLE4),
    Order("pds.over", "lfa", "std-t", TABLE4),
    Order("pds.over", "lfa", "cfm", TABLE4),
    Order("pds.over.late", "lfa", "std-t", TABLE4),
    Order("pds.over.late", "lfa", "cfm", TABLE4),
    Order("coreference.keys.best", "lfa", "std-t", "§4.1"),
    Order("coreference.keys.over30", "lfa", "std-t", "App. E"),
    Order("attention.tenth", "lfa", "std-t", "App. E"),
    Order("coreference.keys.best_layer", "lfa", "std-t", "§4.1"),
    Order("stability.keys.jaccard.coreference", "lfa", "std-t", "§4.2, App. G"),
    Order("stability.keys.jaccard.coreference", "lfa", "cfm", "§4.2, App. G"),
    Order("stability.keys.jaccard.coreference", "std-t", "cfm", "§4.2, App. G"),
    Order("stability.keys.jaccard.competing", "lfa", "std-t", "§4.2, App. G"),
    Order("stability.keys.jaccard.competing", "lfa", "cfm", "§4.2, App. G"),
    Order("sps", "cfm", "lfa", "§5.2", SPS),
    Order("suppress.top1.sps", "lfa", "std-t", "§5.2", SPS),
    *(
        Order(f"suppress.{selection}.sps.abs_d", more, less, "Table 5, §5.2")
        for selection in ("over", "top1", "top3")
        for more, less in (("std-t", "lfa"), ("cfm", "lfa"), ("cfm", "std-t"))
    ),
    Order("coreference.keys.over30", "lfa", "d-cas", "§7"),
    Order("pds.over", "lfa", "d-cas", "App. C"),
    Order("coreference.keys.best", "lfa", "d-cas", "App. B.4"),
    Order("pds.max.L5", "d-cas", "std-t", "App. B.4"),
    Order("coreference.keys.minus_recency", "lfa", "std-t", "abstract"),
    Order("attention.best", "lfa", "std-t", "§3.1"),
    Order("coreference.top5_layers", "std-t", "lfa", "§4.1"),
    Order("coreference.top5_in_L3-L4", "lfa", "std-t", "§4.3"),
    Order("pds.bimodality", "lfa", "std-t", "Fig. 4, App. C", PEAKS),
    Order("pds.bimodality", "lfa", "cfm", "Fig. 4, App. C", PEAKS),
)
"""Of D-Cas the paper prints no heads, and speaks of them: "no specialization" (§7), "independent channels create
distinct functional modules", "symbolic routing benefits from channelization", "inductive patterns from frozen token
streams"."""

BOUNDS: tuple[Bound, ...] = (
    Bound("pds.over.middle-rest", "cfm", "above", "0", "Fig. 1, Fig. 7", "CFM’s mid-layer concentration"),
    Bound("pds.over.L1", "std-t", "above", "0", TABLE5, "Std-T L1, L4 3 -0.298"),
    Bound("pds.over.L2", "cfm", "above", "0", TABLE5, "CFM L2 5 -0.672"),
    Bound("stability.keys.stable", "lfa", "above", "3", "App. G, §4.2", "corresponding to 3–6 stable heads per pair"),
    Bound("stability.keys.stable", "cfm", "below", "1", "App. G, §4.2", "with 0–1 stable heads"),
    Bound("suppress.over.sps", "std-t", "below", "0", "Table 5, §5.2", "Std-T L1, L4 3 -0.298", SPS),
    Bound("suppress.over.sps", "cfm", "below", "0", "Table 5, §5.2", "SPS drops from 0.0201 to 0.0068", SPS),
    Bound(
        "suppress.over.sps.above_random",
        "lfa",
        "below",
        "0",
        "§5.2",
        "late fusion localizes positional influence into surgically targetable heads",
        SPS,
    ),
    Bound("pds.max.L5", "lfa", "above", "0.075", "Table 4, §5.1", COUNTS),
    Bound("pds.max.L5", "std-t", "below", "0.075", "Table 4, §5.1", COUNTS),
    Bound("pds.max.L5", "cfm", "below", "0.075", "Table 4, §5.1", COUNTS),
    Bound("pds.over.late-early", "lfa", "above", "0", "§5.1, Figure 1", "LFA concentrates positional processing"),
    Bound("pds.over.late-early", "std-t", "below", "0", "§5.1, Figure 1", "Std-T processes position in layers 0-1"),
    Bound("suppress.over.sps.abs_d_largest_relation", "lfa", "below", "0.2", "App. F", "LFA demonstrates |d|<0.2"),
    Bound("suppress.over.sps.abs_d_smallest_relation", "cfm", "above", "0.5", "App. F", "CFM shows |d|>0.5"),
    Bound(
        "suppress.over.sps.asymmetry",
        "lfa",
        "below",
        "0.01",
        "App. F",
        "LFA shows symmetric responses (difference <0.01",
        SPS,
    ),
    Bound(
        "suppress.over.sps.asymmetry",
        "std-t",
        "above",
        "0.05",
        "App. F",
        "Std-T shows asymmetric responses (difference >0.05",
        SPS,
    ),
)


def printed(preset: str, quantity: str) -> Printed | None:
    """What the paper prints of a quantity, if it does."""
    return next((p for p in PRINTED if (p.preset, p.quantity) == (preset, quantity)), None)
