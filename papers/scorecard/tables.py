"""What every architecture costs and can do, in one table: numbers of one run, with the instruments of the other rooms.

parameters, flops         forward FLOPs per token of a whole context
loss … mixing             the lines of the competence gate (`probes.phenomena`)
top1.keys, stability.keys of the best head, found on one half of the cases and scored on the other, of all
                          keys; Jaccard of the heads that look at the same noun (LFA Eq. 5, 6)
suppress.d, suppress.above|Cohen's d| of SPS without the head of the largest PDS (LFA §3.3); that change less
                          its mean over random heads
heads.mean, heads.spread  what ablating a head adds to the loss: mean and standard deviation over the heads
heads.interaction         |what a pair adds − what its heads add one at a time|, mean over random pairs
hydra                     share of the heads' direct effects that later layers give back (`given_back`);
                          log-odds of capitalization (McGrath et al. 2023)
specialization, entropy   HSS of all heads (DST Eq. 18); of their attention, nats
amplification             loss at α = 16 less the loss at 1 (DST Eq. 17)
modes, modes.coverage     HDBSCAN clusters of structural features, and the share of tokens in one (PLS C.4)
streams.spread            share of the streams' squared length that is not their mean's, after the last
                          layer (KROM)
"""

from typing import Any

import numpy as np
import torch

from streamscope.cli.errors import InputError
from streamscope.features.cluster.measure import varying_features
from streamscope.features.cluster.modes import ComputationalModes
from streamscope.features.extract import Extract
from streamscope.features.store import features_of
from streamscope.instruments.data import Documents, Tasks, Tokens
from streamscope.instruments.open_data import open_data
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.hydra import Hydra
from streamscope.interventions.suppress import Suppress
from streamscope.models.flops import flops_per_token
from streamscope.models.hooks import capture
from streamscope.papers.paper import DOCUMENTS, Run
from streamscope.probes.coreference import Coreference
from streamscope.probes.phenomena import Phenomena
from streamscope.probes.specialization import Specialization

DEFAULT = "long"
GRIDS: dict[str, str] = {}
TASK, ALPHA, HEAD_PAIRS = "capitalization", 16.0, 60


def opened(run: Run) -> Any:
    """Held-out documents of the run."""
    return open_data(Documents(max_documents=DOCUMENTS), run.model)


def gate(run: Run) -> None:
    """Size, and the competence gate."""
    run.add("parameters", "parameters", run.model.n_params())
    run.add("flops", "FLOPs per token", sum(flops_per_token(run.model).values()))
    for row in Phenomena().measure(run.model, opened(run)).table().frame.to_dict("records"):
        if row["value"] == row["value"]:
            run.add(row["phenomenon"], row["unit"], row["value"])


def heads(run: Run) -> None:
    """Coreference, suppression, ablation, compensation."""
    coreference = Coreference(domain="keys").measure(run.model)
    halves = coreference.table("held-out").frame
    row = halves[(halves["halves"] == "both") & (halves["rule"] == "recency")].iloc[0]
    run.add("top1.keys", "share of cases", row["top1"])
    stability = coreference.table("stability").frame.set_index("reading").loc["jaccard", "mean"]
    if stability == stability:
        run.add("stability.keys", "Jaccard", stability)
    result = Suppress(k=(1,), gates=(1.0, 0.0), measures=("sps",)).measure(run.model)
    effects, controls = result.table("effects").frame, result.table("controls").frame
    effect = effects[(effects["group"] == "selected") & (effects["gate"] == 0) & (effects["part"] == "all")].iloc[0]
    if effect["d"] == effect["d"]:
        run.add("suppress.d", "pooled sd", abs(effect["d"]))
        run.add("suppress.above", "attention", controls["above"].iloc[0])
    data = opened(run)
    delta = Ablate(draws=0).measure(run.model, data).table().frame["delta"].to_numpy(float)
    run.add("heads.mean", "nats per token", delta.mean())
    run.add("heads.spread", "nats per token", delta.std(ddof=1))
    pairs = Ablate(draws=0, size=2, sets=HEAD_PAIRS).measure(run.model, data).table().frame["interaction"]
    run.add("heads.interaction", "nats per token", pairs.abs().mean())
    try:
        effects = Hydra().measure(run.model, Tasks(tasks=(TASK,))).table().frame
    except InputError:  # an architecture whose heads have no direct effect
        return
    direct, compensation = effects["direct"].to_numpy(float), effects["compensation"].to_numpy(float)
    if np.abs(direct).sum():
        run.add("hydra", "share of the direct effect", given_back(direct, compensation))


def given_back(direct: np.ndarray, compensation: np.ndarray) -> float:
    """−Σ_h sign(direct_h) compensation_h / Σ_h |direct_h| over heads h.

    1 where later layers repair all that a head's removal does, below 0 where they add to it; NaN without an effect.
    """
    total = np.abs(direct).sum()
    return float(-(np.sign(direct) * compensation).sum() / total) if total else float("nan")


def attention(run: Run) -> None:
    """Specialization, entropy, sharpening, modes, streams."""
    data = opened(run)
    result = Specialization().measure(run.model, data)
    run.add("specialization", "1 − cosine", result.table("hss").frame.set_index("scope").loc["all", "hss"])
    run.add("entropy", "nats", result.table("entropy").frame.query("index >= 0")["entropy"].mean())
    sharp = Amplify(alpha=(1.0, ALPHA), sample_tokens=1).measure(run.model, data).table().frame.set_index("alpha")
    run.add("amplification", "nats per token", sharp.loc[ALPHA, "delta"])
    features = features_of(Extract(tier="structural", raw=()).measure(run.model, Tokens(max_tokens=10_000)))
    labels = ComputationalModes("hdbscan").fit(varying_features(features)[0]).labels_
    run.add("modes", "clusters", len(set(labels[labels >= 0])))
    run.add("modes.coverage", "share of tokens", (labels >= 0).mean())
    hook = f"blocks.{run.last}.hook_streams_post"
    if hook not in run.model.hook_dict:
        return
    shares = []
    for ids in data.rows():
        with torch.no_grad(), capture(run.model, [hook]) as cache:
            run.model(torch.tensor([ids[: run.model.config.n_ctx]], device=run.model.cfg.device))
        streams = cache[hook][0].double()
        deviation = (streams - streams.mean(1, keepdim=True)).square().sum((1, 2))
        shares.append(float((deviation / streams.square().sum((1, 2))).mean()))
    run.add("streams.spread", "share", float(np.mean(shares)))


MEASURES = (gate, heads, attention)
