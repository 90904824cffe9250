"""What is measured on one run: a row per quantity, with its unit, interval and n, or why there is none.

parameters, flops                    forward FLOPs per token of a whole context
speed                                training tokens per second, median of the run's log; it is the machine's and that
                                     of what else ran, as well: no arm is compared by it (`benchmarks.training` does)
loss … mixing                        the lines of the competence gate (`probes.phenomena`), on 300 pairs of stories
top1.keys, top1.keys.recency         of the best head, chosen on one half of the cases and scored on the other; the
                                     share of cases in which the latest noun is meant (LFA Eq. 5)
stability.keys                       Jaccard of the heads that look at the same noun (LFA Eq. 6)
suppress.d                           |Cohen's d| of SPS without the head of the largest PDS (LFA §3.3, App. D)
suppress.above                       that change of SPS less its mean over random heads
heads.mean, heads.spread             what ablating a head adds to the loss: mean and standard deviation over the heads
heads.interaction                    |what a pair adds − what its heads add one at a time|, mean over random pairs
hydra                                share of the heads' direct effects that later layers give back, below 0 where they
                                     add to them (`given_back`); log-odds of capitalization (McGrath et al. 2023)
specialization, entropy              HSS of all heads (DST Eq. 18); of their attention, nats
amplification                        loss at α = 16 less the loss at 1 (DST Eq. 17)
modes, modes.coverage                HDBSCAN clusters of 455-D features, and the share of tokens in one (PLS C.4)
streams.spread                       share of the streams' squared length that is not their mean's, after the last
                                     layer (KROM)
"""

from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents, Tasks
from streamscope.instruments.open_data import open_data
from streamscope.instruments.stats.estimators import mean
from streamscope.instruments.undefined_cells import reasons
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.suppress import Suppress
from streamscope.models.flops import flops_per_token
from streamscope.models.hooks import capture
from streamscope.papers.comparison.seeds import NAN, Progress, Rows
from streamscope.papers.modes.measure import modes_of
from streamscope.papers.scorecard.options import Settings
from streamscope.probes.coreference import Coreference
from streamscope.probes.phenomena import Phenomena
from streamscope.probes.specialization import Specialization
from streamscope.text.shards import TokenShards

TASK = "capitalization"
ALPHA = 16.0
PAIRS = 300
"""Of the gate's stories."""


def measure_run(model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> pd.DataFrame:
    """The quantities of one run. What an architecture does not have is a row with the reason and without a value."""
    rows = Rows()
    rows.add("parameters", "size", "parameters", model.n_params())
    rows.add("flops", "size", "FLOPs per token", sum(flops_per_token(model).values()))
    data = open_data(Documents(max_documents=settings.documents), model)
    _gate(rows, model, data, progress)
    _coreference(rows, model, progress)
    _suppression(rows, model, settings, progress)
    _heads(rows, model, data, settings, progress)
    _hydra(rows, model, progress)
    _attention(rows, model, data, settings, progress)
    modes_of(own := Rows(), model, shards, settings.modes, settings.seed, progress)
    for row in own.rows:
        if name := {"hdbscan.clusters": "modes", "hdbscan.coverage": "modes.coverage"}.get(row["quantity"]):
            rows.rows.append({**row, "quantity": name, "family": "modes"})
    _streams(rows, model, data)
    return pd.DataFrame(rows.rows)


def _gate(rows: Rows, model: Any, data: Any, progress: Progress) -> None:
    gate = Phenomena(n=PAIRS).measure(model, data, progress=progress("gate"))
    for r in gate.table().short("value").to_dict("records"):
        why = reasons(r["undefined"]).get("value", "")
        interval = (r["ci_low"], r["ci_high"])
        rows.add(r["phenomenon"], "gate", r["unit"], r["value"], sd=r["sd"], interval=interval, n=int(r["n"]),
                 detail=str(r["head"]), why=why)  # fmt: skip


def _coreference(rows: Rows, model: Any, progress: Progress) -> None:
    result = Coreference(domain="keys").measure(model, progress=progress("coreference"))
    halves = result.table("held-out").frame
    both = halves[(halves["halves"] == "both") & (halves["rule"] == "recency")].iloc[0]
    n = int(both["n"])
    rows.add("top1.keys", "coreference", "share of cases", both["top1"], n=n, detail=str(both["head"]))
    rows.add("top1.keys.recency", "coreference", "share of cases", both["rule_share"], n=n)
    r = result.table("stability").short("mean").set_index("reading").loc["jaccard"]
    why = reasons(r["undefined"]).get("mean", "")
    interval = (r["ci_low"], r["ci_high"])
    rows.add("stability.keys", "coreference", "Jaccard", r["mean"], interval=interval, n=int(r["pairs"]), why=why)


def _suppression(rows: Rows, model: Any, settings: Settings, progress: Progress) -> None:
    how = Suppress(k=(1,), gates=(1.0, 0.0), measures=("sps",), seed=settings.seed)
    result = how.measure(model, progress=progress("suppression"))
    effects, controls = result.table("effects").short("delta"), result.table("controls").short("above")
    one = effects[(effects["group"] == "selected") & (effects["gate"] == 0) & (effects["part"] == "all")].iloc[0]
    head = str(one["heads"])
    low, high = sorted((abs(one["d_low"]), abs(one["d_high"])))
    low = 0.0 if one["d_low"] <= 0 <= one["d_high"] else low
    why = "" if one["d"] == one["d"] else reasons(one["undefined"]).get("d", "no spread of SPS between prompts")
    rows.add("suppress.d", "suppression", "pooled sd", abs(one["d"]), interval=(low, high), n=int(one["n"]),
             detail=head, why=why)  # fmt: skip
    r = controls.iloc[0]
    why = reasons(r["undefined"]).get("above", "")
    interval = (r["ci_low"], r["ci_high"])
    rows.add("suppress.above", "suppression", "SPS", r["above"], interval=interval, n=int(r["draws"]), detail=head,
             why=why)  # fmt: skip


def _heads(rows: Rows, model: Any, data: Any, settings: Settings, progress: Progress) -> None:
    alone = Ablate(draws=0).measure(model, data, progress=progress("heads")).table().frame
    delta = alone["delta"].to_numpy(float)
    numbers = mean(delta)
    rows.add("heads.mean", "ablation", "nats per token", numbers.mean, n=len(delta))
    most = alone.loc[alone["delta"].idxmax()]
    rows.add("heads.spread", "ablation", "nats per token", delta.std(ddof=1), n=len(delta), detail=str(most["head"]))
    how = Ablate(draws=0, size=2, sets=settings.pairs, seed=settings.seed)
    pairs = how.measure(model, data, progress=progress("pairs of heads")).table().frame
    numbers = mean(np.abs(pairs["interaction"].to_numpy(float)))
    rows.add("heads.interaction", "ablation", "nats per token", numbers.mean, sd=numbers.sd,
             interval=(numbers.ci_low, numbers.ci_high), n=len(pairs))  # fmt: skip


def _hydra(rows: Rows, model: Any, progress: Progress) -> None:
    name, unit = "hydra", "share of the direct effect"
    try:
        result = Hydra().measure(model, Tasks(tasks=(TASK,)), progress=progress("hydra"))
    except InputError as error:
        rows.add(name, "compensation", unit, NAN, why=str(error))
        return
    effects = result.table().frame
    direct, back = effects["direct"].to_numpy(float), effects["compensation"].to_numpy(float)
    why = "" if np.abs(direct).sum() else "no head has a direct effect"
    rows.add(name, "compensation", unit, given_back(direct, back), n=len(effects), why=why)


def given_back(direct: np.ndarray, back: np.ndarray) -> float:
    """−Σ_h sign(direct_h) compensation_h / Σ_h |direct_h| over heads h.

    1 where later layers repair all that a head's removal does, below 0 where they add to it.
    """
    whole = np.abs(direct).sum()
    return float(-(np.sign(direct) * back).sum() / whole) if whole else NAN


def _attention(rows: Rows, model: Any, data: Any, settings: Settings, progress: Progress) -> None:
    result = Specialization().measure(model, data, progress=progress("specialization"))
    r = result.table("hss").frame.set_index("scope").loc["all"]
    rows.add(
        "specialization", "attention", "1 − cosine", r["hss"], interval=(r["hss_low"], r["hss_high"]), n=int(r["n"])
    )
    heads = result.table("entropy").frame.query("index >= 0")["entropy"]
    rows.add("entropy", "attention", "nats", heads.mean(), sd=heads.std(), n=len(heads))
    result = Amplify(alpha=(1.0, ALPHA), sample_tokens=1).measure(model, data, progress=progress("amplification"))
    r = result.table().frame.set_index("alpha").loc[ALPHA]
    interval = (r["delta_low"], r["delta_high"])
    rows.add("amplification", "attention", "nats per token", r["delta"], interval=interval, n=int(r["n"]))


def _streams(rows: Rows, model: Any, data: Any) -> None:
    """Σ_n ‖s_n − s̄‖² / Σ_n ‖s_n‖² of the streams s_n at a token, mean over tokens, its interval over documents."""
    name, hook = "streams.spread", f"blocks.{model.config.n_layers - 1}.hook_streams_post"
    if hook not in model.hook_dict:
        rows.add(name, "streams", "share", NAN, why="no parallel streams")
        return
    shares = []
    for ids in data.rows():
        with torch.no_grad(), capture(model, [hook]) as cache:
            model(torch.tensor([ids[: model.config.n_ctx]], device=model.cfg.device))
        streams = cache[hook][0].double()
        apart = (streams - streams.mean(1, keepdim=True)).square().sum((1, 2))
        shares.append(float((apart / streams.square().sum((1, 2))).mean()))
    m = mean(np.array(shares))
    rows.add(name, "streams", "share", m.mean, sd=m.sd, interval=(m.ci_low, m.ci_high), n=m.n)
