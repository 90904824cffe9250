"""What the mixing matrices of trained hyper-connections became, and what of it the loss did (KROM; SPEC §1.5, §1.10 d).

A logit of H_res moves for three reasons: the gradient of the loss, weight decay, and neither where the storage rounds
both away. `without_gradient` replays a run's schedule with gradients of zero, in its storage and optimiser; what a
trained logit has beyond that came with the loss: with its gradient, and with what AdamW makes of the gradient's noise.
Modules whose mixing cannot change any output (the streams before them are equal, or only their sum is read after them)
check the replay: they show what rounding makes of a gradient that is zero.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from papers.runs import Run

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
ARM_OF_THE_MODEL = ("residual.b_res", "residual.hc_dtype")
"""Fields of a model's configuration in which arms may differ."""
CONTRASTS = (("indoor", "outdoor"), ("happy", "sad"))
FACTOR_UNITS = {
    "b_keep": "logit",
    "b_swap": "logit",
    "gap": "logit, b_swap − b_keep",
    "gap_without_gradient": "logit",
    "by_loss": "logit, gap − gap without gradient",
    "swap": "probability",
    "swap_best": "probability",
}
RUN_UNITS = {
    "b_res": "logit",
    "loss": "nats per token",
    "swap": "probability, mean over factors that can act",
    "swap_low": "probability",
    "swap_high": "probability",
    "swap_best": "probability, mean over factors that can act",
    "swap_without_gradient": "probability",
    "swap_dynamic": "probability in use, mean over factors that can act and tokens of the monitor",
    "gap": "logit, mean over factors that can act",
    "by_loss": "logit, mean over factors that can act",
    "by_loss_max": "logit, the factor that went furthest towards mixing",
    "by_loss_controls": "logit, mean over factors that cannot act",
    "distance_static": "Frobenius norm",
    "distance_dynamic": "Frobenius norm",
    "gradient": "nats per token per logit: median over modules of ‖∂L/∂b_res‖ at the end; AdamW's ε is 1e-8",
    "stream_cosine": "cosine, mean over pairs, layers and contrasts",
    "shuffled_cosine": "as stream_cosine, labels shuffled",
}


def without_gradient(run: Run) -> tuple[float, float]:
    """(b_keep, b_swap) after the run's steps with gradients of zero: decay and storage alone."""
    import torch

    from models.hyper_mixing import DTYPES
    from models.training.optim import lr_factor

    t, residual = run.config["training"], run.config["model"]["residual"]
    b = torch.nn.Parameter(torch.tensor([0.0, residual["b_res"]]).to(DTYPES[residual["hc_dtype"]]))
    wide: dict[str, Any] = {"lr": t["hc_lr"], "weight_decay": t["hc_decay"]}
    optimizer: torch.optim.Optimizer = torch.optim.SGD([b], **wide)
    if t["hc_optimizer"] == "adamw":
        optimizer = torch.optim.AdamW([b], betas=(t["hc_beta1"], t["hc_beta2"]), fused=True, **wide)
    steps = int(run.manifest["steps"])
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = t["hc_lr"] * lr_factor(step, steps, t["warmup"], t["lr_floor"])
        b.grad = torch.zeros_like(b)
        optimizer.step()
    keep, swap = b.detach().tolist()
    return keep, swap


def factors(run: Run) -> "pd.DataFrame":
    """One row per module and Kronecker factor: its logits, swap and best swap, and what of the gap the loss made.

    `acts` is whether mixing there can change an output, by the training log's reasons for absent gradients.
    """
    import pandas as pd
    import torch

    from models.checkpoint import load
    from models.hyper_mixing import KroneckerConnection
    from models.mixing import connections, measure

    model = load(run.folder, device="cpu")
    rest = without_gradient(run)
    static = {(r["module"], r["metric"], r["part"]): r["value"] for r in measure(model)}
    idle = _idle(run)
    rows = []
    for name, module in connections(model).items():
        assert isinstance(module, KroneckerConnection), f"{name} is {type(module).__name__}"
        for k, (keep, swap) in enumerate(module.b["res"].detach().to(torch.float64).tolist()):
            gap, still = swap - keep, rest[1] - rest[0]
            rows.append(
                {
                    "module": name, "factor": k, "acts": name not in idle, "b_keep": keep, "b_swap": swap, "gap": gap,
                    "gap_without_gradient": still, "by_loss": gap - still,
                    "swap": static[name, "swap_static", f"factor {k}"],
                    "swap_best": NAN if (best := static[name, "swap_best", f"factor {k}"]) is None else best,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _idle(run: Run) -> set[str]:
    """Modules whose gradient the monitor logged as undefined: mixing changes nothing there."""
    from probes.mixing import log

    logged = log(run.folder)
    lost = logged[(logged["metric"] == "gradient") & logged["why"].str.contains("changes nothing", na=False)]
    return set(lost["module"])


def stream_cosines(run: Run, contrasts: Sequence[tuple[str, str]] = CONTRASTS, draws: int = 20) -> dict[str, float]:
    """Mean over contrasts, layers and pairs of streams of cos(r_s, r_s'), also for shuffled labels (SPEC §1.6)."""
    import numpy as np

    from models.checkpoint import load
    from probes.align import check_tokenizer
    from probes.direction_tables import find
    from probes.prompt_sets import contrast, encode
    from probes.stream_states import stream_states

    model = load(run.folder, device="cpu")
    tokenizer = check_tokenizer(model)
    tables = []
    for names in contrasts:
        rows = [encode(s, tokenizer, model.cfg.n_ctx).tokens for s in contrast(*names)]
        a, b = (stream_states(model, tokens, "mean") for tokens in rows)
        tables.append(find(a, b, run=run.name, preset=run.preset, draws=draws).streams)
    return {
        name: float(np.mean([table[name].mean() for table in tables])) for name in ("stream_cosine", "shuffled_cosine")
    }


def arm(run: Run) -> dict[str, Any]:
    """What distinguishes the hyper-connected runs: bias, storage, optimiser, its peak rate and decay."""
    t, residual = run.config["training"], run.config["model"]["residual"]
    return {
        "preset": run.preset, "b_res": residual["b_res"], "storage": residual["hc_dtype"],
        "optimizer": t["hc_optimizer"], "lr": t["hc_lr"], "decay": t["hc_decay"], "steps": int(run.manifest["steps"]),
    }  # fmt: skip


def mixing_row(run: Run, found: "pd.DataFrame") -> dict[str, Any]:
    """One row of the mixing table: a run's arm, seed, loss, and its mixing, over the factors that can act."""
    import numpy as np

    from models.checkpoint import load
    from models.mixing import still
    from papers.losses import final_loss
    from probes.mixing import final, kept_step, log
    from probes.undefined import note

    acts, idle = found[found["acts"]], found[~found["acts"]]
    rest = without_gradient(run)
    metrics = final(load(run.folder, device="cpu"), log(run.folder), kept_step(run.folder))
    cells = metrics.astype({"value": object}).where(metrics["value"].notna(), None).to_dict("records")
    distance = {
        m: float(metrics.loc[metrics["metric"] == m, "value"].mean()) for m in ("distance_static", "distance_dynamic")
    }
    gradient = metrics.loc[metrics["metric"] == "gradient", "value"].dropna()
    in_use = metrics[(metrics["metric"] == "swap_dynamic") & metrics["module"].isin(set(acts["module"]))]["value"]
    why = {} if len(idle) else {"by_loss_controls": "every module can act"}
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
        "by_loss_controls": float(idle["by_loss"].mean()) if len(idle) else NAN,
        **distance, **stream_cosines(run), "streams": "still" if still(cells) else "mix",
        "gradient": float(gradient.median()) if len(gradient) else NAN, "undefined": note(why),
    }  # fmt: skip
