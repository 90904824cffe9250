"""The numbers of DST's tables and figures, on the validation documents of a run.

parameters, width, layers, heads, head.width, ffn.width, vocabulary, context    of the model (Table 6)
loss                      of all documents (Tables 1, 2, 3 and 8); loss.documents and those below: of the first 100
specialization, entropy   HSS (Eq. 16), mean over layers, and entropy of attention, on 64 tokens each (Table 3)
streams.everywhere, .unembedding, .onwards    percent that the loss grows where nothing reads a stream, all but the
                          unembedding do, nothing from layer x on; part x_t → 0, … (Table 4). With .loss: the loss
streams.gap.zero          what x_t → 0 costs more than x_e → 0; streams.token-context: the same in nats, everywhere
amplify.loss, .entropy, .peak, .kept    at scores times x: loss, entropy of attention, its largest weight (part L3: of
                          Figure 4's layer), share of queries whose first key is that of x = 1 (Table 5, Figure 2)
amplify.16                percent that the loss grows at x = 16
amplify.area, .straight   area under loss(x), part raw, excess, relative; r² of the line through loss over x and log2 x
calibration.sharp, .recovered, .kept    at scores times x: loss more; percent of it that one temperature gives back, no
                          cooler than the best at x = 1; share of right words that stay right (§5.1)
routing.v, .o             Kronecker weights of layer x, part H1 from H0 (Figure 3)
routing.max, .mean, .growth    largest and mean |weight| of layer x, slope of the largest over layers; part V, O
map                       attention in one text at scores times x, part "03 found to 01 Leo" (Figure 4)
top1.head, top1.best      share of pronouns at which a head attends most, of all keys, to the antecedent (Figure 5); of
                          the best head, found on one half of the pairs and scored on the other
"""

from typing import Any

import numpy as np
import torch

from streamscope.cli.disk import TrainedConfig, read_json
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import open_data
from streamscope.instruments.stats.held_out import best_head_held_out, halves
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.amplify.measure import amplification
from streamscope.interventions.streams import Streams
from streamscope.models.hooks import edit
from streamscope.models.mixing import routing as matrices
from streamscope.papers.paper import Run
from streamscope.probes.coreference import Coreference
from streamscope.probes.specialization import Specialization
from streamscope.probes.stream_states import streams_of
from streamscope.text.shards import NO_TARGET

DEFAULT = "long"
GRIDS = {"Table 3": "eighth", "Figure 3": "zoo", "Figure 4": "zoo", "Figure 5": "zoo", "Table 6, built": "built",
         "Table 7": "built"}  # fmt: skip
"""Places that show another training than `DEFAULT`; `built` are models that were not trained."""
PAPER_ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
TABLE5 = {
    "dst-dense-frozen": (1.80, 1.86, 1.98, 2.09, 2.16), "dst-kron-frozen": (1.84, 1.90, 2.00, 2.09, 2.14),
    "dst-ind-frozen": (1.87, 1.96, 2.12, 2.28, 2.38), "dst-dense-gated-frozen": (1.88, 1.98, 2.15, 2.30, 2.39),
}  # fmt: skip
"""Losses at the paper's α."""
DOCUMENTS, LENGTH, LAYER = 100, 64, 3
PLACES = {"everywhere": "everywhere", "head": "unembedding"}
TEMPERATURES = np.geomspace(0.5, 4.0, 61)  # 1 is the 21st
LEAST = 0.01  # nats that sharpening has to cost, so that there is something of which to recover a share


def validation(run: Run, documents: int | None = DOCUMENTS) -> Any:
    """The documents that the run was validated on."""
    data = read_json(run.folder / "config.json", TrainedConfig)["data"]["valid"]
    return Documents(data=data, max_documents=documents)


def sizes(run: Run) -> None:
    """Table 6, and the loss."""
    config = run.model.config
    run.add("parameters", "parameters", run.model.n_params())
    run.add("loss", "nats per token", run.loss(validation(run).data))
    for name, unit, value in (
        ("width", "channels", config.d_model), ("layers", "layers", config.n_layers),
        ("heads", "heads", config.n_heads), ("head.width", "channels", config.d_head),
        ("ffn.width", "channels", config.d_mlp), ("vocabulary", "tokens", config.d_vocab),
        ("context", "tokens", config.n_ctx),
    ):  # fmt: skip
        run.add(name, unit, value)


def specialization(run: Run) -> None:
    """Table 3."""
    result = Specialization(length=min(LENGTH, run.model.config.n_ctx)).measure(run.model, validation(run, None))
    run.add("specialization", "1 − cosine", result.table("hss").frame.set_index("scope").loc["layers", "hss"])
    run.add("entropy", "nats", result.table("entropy").frame.set_index("scope").loc["all", "entropy"])


def streams(run: Run) -> None:
    """Table 4, of models of two streams."""
    if set(streams_of(run.model)) != {"token", "context"}:
        return
    both_streams, layers = ("token", "context"), tuple(map(str, range(run.last + 1)))
    instrument = Streams(streams=both_streams, method=("zero", "random"), where=tuple(PLACES))
    result = instrument.measure(run.model, validation(run))
    table = result.table().frame.replace({"definition": {"x_t → random vocabulary": "x_t → random words"}})
    for row in table.itertuples():
        name = f"streams.{PLACES[row.where]}"
        run.add(name, "percent", row.percent, row.definition)
        run.add(f"{name}.loss", "nats per token", row.loss, row.definition)
    run.add("loss.documents", "nats per token", table["baseline"].iloc[0])
    for place, name in PLACES.items():
        zero = table[(table["method"] == "zero") & (table["where"] == place)].set_index("stream")
        gap = zero.loc["token", ["percent", "delta"]] - zero.loc["context", ["percent", "delta"]]
        run.add("streams.gap.zero", "percent", gap["percent"], name)
        if place == "everywhere":
            run.add("streams.token-context", "nats per token", gap["delta"])
    options = Streams(streams=both_streams, method=("zero",), where=layers, reach=("onwards",))
    for row in options.measure(run.model, validation(run)).table().frame.itertuples():
        run.add("streams.onwards", "percent", row.percent, row.definition, row.layer)


def sharpened(run: Run) -> None:
    """Table 5, Figure 2 and Figure 4's layer."""
    result = Amplify(alpha=PAPER_ALPHAS, prompt="").measure(run.model, validation(run))
    for row in result.table("picture").frame.itertuples():
        part = f"{row.query:02d} {row.query_token.strip()} to {row.key:02d} {row.key_token.strip()}"
        run.add("map", "attention", row.attention, part, row.alpha)
    table, heads = result.table("amplify").frame, result.table("heads").frame
    for row in table.itertuples():
        run.add("amplify.loss", "nats per token", row.loss, x=row.alpha)
        run.add("amplify.entropy", "nats", row.entropy, x=row.alpha)
        run.add("amplify.peak", "attention", row.peak, x=row.alpha)
        layer = heads[(heads["layer"] == LAYER) & (heads["alpha"] == row.alpha)]
        if len(layer):
            run.add("amplify.peak", "attention", layer["peak"].mean(), f"L{LAYER}", row.alpha)
        if row.alpha > 1:
            run.add("amplify.kept", "share of queries", row.unchanged, x=row.alpha)
    run.add("amplify.16", "percent", table["percent"].iloc[-1])
    areas = result.table("areas").frame
    for row in areas[(areas["axis"] == "linear") & areas["kind"].isin(("raw", "excess", "relative"))].itertuples():
        run.add("amplify.area", "loss units", row.area, row.kind)
    for name, x in (("linear", table["alpha"]), ("log2", np.log2(table["alpha"]))):
        run.add("amplify.straight", "share of variance", np.corrcoef(x, table["loss"])[0, 1] ** 2, name)


def calibration(run: Run) -> None:
    """§5.1: one temperature, chosen on the even documents for the odd ones and the other way."""
    opened = open_data(validation(run), run.model)
    sums = {alpha: _tempered(run.model, opened, alpha) for alpha in (1.0, 8.0, 16.0)}
    even = np.arange(len(sums[1.0][2])) % 2 == 0
    tokens = sums[1.0][2].sum()

    def best(loss: Any, first: Any = (0, 0)) -> list[int]:
        return [i + int(loss[i:, ~half].sum(1).argmin()) for half, i in zip((even, ~even), first, strict=True)]

    def at_best(loss: Any, indices: list[int]) -> float:
        return float(sum(loss[i, half].sum() for i, half in zip(indices, (even, ~even), strict=True)) / tokens)

    plain, right, _ = sums[1.0]
    plain_best, neutral = best(plain), len(TEMPERATURES) // 3
    for alpha in (8.0, 16.0):
        loss, right_words, _ = sums[alpha]
        sharp = float((loss[neutral] - plain[neutral]).sum() / tokens)
        run.add("calibration.sharp", "nats per token", sharp, x=alpha)
        run.add("calibration.kept", "share of words", right_words / right, x=alpha)
        sharp_best, ends = best(loss, plain_best), {0, len(TEMPERATURES) - 1}
        if sharp >= LEAST and not ends & {*plain_best, *sharp_best}:
            recovery = 100 * (1 - (at_best(loss, sharp_best) - at_best(plain, plain_best)) / sharp)
            run.add("calibration.recovered", "percent", recovery, x=alpha)


def _tempered(model: Any, opened: Any, alpha: float) -> tuple[Any, float, Any]:
    """(loss [temperatures, documents] in nats, right words, tokens [documents]) at scores times α."""
    batches = list(opened.batches())
    n = 1 + max(int(index.max()) for index, *_ in batches)
    loss, tokens, right = np.zeros((len(TEMPERATURES), n)), np.zeros(n), 0.0
    with torch.no_grad(), edit(model, {} if alpha == 1 else amplification(model, alpha)):
        for index, ids, targets in batches:
            logits = model(ids.to(model.cfg.device)).float().cpu()
            real = targets != NO_TARGET
            target_logits = logits.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
            right += float(((logits.argmax(-1) == targets) & real).sum())
            tokens[index] = real.sum(1).numpy()
            for i, t in enumerate(TEMPERATURES):
                nats = torch.logsumexp(logits / t, -1) - target_logits / t
                loss[i, index] = torch.where(real, nats, 0.0).double().sum(1).numpy()
    return loss, right, tokens


def routing(run: Run) -> None:
    """Figure 3, of Kronecker mixing."""
    largest: dict[str, list[float]] = {}
    for name, W in matrices(run.model).items():
        layer, projection = int(name.split(".")[1]), name.rsplit(".", 1)[1]
        for (target, source), value in np.ndenumerate(weights := W.double().cpu().numpy()):
            run.add(f"routing.{projection}", "weight", value, f"H{target} from H{source}", layer)
        run.add("routing.max", "weight", np.abs(weights).max(), projection.upper(), layer)
        run.add("routing.mean", "weight", np.abs(weights).mean(), projection.upper(), layer)
        largest.setdefault(projection, []).append(float(np.abs(weights).max()))
    for projection, values in largest.items():
        run.add("routing.growth", "weight per layer", np.polyfit(range(len(values)), values, 1)[0], projection.upper())


def coreference(run: Run) -> None:
    """Figure 5."""
    table = run.probe(Coreference(domain="keys"))
    table = table.assign(hit=table["hit"].astype(float))
    for (layer, head), value in table.groupby(["layer", "index"])["hit"].mean().items():
        run.add("top1.head", "share of prompts", value, f"L{layer}.H{head}")
    best = best_head_held_out(table, ["hit"], halves(table, 0)[0])[0]
    run.add("top1.best", "share of prompts", best["hit"].mean())


MEASURES = (sizes, specialization, streams, sharpened, calibration, routing, coreference)
