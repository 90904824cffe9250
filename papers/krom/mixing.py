"""How mixing matrices of hyper-connections changed in training, and how much the loss did (KROM; SPEC §1.5, §1.10 d).

A logit of H_res moves for three reasons: the gradient of the loss, weight decay, and neither where the storage rounds
both away. `without_gradient` replays a run's schedule with gradients of zero, in its storage and optimiser; what a
trained logit has beyond that came with the loss: with its gradient, and with what AdamW makes of the gradient's noise.
Modules whose mixing cannot change any output (the streams before them are equal, or only their sum is read after them)
check the replay: they show what rounding makes of a gradient that is zero.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.instruments.prompts.alignment import check_tokenizer
from streamscope.instruments.prompts.sets import contrast, encode
from streamscope.instruments.undefined_cells import note
from streamscope.models.checkpoint import load
from streamscope.models.config import KromHC
from streamscope.models.config.presets import preset
from streamscope.models.config.serialization import parse_set, to_dict
from streamscope.models.layers.hyper_mixing import DTYPES, KroneckerConnection
from streamscope.models.mixing import connections, inert_modules, measure
from streamscope.models.training.config import Training
from streamscope.papers.comparison.losses import final_loss
from streamscope.papers.comparison.runs import Run
from streamscope.probes import mixing
from streamscope.probes.directions.measure import find
from streamscope.probes.mixing import AT_REST, DECAY, LEAST, MIX, final, kept_step, kind, log
from streamscope.probes.stream_states import stream_states

NAN = float("nan")
NO_BIAS = "no logit of H_res begins with it"
OF_THE_BIAS = ("b_res", "hc_dtype")
"""Fields of a residual topology that have columns of their own."""
ARM = ["preset", "b_res", "storage", "optimizer", "lr", "decay", "steps"]
"""The columns that name an arm; `preset` also names changed parts of its residual topology (`topology`)."""
RECIPE = {"optimizer": Training().hc_optimizer, "lr": Training().hc_lr, "decay": Training().hc_decay}
"""The blog's optimiser of hyper-connections, its rate and decay, by the columns of an arm."""
CONTRASTS = (("indoor", "outdoor"), ("happy", "sad"))


def without_gradient(run: Run) -> tuple[float, float]:
    """(b_keep, b_swap) after the run's steps with gradients of zero: decay and storage alone."""

    residual = run.config["model"]["residual"]
    start = torch.tensor([0.0, residual["b_res"]]).to(DTYPES[residual["hc_dtype"]])
    keep, swap = mixing.without_gradient(start, run.config["training"], int(run.manifest["steps"])).tolist()
    return keep, swap


def factors(run: Run) -> pd.DataFrame:
    """One row per module and Kronecker factor: its logits, swap, best swap, α_res, and what of the gap the loss made.

    `acts` is whether mixing there can change an output.
    """

    model = load(run.folder, device="cpu")
    rest = without_gradient(run)
    static = {(r["module"], r["metric"], r["part"]): r["value"] for r in measure(model)}
    without = inert_modules(model)
    rows = []
    for name, module in connections(model).items():
        assert isinstance(module, KroneckerConnection), f"{name} is {type(module).__name__}"
        for k, (keep, swap) in enumerate(module.b["res"].detach().to(torch.float64).tolist()):
            gap, gap_of_inert = swap - keep, rest[1] - rest[0]
            rows.append(
                {
                    "module": name, "factor": k, "acts": name not in without, "b_keep": keep, "b_swap": swap,
                    "gap": gap, "gap_without_gradient": gap_of_inert, "by_loss": gap - gap_of_inert,
                    "swap": static[name, "swap_static", f"factor {k}"],
                    "swap_best": NAN if (best := static[name, "swap_best", f"factor {k}"]) is None else best,
                    "alpha_res": NAN if (alpha := static[name, "alpha_res", ""]) is None else alpha,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def way(run: Run, factor_rows: pd.DataFrame) -> pd.DataFrame:
    """Step and mean static swap over the factors that can act (`factor_rows` is the run's `factors`), from its log."""

    rows = log(run.folder)
    own = rows[(rows["metric"] == "swap_static") & rows["module"].isin(set(factor_rows[factor_rows["acts"]]["module"]))]
    return own.groupby("step")["value"].mean().rename("swap").reset_index()


def judged(mixing: pd.DataFrame, factors: pd.DataFrame) -> pd.DataFrame:
    """The mixing table with the factors that can act counted by what they do, by the rule of `probes.mixing`.

    `n_mix`, `n_decay` and `n_still` are by the static swap against that without any gradient.
    """

    acts = factors[factors["acts"]]
    rest = 1 / (1 + np.exp(-acts["gap_without_gradient"]))
    kinds = acts.assign(kind=[kind(s, r, LEAST) for s, r in zip(acts["swap"], rest, strict=True)])
    counts = kinds.groupby([*ARM, "seed", "kind"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=[MIX, DECAY, AT_REST], fill_value=0).set_axis(
        ["n_mix", "n_decay", "n_still"], axis=1
    )
    old = [c for c in ("streams", "distance_static", "distance_dynamic", *counts) if c in mixing]
    return mixing.drop(columns=old).merge(counts.reset_index(), on=[*ARM, "seed"], how="left", validate="1:1")


def layer_cosines(model: Any) -> pd.DataFrame:
    """stream_cosine, the mean over `CONTRASTS` and pairs of streams of cos(r_s, r_s'), and shuffled_cosine, the same
    for shuffled labels (SPEC §1.6); one row per layer."""
    tokenizer, tables = check_tokenizer(model), []
    for names in CONTRASTS:
        rows = [encode(s, tokenizer, model.cfg.n_ctx).tokens for s in contrast(*names)]
        a, b = (stream_states(model, tokens, "mean") for tokens in rows)
        tables.append(find(a, b, draws=20).streams.set_index("layer")[["stream_cosine", "shuffled_cosine"]])
    return sum(tables[1:], tables[0]) / len(tables)


def stream_cosines(run: Run) -> dict[str, float]:
    """`layer_cosines` of a run, means over its layers."""
    return {str(name): float(mean) for name, mean in layer_cosines(load(run.folder, device="cpu")).mean().items()}


def topology(run: Run) -> str:
    """What of a run's residual topology is not its preset's, but for bias and storage: +mhc, +freeze_res, +n=8."""
    own, scale = run.config["model"]["residual"], run.manifest["scale"]
    other = own["kind"] != preset(run.preset, scale).residual.kind
    usual = to_dict(preset(run.preset, scale, **parse_set([f"residual={own['kind']}"])).residual)
    words = [f"+{own['kind']}"] * other
    for name, x in own.items():
        if name not in OF_THE_BIAS and x != usual[name]:
            words.append(f"+{name}" if x is True else f"+{name}={x}")
    return "".join(words)


def hyper_connected(run: Run) -> bool:
    """Whether a run has several streams that hyper-connections mix, by whatever H_res."""
    return "hc_dtype" in run.config["model"]["residual"]


def by_factors(run: Run) -> bool:
    """Whether a run's streams mix by Kronecker factors that train."""
    residual = run.config["model"]["residual"]
    return residual["kind"] == KromHC.kind and not residual["freeze_res"]


def arm(run: Run) -> dict[str, Any]:
    """What distinguishes the hyper-connected runs: topology, bias, storage and its rounding, optimiser, rate and decay.

    The bias is NaN where no logit of H_res begins with it.
    """
    t, residual = run.config["training"], run.config["model"]["residual"]
    storage = residual["hc_dtype"] + ", stochastic" * (t.get("rounding") == "stochastic")
    bias = NAN if residual["freeze_res"] else residual.get("b_res", NAN)
    return {
        "preset": run.arm, "b_res": bias, "storage": storage,
        "optimizer": t["hc_optimizer"], "lr": t["hc_lr"], "decay": t["hc_decay"], "steps": int(run.manifest["steps"]),
    }  # fmt: skip


def mixing_row(run: Run, factor_rows: pd.DataFrame) -> dict[str, Any]:
    """One row of the mixing table: a run's arm, seed, loss, and its mixing, over the factors that can act."""

    acts, inert = factor_rows[factor_rows["acts"]], factor_rows[~factor_rows["acts"]]
    rest = without_gradient(run)
    metrics = final(load(run.folder, device="cpu"), log(run.folder), kept_step(run.folder))
    gradient = metrics.loc[metrics["metric"] == "gradient", "value"].dropna()
    in_use = metrics[(metrics["metric"] == "swap_dynamic") & metrics["module"].isin(set(acts["module"]))]["value"]
    why = {} if len(inert) else {"by_loss_controls": "every module can act"}
    if acts["swap_best"].isna().all():
        why["swap_best"] = "no tanh bounds the dynamic term"
    if gradient.empty:
        why["gradient"] = "not logged at the kept step"
    return {
        **arm(run), "seed": run.seed, **final_loss(run), "factors": len(acts), "swap": float(acts["swap"].mean()),
        "swap_low": float(acts["swap"].min()), "swap_high": float(acts["swap"].max()),
        "swap_best": float(acts["swap_best"].mean()),
        "swap_without_gradient": float(1 / (1 + np.exp(rest[0] - rest[1]))),
        "swap_dynamic": float(in_use.mean()),
        "gap": float(acts["gap"].mean()), "by_loss": float(acts["by_loss"].mean()),
        "by_loss_sd": float(acts["by_loss"].std(ddof=1)),
        "towards": int((acts["by_loss"] > 0).sum()), "by_loss_max": float(acts["by_loss"].max()),
        "by_loss_controls": float(inert["by_loss"].mean()) if len(inert) else NAN,
        **stream_cosines(run),
        "gradient": float(gradient.median()) if len(gradient) else NAN, "undefined": note(why),
    }  # fmt: skip


def arm_label(run: Run) -> str:
    """The arm of a run in few words; of a single stream, its preset."""
    return label(SimpleNamespace(**arm(run))) if hyper_connected(run) else run.arm


def of_blog(runs: pd.DataFrame) -> Iterator[tuple[tuple[str, str, int], pd.DataFrame, dict[float, str]]]:
    """(preset, storage, steps), rows, and initial bias -> label of the arm, of the runs in the blog's recipe whose
    topology is their preset's."""
    if runs.empty:
        return
    plain = ~runs["preset"].str.contains("+", regex=False)
    own = runs[plain & (runs[list(RECIPE)] == list(RECIPE.values())).all(axis=1)]
    for key, one in own.groupby(["preset", "storage", "steps"], sort=False):
        yield key, one, {r.b_res: label(r) for r in one.itertuples()}


def label(r: Any) -> str:
    """An arm in few words."""
    rate = f" {r.lr:g}" if r.optimizer == "sgd" else ""
    decay = "" if r.decay else ", no decay"
    bias = "" if r.b_res != r.b_res else f" {r.b_res:g}"
    return f"{r.preset}{bias}, {r.storage}, {r.optimizer}{rate}{decay}, {r.steps:,} steps"
