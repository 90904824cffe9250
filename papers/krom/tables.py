"""The numbers of KROM's tables and figures: the loss while training, how much streams mix, and how alike they are.

parameters; loss.curve             of the model; validation loss over x million training tokens
swap, swap.low, swap.high          static swap probability of the factors that can act: mean, least, largest
swap.decay, .mixed, .moved         what weight decay and storage alone make of the swap; swap − that, and its size
swap.in_use                        mean swap with the dynamic term, on the tokens of the monitor
swap.curve, swap.decay.curve       the mean swap, and that of decay and storage alone, over x million training tokens
best.low, best.high                least and largest swap that the dynamic term can reach in a factor (SPEC §1.5)
alpha.high, alpha.lead             largest |α_res|; that of L0/ffn less the largest of another module
factor.swap, part L0.mlp.1         static swap of a factor
module.swap, .best, part L0.mlp     largest static swap of a module, and the largest that it can reach; alpha: its α_res
direction.cosine, .shuffled        cosine between streams of the direction of two sets of texts, mean over layers and
                                   `CONTRASTS`, and of shuffled labels (SPEC §1.6); .excess: their difference

A factor can act where its mixing can change an output (`models.mixing.inert_modules`).
"""

from typing import Any

import numpy as np
import torch

from streamscope.cli.disk import TrainedConfig, read_json
from streamscope.instruments.data import check_tokenizer
from streamscope.instruments.prompts.sets import contrast, encode
from streamscope.models.checkpoint import read_manifest
from streamscope.models.mixing import connections, inert_modules, measure
from streamscope.models.runs import evaluations
from streamscope.models.tensors import DTYPES
from streamscope.models.training.config import tokens_seen
from streamscope.papers.paper import Run
from streamscope.probes.directions.measure import find
from streamscope.probes.mixing_monitor.measure import final, kept_step, log, without_gradient
from streamscope.probes.stream_states import stream_states

DEFAULT = "eighth"
GRIDS = {
    "Architecture comparison": "long", "Architecture comparison, gain": "long", "Training curves": "long",
    "Swap over training": "long", "Safety fine-tuning": "sft", "Safety fine-tuning, seeds": "sft",
    "What replicates": "long",
}  # fmt: skip
CONTRASTS = (("indoor", "outdoor"), ("happy", "sad"))
MILLION = 1_000_000


def layer_cosines(model: Any) -> Any:
    """stream_cosine, the mean over `CONTRASTS` and pairs of streams of cos(r_s, r_s'), and shuffled_cosine, the same
    for shuffled labels (SPEC §1.6); one row per layer."""
    tokenizer, tables = check_tokenizer(model), []
    for names in CONTRASTS:
        rows = [encode(s, tokenizer, model.cfg.n_ctx).tokens for s in contrast(*names)]
        a, b = (stream_states(model, tokens, "mean") for tokens in rows)
        tables.append(find(a, b, draws=20).streams.set_index("layer")[["stream_cosine", "shuffled_cosine"]])
    return sum(tables[1:], tables[0]) / len(tables)


def set_bias(model: Any, bias: float) -> None:
    """b_res = [0, bias] in every factor, and nothing dynamic; −inf is H_res = I."""
    with torch.no_grad():
        for module in connections(model).values():
            module.b["res"][:, 0] = 0.0
            module.b["res"][:, 1] = bias
            module.alpha["res"].zero_()


def part_of(module: str) -> str:
    """`blocks.3.attn_hc` -> `L3.attn`."""
    return "L" + module.removeprefix("blocks.").removesuffix("_hc")


def curve(run: Run) -> None:
    """Parameters, and the validation loss while training."""
    run.add("parameters", "parameters", run.model.n_params())
    for row in evaluations(run.folder):
        run.add("loss.curve", "nats per token", row["loss"], x=million_tokens(run, row["step"]))


def million_tokens(run: Run, step: int) -> float:
    """Training tokens of a run until a step, in millions."""
    config = read_json(run.folder / "config.json", TrainedConfig)
    return round(tokens_seen(config["training"], config["model"]["n_ctx"], int(step)) / MILLION, 3)


def mixing(run: Run) -> None:
    """The swaps of a model whose streams mix by Kronecker factors; nothing of another model."""
    residual = run.model.config.residual
    if residual.kind != "kromhc" or residual.freeze_res:
        return
    inert = inert_modules(run.model)
    swaps: dict[tuple[str, str], float] = {}
    best: dict[tuple[str, str], float] = {}
    alphas: dict[str, float] = {}
    for row in measure(run.model):
        name, part = row["module"], row["part"]
        if name not in inert and row["value"] is not None:
            if row["metric"] == "alpha_res":
                alphas[part_of(name)] = row["value"]
            elif row["metric"] in ("swap_static", "swap_best"):
                table = swaps if row["metric"] == "swap_static" else best
                table[part_of(name), part.removeprefix("factor ")] = row["value"]
    static, reach = np.array(list(swaps.values())), np.array(list(best.values()))
    logged = log(run.folder)
    acting = logged[~logged["module"].isin(inert)]
    decay = swap_by_decay(run, int(kept_step(run.folder)))
    in_use = final(run.model, logged, kept_step(run.folder))
    in_use = in_use[(in_use["metric"] == "swap_dynamic") & ~in_use["module"].isin(inert)]["value"].mean()
    numbers = {
        "swap": static.mean(), "swap.low": static.min(), "swap.high": static.max(), "swap.decay": decay,
        "swap.mixed": static.mean() - decay, "swap.moved": abs(static.mean() - decay), "swap.in_use": in_use,
    }  # fmt: skip
    if len(reach):
        numbers |= {"best.low": reach.min(), "best.high": reach.max()}
    for name, value in numbers.items():
        run.add(name, "probability", value)
    run.add("swap.curve", "probability", 1 / (1 + np.exp(-residual.b_res)), x=0.0)
    run.add("swap.decay.curve", "probability", 1 / (1 + np.exp(-residual.b_res)), x=0.0)
    for step, rows in acting[acting["metric"] == "swap_static"].groupby("step"):
        run.add("swap.curve", "probability", rows["value"].mean(), x=million_tokens(run, step))
        run.add("swap.decay.curve", "probability", swap_by_decay(run, int(step)), x=million_tokens(run, step))
    for (name, factor), value in swaps.items():
        run.add("factor.swap", "probability", value, f"{name}.{factor}")
    for name, alpha in alphas.items():
        run.add("alpha", "α_res", alpha, name)
        run.add("module.swap", "probability", max(v for (module, _), v in swaps.items() if module == name), name)
        if best:
            run.add("module.best", "probability", max(v for (module, _), v in best.items() if module == name), name)
    sizes = {name: abs(alpha) for name, alpha in alphas.items()}
    if "L0.mlp" in sizes and len(sizes) > 1:
        run.add("alpha.high", "α_res", max(sizes.values()))
        run.add("alpha.lead", "α_res", sizes.pop("L0.mlp") - max(sizes.values()), "L0.mlp")


def swap_by_decay(run: Run, step: int) -> float:
    """The static swap that a run's decay and storage alone make of its initial bias until a step."""
    training = read_json(run.folder / "config.json", TrainedConfig)["training"]
    residual, steps = run.model.config.residual, int(read_manifest(run.folder)["steps"])
    start = torch.tensor([0.0, residual.b_res]).to(DTYPES[residual.hc_dtype])
    return float(without_gradient(start, training, steps, step).double().softmax(-1)[1])


def directions(run: Run) -> None:
    """How alike the directions of the streams are; nothing of a model of one stream."""
    if not hasattr(run.model.config.residual, "n"):
        return
    real, shuffled = layer_cosines(run.model)[["stream_cosine", "shuffled_cosine"]].mean()
    for name, value in (("cosine", real), ("shuffled", shuffled), ("excess", real - shuffled)):
        run.add(f"direction.{name}", "cosine", value)


MEASURES = (curve, mixing, directions)
