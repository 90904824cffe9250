"""Measure runs with the numbers that primary claims name, and add them to one long table.

    python -m papers.differences runs/differences/* --out results/differences/measured.csv

A row per arm, seed and quantity: value, unit, training tokens, sha256 of the weights. Runs that have not ended are left
out with a line; those that the table has with the same weights are not measured again. Quantities (`primary.toml` of
each paper says which of them a claim compares), on `PAIRS` pairs of held-out nouns (suite `stories`) and `DOCUMENTS`
held-out stories; heads are found on one half of the pairs and scored on the other, both ways:

    loss, loss.half, loss.gap        of held-out stories at the end and at half of the steps; that of training stories
                                     subtracted
    preference, CATEGORY.preference  ln p of the right habit after the pronoun − of the competitor's
    pds.best, pds.last, pds.L0 …     largest PDS (LFA Eq. 7) of a head: of all, of the last layer, of each layer
    pds.top1, .top2, .top3, .top5    mean PDS of the heads that rank first
    pds.late_share                   share of Σ PDS² in the last two layers, PDS² by the product of the two halves
    pds.over075, pds.over_own        heads with PDS above .075; above the model's own mean + sd
    sps                              attention to the right noun − to the competitor, all heads (Eq. 8)
    top1.best, CATEGORY.top1         share of prompts where the best head attends most, of all keys, to the right noun
    CATEGORY.both                    share of pairs on which one head does in both orders
    stable                           heads per pair that do in both orders
    top1.over30                      heads with Top-1 above .3
    suppress.top3.d, .preference     |Cohen's d| of SPS, and the change of preference, without the three heads of the
                                     largest PDS (App. D)
    induction.8                      largest induction score on repeated trained words, period 8
    streams.token-context            loss without x_t everywhere − without x_e (DST Table 4)
    amplify.16                       percent that the loss rises at α = 16 (DST Table 5)
    specialization                   1 − cosine of the heads' mean attention (DST Eq. 16)
    depth.early                      share of tokens that settle in the first two layers (PLS Table 1)
    entity.log_effect, .log_spread, .log_range   ln |mean|, ln sd of the change of P(right habit) on gender pairs
                                     without the two heads that attend most to the antecedent; ln of what P changes from
                                     scale 0 to 1.5
    ari.raw                          agreement of ten k-means clusters of features and of raw states (PLS §2.3)
    swap.best, streams.cosine        largest swap that a module can reach; cosine of the streams' directions (KROM)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from streamscope.cli.errors import InputError
from streamscope.cli.parse import command, parse

CATEGORIES = {"gender": "gender", "number": "plurality", "nouns": "competing-nouns"}
SCALE = 1.5
"""Largest scale of PLS' steering."""

if TYPE_CHECKING:
    from streamscope.papers.paper import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of `python -m papers.differences`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders called ARM-sSEED, as `models.grid` names them."""
    out: Path = Path("results/differences/measured.csv")
    """The table; new rows are added."""


HELD_OUT, TRAINED = "stories:1:300:0", "stories:10:300:0"
"""Stories without repeats: of the validation seed, and the first that the grid trains on."""


def losses(run: "Run") -> None:
    """loss, loss.gap, and loss.half from the run's log."""
    import pandas as pd

    held_out = run.loss(HELD_OUT)
    run.add("loss", "nats per token", held_out)
    run.add("loss.gap", "nats per token", held_out - run.loss(TRAINED))
    log = pd.read_json(run.folder / "metrics.jsonl", lines=True)
    valid = log[log["kind"] == "eval"].set_index("step")["loss"]
    half = valid.index[abs(valid.index - log["step"].max() / 2).argmin()]
    run.add("loss.half", "nats per token", valid[half])


def position(run: "Run") -> None:
    """PDS and SPS on the pairs of competing nouns, and what suppressing the position heads does."""
    import numpy as np

    from streamscope.instruments.stats.estimators import cohens_d
    from streamscope.instruments.stats.held_out import halves
    from streamscope.interventions.edits import scale_heads
    from streamscope.models.head_spec import Head
    from streamscope.probes.coherence.measure import rows as coherence_rows
    from streamscope.probes.pds import Pds
    from streamscope.probes.sps import Sps

    table = run.probe(Pds())
    table = table[table["category"] == "competing-nouns"]
    side = halves(table, 0)[0]
    by_half = [table[side == half].groupby(["layer", "index"])["difference"].mean() for half in (0, 1)]
    for name, layers in (
        ("best", range(run.last + 1)), ("last", [run.last]), *((f"L{n}", [n]) for n in range(run.last + 1)),
    ):  # fmt: skip
        run.add(
            f"pds.{name}", "attention", _held_out_best([half[half.index.isin(layers, level=0)] for half in by_half])
        )
    for k in (1, 2, 3, 5):
        run.add(f"pds.top{k}", "attention", _held_out_best(by_half, k))
    squares = by_half[0] * by_half[1]
    late = squares[squares.index.get_level_values("layer") >= run.last - 1].sum()
    run.add("pds.late_share", "share of the sum of squared PDS", late / squares.sum())
    sizes = table.groupby(["layer", "index"])["difference"].mean().abs()
    run.add("pds.over075", "heads", (sizes > 0.075).sum())
    run.add("pds.over_own", "heads", (sizes > sizes.mean() + sizes.std()).sum())

    fold = table.assign(side=side).drop_duplicates("pair").set_index("pair")["side"]
    sps = run.probe(Sps())
    sps = sps[sps["category"] == "competing-nouns"]
    run.add("sps", "attention", sps["sps"].mean())
    baseline = sps.groupby("id")["sps"].mean()
    preferred = coherence_rows(run.model, run.pairs, None, run.tokenizer).set_index("id")["log_odds"]
    pair_of = {prompt.id: prompt.pair for prompt in run.pairs.prompts}
    effects, changes = [], []
    for half in (0, 1):  # ranked on one half, measured on the other
        heads = [Head(*place) for place in by_half[half].abs().sort_values(ascending=False).index[:3]]
        edits = scale_heads(heads, 0.0)
        edited_sps = run.probe(Sps(), edits)
        edited_sps = edited_sps[edited_sps["category"] == "competing-nouns"].groupby("id")["sps"].mean()
        test_prompts = [name for name in baseline.index if fold[pair_of[name]] != half]
        effects.append(abs(cohens_d(edited_sps[test_prompts].to_numpy(), baseline[test_prompts].to_numpy())))
        odds = coherence_rows(run.model, run.pairs, None, run.tokenizer, edits).set_index("id")["log_odds"]
        changes.append(float((odds - preferred)[test_prompts].mean()))
    run.add("suppress.top3.d", "pooled sd", float(np.mean(effects)))
    run.add("suppress.top3.preference", "nats", float(np.mean(changes)))


def _held_out_best(by_half: Sequence[Any], k: int = 1) -> float:
    """Mean over both ways: the k heads of the largest size on one half, their mean on the other with those signs."""
    import numpy as np

    values = []
    for fit_half, test_half in (by_half, by_half[::-1]):
        best = fit_half.abs().sort_values(ascending=False, kind="stable").index[:k]
        values.append((np.sign(fit_half[best]) * test_half[best]).mean())
    return float(np.mean(values))


def coreference(run: "Run") -> None:
    """What the pronoun attends to, of all keys, and what the model expects after it."""
    from streamscope.instruments.stats.held_out import best_head_held_out, halves
    from streamscope.probes.coherence.measure import rows as coherence_rows
    from streamscope.probes.coreference import Coreference

    odds = coherence_rows(run.model, run.pairs, None, run.tokenizer)
    run.add("preference", "nats", odds["log_odds"].mean())
    hits = run.probe(Coreference(domain="keys"))
    hits = hits.assign(hit=hits["hit"].astype(float))
    stable_hits = hits.groupby(["pair", "head"], sort=False)["hit"].min().unstack("head")
    run.add("stable", "heads", stable_hits.sum(axis=1).mean())
    run.add("top1.best", "share of prompts", best_head_held_out(hits, ["hit"], halves(hits, 0)[0])[0]["hit"].mean())
    run.add("top1.over30", "heads", (hits.groupby("head")["hit"].mean() > 0.3).sum())
    for name, category in CATEGORIES.items():
        category_hits = hits[hits["category"] == category]
        if category_hits.empty:
            raise InputError(f"the suite stories has no pairs of {name}")
        run.add(f"{name}.preference", "nats", odds[odds["category"] == category]["log_odds"].mean())
        side = halves(category_hits, 0)[0]
        run.add(f"{name}.top1", "share of prompts", best_head_held_out(category_hits, ["hit"], side)[0]["hit"].mean())
        pairs = category_hits.assign(hit=category_hits.groupby(["pair", "head"])["hit"].transform("min"))
        run.add(f"{name}.both", "share of pairs", best_head_held_out(pairs, ["hit"], side)[0]["hit"].mean())


def induction(run: "Run") -> None:
    """Largest induction score of a head, found on half of the sequences."""
    from streamscope.instruments.data import Documents
    from streamscope.instruments.open_data import open_data
    from streamscope.instruments.stats.held_out import best_head_held_out
    from streamscope.models.hooks import run as capture
    from streamscope.papers.paper import DOCUMENTS
    from streamscope.probes.heads import Heads
    from streamscope.probes.heads.measure import plan, read, trained_words

    documents = open_data(Documents(data=HELD_OUT, max_documents=DOCUMENTS), run.model)
    options = Heads(sequences=64, length=8, pool="trained")
    query = plan(options, [], run.tokenizer, trained_words(run.tokenizer, documents.rows()))
    table = read(options, capture(run.model, query), query)
    table = table[table["score"] == "induction"]
    table = table.assign(head=table["layer"].astype(str) + "." + table["index"].astype(str))
    best_rows, _ = best_head_held_out(table, ["value"], (table["prompt"] % 2).to_numpy())
    run.add("induction.8", "share of attention", best_rows["value"].mean())


def dst(run: "Run") -> None:
    """Tables 3 to 5."""
    from streamscope.instruments.data import Documents
    from streamscope.interventions.amplify import Amplify
    from streamscope.interventions.streams import Streams
    from streamscope.papers.paper import DOCUMENTS
    from streamscope.probes.specialization import Specialization

    documents = Documents(data=HELD_OUT, max_documents=DOCUMENTS)
    alpha = Amplify(alpha=(1.0, 16.0), sample_tokens=1).measure(run.model, documents).table().frame
    run.add("amplify.16", "percent", alpha.set_index("alpha").loc[16.0, "percent"])
    length = min(64, run.model.config.n_ctx)
    hss = Specialization(length=length).measure(run.model, Documents(data=HELD_OUT, max_documents=None))
    run.add("specialization", "1 − cosine", hss.table("hss").frame.set_index("scope").loc["layers", "hss"])
    if run.model.config.residual.kind == "single":
        return
    options = Streams(streams=("token", "context"), method=("zero",), where=("everywhere",))
    deltas = options.measure(run.model, documents).table().frame.set_index("stream")["delta"]
    run.add("streams.token-context", "nats per token", deltas["token"] - deltas["context"])


def pls(run: "Run") -> None:
    """Table 1, Table 2 on gender, Figures 3 and 4b, §2.3."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score

    from streamscope.features.cluster.checks import raw_rows
    from streamscope.features.cluster.measure import varying_features
    from streamscope.features.cluster.modes import ComputationalModes
    from streamscope.features.extract import Extract
    from streamscope.features.store import features_of, raw_of
    from streamscope.instruments.data import Documents, Tokens
    from streamscope.instruments.open_data import open_data
    from streamscope.instruments.stats.held_out import halves
    from streamscope.interventions.edits import scale_heads
    from streamscope.models.head_spec import Head
    from streamscope.papers.paper import DOCUMENTS
    from streamscope.probes.coherence.measure import rows as coherence_rows
    from streamscope.probes.coreference import Coreference
    from streamscope.probes.phenomena.measure import losses_and_depths

    documents = open_data(Documents(data=HELD_OUT, max_documents=DOCUMENTS), run.model)
    layers = documents.sums(run.model.cfg.device, losses_and_depths(run.model))[0]["layers"].sum(1)
    run.add("depth.early", "share of tokens", layers[:2].sum() / layers.sum())

    gender = run.pairs.only([i for i, prompt in enumerate(run.pairs.prompts) if prompt.category == "gender"])
    table = run.probe(Coreference(domain="keys"), prompts=gender)
    side = halves(table, 0)[0]
    half_of = dict(zip(table["id"], side, strict=True))

    def probabilities(edits: Any = None) -> Any:
        return np.exp(coherence_rows(run.model, gender, None, run.tokenizer, edits).set_index("id")["log_p"])

    baseline = probabilities()
    sizes: dict[str, list[float]] = {"effect": [], "spread": [], "range": []}
    for half in (0, 1):  # found on one half, measured on the other
        attention = table[side == half].groupby(["layer", "index"])["attention"].mean()
        group = [Head(*place) for place in attention.sort_values(ascending=False).index[:2]]
        other_prompts = [name for name in baseline.index if half_of[name] != half]
        zero_p, scaled_p = (probabilities(scale_heads(group, scale))[other_prompts] for scale in (0.0, SCALE))
        change = zero_p - baseline[other_prompts]
        sizes["effect"].append(abs(change.mean()))
        sizes["spread"].append(change.std())
        sizes["range"].append(abs((scaled_p - zero_p).mean()))
    for name, values in sizes.items():
        run.add(f"entity.log_{name}", "ln of a probability", float(np.log(np.mean(values))))

    result = Extract(tier="structural", raw=()).measure(run.model, Tokens(data=HELD_OUT, max_tokens=10_000))
    features = features_of(result)
    x, _ = varying_features(features)
    feature_labels, raw = (ComputationalModes("kmeans").fit(y).labels_ for y in (x, raw_rows(raw_of(result), features)))
    run.add("ari.raw", "adjusted Rand index", adjusted_rand_score(feature_labels, raw))


def krom(run: "Run") -> None:
    """The two-panel figure of swaps, and the cosines of the bias sweep."""
    from streamscope.models.mixing import measure
    from streamscope.papers.krom.tables import layer_cosines

    best = [row["value"] for row in measure(run.model) if row["metric"] == "swap_best" and row["value"] is not None]
    run.add("swap.best", "probability", max(best))
    run.add("streams.cosine", "cosine", layer_cosines(run.model)["stream_cosine"].mean())


def measure_run(folder: Path) -> list[dict[str, Any]]:
    """The rows of one run."""
    from streamscope.papers.paper import Run

    run = Run(folder)
    for group in (losses, coreference, position, induction):
        group(run)
    preset = run.model.config.name
    if preset.startswith("dst"):
        dst(run)
    if preset in ("pls", "c2"):
        pls(run)
    if run.model.config.residual.kind == "kromhc":
        krom(run)
    return run.rows


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure what is new, write after each run."""
    options = parse(Options, argv, __doc__)

    import sys

    import pandas as pd

    from streamscope.cli.disk import write_text
    from streamscope.models.checkpoint import read_manifest
    from streamscope.papers.paper import tokens_of

    table = pd.read_csv(options.out) if options.out.is_file() else pd.DataFrame(columns=["arm", "seed", "weights"])
    for folder in options.runs:
        arm, _, seed = folder.name.rpartition("-s")
        if not arm or not seed.isdigit():
            raise InputError(f"{folder}: a run is called ARM-sSEED, such as lfa-s20")
        manifest = read_manifest(folder)
        if manifest.get("outcome") != "completed":
            print(f"{folder} has not ended: left out", file=sys.stderr)
            continue
        weights = manifest["weights"]
        if ((table["arm"] == arm) & (table["seed"] == int(seed)) & (table["weights"] == weights)).any():
            continue
        about = {"arm": arm, "seed": int(seed), "tokens": tokens_of(folder, manifest), "weights": weights}
        rows = pd.DataFrame([{**about, **row} for row in measure_run(folder)])
        rows = rows.drop(columns=["part", "x"], errors="ignore")
        other_rows = table[(table["arm"] != arm) | (table["seed"] != int(seed))]
        table = pd.concat([other_rows, rows], ignore_index=True).sort_values(["arm", "seed"], kind="stable")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out, table.to_csv(index=False, float_format="%.7g"))
        print(f"{arm}, seed {seed}: {len(rows)} rows", file=sys.stderr)


if __name__ == "__main__":
    command(main)
