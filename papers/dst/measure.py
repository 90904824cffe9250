"""What is measured on one run for DST's Tables 3 to 5, with the instruments of `probes` and `interventions`.

    loss.documents           loss of the measured documents at α = 1, nats per token; `loss` is that of the whole
                             validation part, at the end of training (`papers.comparison.losses`)
    stream.<definition>.<where>          change of the loss without a stream, as a share of it (Table 4)
    gap.zero.<where>         x_t → 0 minus x_e → 0;  gap.random.<where>: x_t → random words minus x_t → 0
    amplified.<α>            loss of the measured documents at α, over seeds alone (Table 5)
    peak.<α>, peak.L3.<α>    largest weight of a query, mean over queries and heads; of the heads of Fig. 4's layer
    spread.<α>               entropy of attention, nats, mean over queries and heads (of n equal weights: ln n)
    straight.<axis>          r² of the least-squares line through loss(x): linear, x = α; log2, x = log2 α (Fig. 2)
    unchanged.<α>            share of queries whose first key is that of α = 1, in the layers behind the first
    without.<definition>.<where>         the loss itself without a stream, nats per token (Table 4)
    cost                     loss over that of dst-dense of the same seed and mode, − 1 (Tables 1 and 8)
    cost.single              loss over that of the single-stream model of the same seed, − 1 (§3.3)
    cost.ffn                 of dst-full-ind: what it costs more than dst-ind, less what that costs itself (§3.2)
    degradation.<α>          loss(α) / loss(1) − 1 (Table 5)
    specialization, entropy  HSS of the heads of a layer and the entropy of attention, means over layers and heads, on
                             documents of `LENGTH` tokens (Table 3; `probes.specialization`)
    area.<kind>.<axis>       area under the curve from α = 1 up (`interventions.amplify.measure`)

Where is everywhere or head; layer by layer is in the table `streams`.
"""

from typing import Any

import numpy as np
import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents
from streamscope.instruments.open_data import OpenDocuments
from streamscope.instruments.undefined_cells import reasons
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.streams import Method, Streams
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.comparison.seeds import NAN, Progress, Rows, by_row
from streamscope.papers.dst import Settings
from streamscope.papers.dst.claims import (
    CONTROL,
    FROZEN,
    FULL_IND,
    IND,
    LAYER,
    PLACES,
    SINGLE,
    STRAIGHT,
    TABLE1,
    TABLE8,
    straightness,
)
from streamscope.probes.specialization import Specialization
from streamscope.probes.stream_states import streams_of
from streamscope.text.shards import TokenShards

METHODS: tuple[Method, ...] = ("zero", "random", "mean", "resample")
TABLE4_METHODS: tuple[Method, ...] = ("zero", "random")
"""Measured layer by layer as well, with one draw."""
SHARE = "share of the loss"
BATCH = 32
"""Documents of a batch."""
LENGTH = 64
"""Tokens of the documents on which heads are compared."""


def dual(model: Any) -> bool:
    """Whether a model has the two streams of Table 4."""

    return set(streams_of(model)) == {"token", "context"}


def measure_run(
    model: StreamTransformer, shards: TokenShards, settings: Settings, progress: Progress
) -> dict[str, pd.DataFrame]:
    """`runs` (quantities), `streams` (empty for a model without two streams), `amplification`, `heads`, `areas`."""
    rows = Rows()
    amplification, heads, area = _amplify(rows, model, shards, settings, progress)
    _specialization(rows, model, shards, settings, progress)
    streams = _streams(rows, model, shards, settings, progress) if dual(model) else pd.DataFrame()
    return {
        "runs": pd.DataFrame(rows.rows), "streams": streams, "amplification": amplification, "heads": heads,
        "areas": area,
    }  # fmt: skip


def whole_loss(losses: pd.DataFrame) -> pd.DataFrame:
    """The quantity `loss` of every run, from the table of `papers.comparison.losses`."""
    return by_row(losses, lambda rows, r: rows.add("loss", "loss", "nats/token", r.loss, detail=f"{r.tokens} tokens"))


def costs(whole: pd.DataFrame) -> pd.DataFrame:
    """The quantities cost, cost.single and cost.ffn, shares of the loss: every run compared with those of its seed.

    Of the presets of Tables 1 and 8 alone, at the end of training.
    """
    loss = whole[whole["quantity"] == "loss"].set_index(["seed", "preset"])["value"].to_dict()
    parts = []
    for (seed, arm), value in loss.items():
        if arm not in TABLE1 and arm not in TABLE8:
            continue
        rows, mode = Rows(), FROZEN if arm in TABLE8 else ""
        dense, ind = (loss.get((seed, name + mode), NAN) for name in (CONTROL, IND))
        shares = {"cost": NAN if arm == CONTROL + mode else value / dense - 1}
        shares["cost.single"] = value / loss.get((seed, arm.removesuffix(mode) + SINGLE), NAN) - 1
        shares["cost.ffn"] = ((value - ind) - (ind - dense)) / dense if arm == FULL_IND + mode else NAN
        for quantity, share in shares.items():
            if share == share:
                rows.add(quantity, "cost", SHARE, share, n=1)
        parts.append(rows.of(arm, seed))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def stripped(streams: pd.DataFrame) -> pd.DataFrame:
    """The quantities without.… of every run, nats per token, from the table of `_streams`."""

    def add(rows: Rows, r: Any) -> None:
        rows.add(f"without.{r.definition}.{r.where}", "without", "nats/token", r.loss, n=int(r.n))

    return by_row(streams[streams["where"].isin(PLACES)], add)


def amplified(table: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The quantities amplified.<α>, nats per token, peak.…, spread.<α> and unchanged.<α> of every run, from the tables
    of `_amplify`."""
    layer = heads[heads["layer"] == LAYER].groupby(["preset", "seed", "alpha"])["peak"].mean()

    def add(rows: Rows, r: Any) -> None:
        n = int(r.n)
        rows.add(f"amplified.{r.alpha:g}", "amplified", "nats/token", r.loss, n=n)
        rows.add(f"peak.{r.alpha:g}", "peak", "attention", r.peak, n=n)
        rows.add(f"spread.{r.alpha:g}", "spread", "nats", r.entropy, n=n)
        if r.alpha != 1:  # the same by definition
            rows.add(f"unchanged.{r.alpha:g}", "unchanged", "share", r.unchanged, n=n)
        if (key := (r.preset, r.seed, r.alpha)) in layer.index:
            rows.add(f"peak.L{LAYER}.{r.alpha:g}", "peak", "attention", layer[key], n=n)

    return by_row(table, add)


def straight(table: pd.DataFrame) -> pd.DataFrame:
    """The quantities straight.<axis> of every run, from the table of `_amplify`.

    Undefined for fewer than three α, which any line meets, and for a loss that does not move.
    """
    parts = []
    for (arm, seed), one in table.groupby(["preset", "seed"], sort=False):
        rows, own = Rows(), one.sort_values("alpha")
        alphas, losses = own["alpha"].to_numpy(float), own["loss"].to_numpy(float)
        why = "fewer than three α" if len(own) < 3 else "the loss does not move" if np.ptp(losses) == 0 else ""
        for axis in STRAIGHT:
            value = NAN if why else straightness(losses, alphas, axis)
            rows.add(f"straight.{axis}", "amplified", "share of variance", value, n=len(own), why=why)
        parts.append(rows.of(arm, seed))
    return pd.concat(parts, ignore_index=True)


def _amplify(
    rows: Rows, model: Any, shards: TokenShards, settings: Settings, progress: Progress
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Table 5 and Fig. 2: losses by α, entropy and unchanged keys, areas in every reading."""

    spec = Documents(max_documents=settings.documents, batch_size=BATCH)
    opened = OpenDocuments(spec, shards, model.config.n_ctx, model.tokenizer)
    how = Amplify(alpha=settings.alphas, text="", prompt="")
    result = how.measure(model, opened, progress=progress("amplification"))
    table, area = result.table("amplify").short("delta"), result.table("areas").short("area")
    first = table.iloc[0]
    tokens = f"{first['tokens']} tokens"
    rows.add("loss.documents", "loss", "nats/token", first["baseline"], n=int(first["n"]), detail=tokens)
    for r in table[table["alpha"] > 1].itertuples():
        ends = (r.percent_low / 100, r.percent_high / 100)
        rows.add(f"degradation.{r.alpha:g}", "degradation", SHARE, r.percent / 100, interval=ends, n=r.n)
    for r in area.itertuples():
        rows.add(f"area.{r.kind}.{r.axis}", "area", "by kind", r.area, interval=(r.ci_low, r.ci_high), n=r.n)
    return table, result.table("heads").short(), area


def _specialization(rows: Rows, model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> None:
    """Table 3: how differently the heads attend, and how evenly. Undefined where the documents are too short."""
    length = min(LENGTH, model.config.n_ctx)
    opened = OpenDocuments(Documents(max_documents=None), shards, model.config.n_ctx, model.tokenizer)
    try:
        result = Specialization(length=length).measure(model, opened, progress=progress("specialization"))
    except InputError as error:
        for name, unit in (("specialization", "HSS"), ("entropy", "nats")):
            rows.add(name, "heads", unit, NAN, why=str(error))
        return
    for name, table, column, scope, unit in (
        ("specialization", "hss", "hss", "layers", "HSS"),
        ("entropy", "entropy", "entropy", "all", "nats"),
    ):
        one = result.table(table).frame.set_index("scope").loc[scope]
        ends = (one[f"{column}_low"], one[f"{column}_high"])
        rows.add(name, "heads", unit, one[column], interval=ends, n=int(one["n"]), detail=f"{length} tokens each")


def _streams(rows: Rows, model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> pd.DataFrame:
    """Table 4 everywhere, for the head and layer by layer."""

    spec = Documents(max_documents=settings.documents, batch_size=BATCH)
    opened = OpenDocuments(spec, shards, model.config.n_ctx, model.tokenizer)
    both, layers = ("token", "context"), tuple(map(str, range(model.config.n_layers)))
    how = Streams(streams=both, method=METHODS, where=PLACES, draws=settings.draws, seed=settings.seed)
    whole = how.measure(model, opened, progress=progress("streams")).table().short("delta")
    how = Streams(streams=both, method=TABLE4_METHODS, where=layers, draws=1, seed=settings.seed)
    by_layer = how.measure(model, opened, progress=progress("streams, by layer")).table().short("delta")
    for r in whole.itertuples():
        ends, why = (r.percent_low / 100, r.percent_high / 100), reasons(r.undefined).get("percent", "")
        rows.add(f"stream.{r.definition}.{r.where}", "streams", SHARE, r.percent / 100, interval=ends, n=r.n, why=why)
    share = whole.set_index(["stream", "method", "where"])["percent"] / 100
    for place in PLACES:
        token = share["token", "zero", place]
        rows.add(f"gap.zero.{place}", "streams", SHARE, token - share["context", "zero", place])
        rows.add(f"gap.random.{place}", "streams", SHARE, share["token", "random", place] - token)
    return pd.concat([whole, by_layer], ignore_index=True)
