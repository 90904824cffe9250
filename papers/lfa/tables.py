"""The numbers of LFA's tables and figures that the registered claims do not have: per head, and gate by gate.

parameters                     of the model
pds.head                       PDS of each head (Eq. 7; the sign is lost), pairs of competing nouns
pds.mean, pds.over.late        its mean over heads; heads above .075 in the last two layers, .early in the others
pds.over, part L0 …            heads above .075 in each layer (Figure 1)
top1.head, attention.head      share of prompts on which a head attends most, of all keys, to the antecedent; its mean
                               attention to it (Table 3)
attention.best, .tenth         largest and tenth largest mean attention of a head
gate.sps, gate.preference      SPS, and ln p of the right habit − of the competitor's, with the outputs of the k heads
                               of the largest PDS times x (Figures 5, 6; part top1, top3). Heads are ranked on one half
                               of the pairs and turned down on the other, both ways.
stability                      of a pair: heads that find the antecedent in both orders, as a share of those that do in
                               one (Appendix G), mean over pairs
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamscope.instruments.stats.held_out import halves
from streamscope.interventions.edits import scale_heads
from streamscope.models.head_spec import Head
from streamscope.papers.paper import Run
from streamscope.probes.coherence.measure import rows as coherence_rows
from streamscope.probes.coreference import Coreference
from streamscope.probes.pds import Pds
from streamscope.probes.sps import Sps

DEFAULT = "differences"
GRIDS = {"Table 2": "long", "Appendix H": "long"}
"""Places that show another training than `DEFAULT`."""
THRESHOLD = 0.075
GATES = (1.0, 0.75, 0.5, 0.25, 0.0)
TOP = (1, 3)


def heads(run: Run) -> None:
    """PDS, Top-1 and attention of every head."""
    run.add("parameters", "parameters", run.model.n_params())
    table = run.probe(Pds())
    table = table[table["category"] == "competing-nouns"]
    pds = table.groupby(["layer", "index"])["difference"].mean().abs()
    hit_rows = run.probe(Coreference(domain="keys"))
    hits = hit_rows.assign(hit=hit_rows["hit"].astype(float)).groupby(["layer", "index"])[["hit", "attention"]].mean()
    for (layer, head), value in pds.items():
        name = f"L{layer}.H{head}"
        run.add("pds.head", "attention", value, name)
        run.add("top1.head", "share of prompts", hits.loc[(layer, head), "hit"], name)
        run.add("attention.head", "attention", hits.loc[(layer, head), "attention"], name)
    is_over = pds > THRESHOLD
    run.add("pds.mean", "attention", pds.mean())
    late = is_over.index.get_level_values("layer") >= run.last - 1
    run.add("pds.over.late", "heads", is_over[late].sum())
    run.add("pds.over.early", "heads", is_over[~late].sum())
    for layer in range(run.last + 1):
        run.add("pds.over", "heads", is_over[layer].sum(), f"L{layer}")
    largest = hits["attention"].sort_values(ascending=False).to_numpy()
    run.add("attention.best", "attention", largest[0])
    run.add("attention.tenth", "attention", largest[9])
    pairs = hit_rows.assign(hit=hit_rows["hit"].astype(bool)).groupby(["pair", "head"])["hit"].agg(["all", "any"])
    by_pair = pairs.groupby("pair").sum()
    hit_pairs = by_pair[by_pair["any"] > 0]
    run.add("stability", "share of heads", (hit_pairs["all"] / hit_pairs["any"]).mean())


def gates(run: Run) -> None:
    """SPS and the behavioural preference as the heads of the largest PDS are turned down."""
    table = run.probe(Pds())
    table = table[table["category"] == "competing-nouns"]
    side = halves(table, 0)[0]
    half_of = dict(zip(table["pair"], side, strict=True))
    prompts = run.pairs.prompts
    members = [
        [i for i, p in enumerate(prompts) if p.category == "competing-nouns" and half_of.get(p.pair) == 1 - half]
        for half in (0, 1)
    ]
    for k in TOP:
        for gate in GATES:
            values = []
            for half in (0, 1):
                sizes = table[side == half].groupby(["layer", "index"])["difference"].mean().abs()
                top_heads = [Head(*place) for place in sizes.sort_values(ascending=False).index[:k]]
                edits = scale_heads(top_heads, gate) if gate < 1 else None
                values.append(_preferences(run, run.pairs.only(members[half]), edits))
            for name, unit, value in zip(("sps", "preference"), ("attention", "nats"), np.mean(values, 0), strict=True):
                run.add(f"gate.{name}", unit, value, f"top{k}", gate)


def _preferences(run: Run, prompts: Any, edits: Any) -> Sequence[float]:
    """(SPS over heads and prompts, mean log-odds of the right habit)."""
    sps = run.probe(Sps(), edits, prompts)["sps"].mean()
    return sps, coherence_rows(run.model, prompts, None, run.tokenizer, edits)["log_odds"].mean()


MEASURES = (heads, gates)
