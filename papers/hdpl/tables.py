"""The numbers of HDPL's tables and figures.

parameters, .millions, size    of the model; parameters in millions, and MiB of fp32 weights. The grid `printed size`
                               has them of the presets as the paper trains them, counted without weights
setting                        of the model and its training, by name (Table 2)
loss.curve                     validation loss at a logged step (Figure 2); `zoo` and `eighth`: windows of 64 tokens,
                               the first 20,480 of the validation text
loss.last, .lowest, .half      its last value, its lowest, that nearest to half of the steps
loss.rise, .mean               last − lowest; mean over the steps after warm-up
loss.train                     mean training loss of the last tenth of the steps, without the penalty
loss.rise.matched              rise at the first evaluation where the training loss is that of the hybrid at its end
loss                           of all validation text in windows of 64 tokens
loss.within64, .beyond64       in windows of the whole context, of the first 64 positions and of the others
kl.first, .last                KL of a projection's latent at the first and the last logged step, mean over tokens and
                               projections
clamped.first, .last, .least   share of tokens whose KL lies above ln 2, where the penalty has no gradient; the least of
                               all steps
"""

from typing import Any

import numpy as np

from streamscope.cli.disk import TrainedConfig, read_json
from streamscope.models.checkpoint import read_manifest
from streamscope.models.training.optim import warmup_steps
from streamscope.models.training.run import read_metrics
from streamscope.papers.paper import Run

DEFAULT = "zoo"
GRIDS = {
    "Table 1": "printed size", "§2.4, two paths in more projections": "eighth", "§4.1, little text": "overfit",
}  # fmt: skip
"""Places that show another training than `DEFAULT`."""
LATE = 0.1
"""The share of the steps, the last ones, whose training losses are averaged."""
MILLION, MEBIBYTE = 1_000_000, 2**20
BYTES = 4
"""Of a parameter in fp32."""


def sizes(run: Run) -> None:
    """Parameters and size of the model."""
    n = run.model.n_params()
    run.add("parameters", "parameters", n)
    run.add("parameters.millions", "M parameters", n / MILLION)
    run.add("size", "MiB in fp32", n * BYTES / MEBIBYTE)


def curve(run: Run) -> None:
    """The losses of the run's log."""
    rows = read_metrics(run.folder)
    valid = [(row["step"], row["loss"]) for row in rows if row["kind"] == "eval"]
    train_rows = [row for row in rows if row["kind"] == "train"]
    if not valid or not train_rows:
        return
    steps, losses = (np.array(column, float) for column in zip(*valid, strict=True))
    for step, loss in valid:
        run.add("loss.curve", "nats per token", loss, x=float(step))
    end = max(row["step"] for row in train_rows)
    is_past_warmup = steps > _warmup(run)
    late = [row.get("ce", row["loss"]) for row in train_rows if row["step"] > end * (1 - LATE)]
    values = {
        "last": losses[-1], "lowest": losses.min(), "rise": losses[-1] - losses.min(),
        "half": losses[abs(steps - end / 2).argmin()], "train": np.mean(late),
    }  # fmt: skip
    if is_past_warmup.sum() > 1:
        values["mean"] = np.trapezoid(losses[is_past_warmup], steps[is_past_warmup]) / np.ptp(steps[is_past_warmup])
    for name, loss in values.items():
        run.add(f"loss.{name}", "nats per token", loss)


def settings(run: Run) -> None:
    """What Table 2 lists, of this model and its training."""
    config = run.model.config
    training = _configured(run)["training"]
    up = config.mlp.up
    values: dict[str, Any] = {
        "d_model": config.d_model, "d_mlp": config.mlp.d_mlp or 4 * config.d_model, "layers": config.n_layers,
        "heads": config.n_heads, "d_head": config.d_model // config.n_heads, "vocabulary": config.d_vocab,
        "context": config.n_ctx, "lr": training["lr"], "lr.least": training["lr"] * training["lr_floor"],
        "decay": training["weight_decay"], "warmup": _warmup(run),
    }  # fmt: skip
    if up.kind == "hdpl":
        values |= {
            "rank": up.latent_width(config.d_model, config.d_model), "groups": up.blocks(config.n_heads),
            "beta": up.kl_weight,
        }  # fmt: skip
    for name, value in values.items():
        run.add("setting", "setting", value, name)


def penalty(run: Run) -> None:
    """The KL and what share of it is clamped, from the log of a run that has it."""
    logged = [row for row in read_metrics(run.folder) if "kl_nats" in row]
    if logged:
        for name, row in (("first", logged[0]), ("last", logged[-1])):
            run.add(f"kl.{name}", "nats per token and projection", row["kl_nats"])
            run.add(f"clamped.{name}", "share of tokens", row["kl_clamped"])
        run.add("clamped.least", "share of tokens", min(row["kl_clamped"] for row in logged))


def _warmup(run: Run) -> int:
    """Steps of warm-up, at most a tenth of the training."""
    return warmup_steps(read_manifest(run.folder)["steps"], _configured(run)["training"]["warmup"] or 0)


def _configured(run: Run) -> Any:
    return read_json(run.folder / "config.json", TrainedConfig)


MEASURES = (sizes, curve, settings, penalty)
