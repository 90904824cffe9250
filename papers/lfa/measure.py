"""What is measured on one trained run: the numbers of paper LFA, taken with the instruments of the other rooms.

    tables = measure_run(model, shards, Settings(), progress)
    tables["runs"]     one row per number, with its unit, interval and n

Quantities are named `loss`, `pds.max.L5`, `sps.L3`, `suppress.top1.loss`, … A number that is one per run has no
interval here: its spread is that over training seeds (`papers.lfa.claims`).
"""

from typing import Any

import pandas as pd

from streamscope.instruments.prompts import align, check_tokenizer, load_suite
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.stats.estimators import ratio_of_sums
from streamscope.instruments.stats.held_out import held_out
from streamscope.interventions.observe import document_losses
from streamscope.models.transformer import StreamTransformer
from streamscope.papers.comparison.seeds import NAN, Progress, Rows, why_of
from streamscope.papers.lfa import COMPETING, COREFERENCE, DOMAINS, Settings
from streamscope.papers.lfa.suppress import curves, suppress
from streamscope.probes.coreference import Coreference
from streamscope.probes.coreference.measure import mean_stability, pair_stability
from streamscope.probes.coreference.measure import summary as measured
from streamscope.probes.heads import Heads
from streamscope.probes.heads.measure import summary as by_position
from streamscope.probes.pds import FIXED
from streamscope.probes.pds.measure import layers, summary
from streamscope.probes.phenomena import Phenomena
from streamscope.probes.probe import measure
from streamscope.probes.sps import Sps
from streamscope.probes.sps.measure import summary as preferences
from streamscope.text.shards import TokenShards


def measure_run(
    model: StreamTransformer, shards: TokenShards, settings: Settings, progress: Progress
) -> dict[str, pd.DataFrame]:
    """Every table of one run: `runs` (its quantities), `heads`, `rules`, `suppression`, `controls`, `suppress`.

    `shards` are the documents of the loss. Raises `InputError` where a suite cannot be read with this tokenizer, and
    where k leaves no controls.
    """

    tokenizer = check_tokenizer(model)
    suites = {name: align(load_suite(name), tokenizer, model.config.n_ctx) for name in (COREFERENCE, COMPETING)}
    rows = Rows()
    _loss(rows, model, shards, settings, progress)
    heads = _position(rows, model, suites[COMPETING])
    rules = _coreference(rows, heads, model, suites, settings)
    _preference(rows, heads, model, suites[COMPETING])
    _copying(rows, model)

    effects, controls = suppress(rows, model, suites[COMPETING], heads, shards, settings, progress)
    for name, aligned in suites.items():
        kept = f"{len(aligned.filtered)} left out"
        rows.add(f"prompts.{name}", "suites", "prompts", len(aligned.prompts), detail=kept)
    tables = {
        "runs": pd.DataFrame(rows.rows), "heads": heads, "rules": rules, "suppression": effects, "controls": controls,
        "suppress": curves(model, suites[COMPETING], shards, settings, progress),
    }  # fmt: skip
    return {name: table.reset_index(drop=True) for name, table in tables.items()}


def _loss(rows: Rows, model: Any, shards: TokenShards, settings: Settings, progress: Progress) -> None:
    """Parameters, and the loss per token over all documents with its interval over documents."""

    rows.add("parameters", "size", "parameters", model.n_params())
    losses = document_losses(model, shards, [], batch_size=settings.batch_size, progress=progress("loss"))
    loss = ratio_of_sums(losses.baseline, losses.tokens)
    tokens = f"{int(losses.tokens.sum())} tokens"
    interval = (loss.ci_low, loss.ci_high)
    rows.add("loss", "loss", "nats/token", loss.mean, sd=loss.sd, interval=interval, n=loss.n, detail=tokens)


def _position(rows: Rows, model: Any, aligned: Aligned) -> pd.DataFrame:
    """PDS (LFA Eq. 7, App. C); returns the table of heads that the other measures add their columns to."""

    heads = summary(model, aligned, threshold=FIXED)
    n, last = int(heads["n"].iloc[0]), model.config.n_layers - 1
    best = heads.loc[heads["pds"].idxmax()]
    rows.add("pds.max", "position", "attention", best["pds"], n=n, detail=best["head"])
    rows.add("pds.mean", "position", "attention", heads["pds"].mean(), n=n)
    early, late = heads["layer"] <= 1, heads["layer"] >= last - 1
    counts = {"": heads["layer"] >= 0, ".early": early, ".late": late, ".last": heads["layer"] == last}
    over = {name: int(heads.loc[at, "over"].sum()) for name, at in counts.items()}
    for name, count in over.items():
        rows.add(f"pds.over{name}", "position", "heads", count, n=n)
    rows.add("pds.over.late-early", "position", "heads", over[".late"] - over[".early"], n=n)
    by_layer = layers(heads)
    for layer, most in zip(by_layer["layer"], by_layer["max"], strict=True):
        at = heads[heads["layer"] == layer]
        rows.add(
            f"pds.max.L{layer}", "position by layer", "attention", most, n=n, detail=at.loc[at["pds"].idxmax(), "head"]
        )
    return heads[
        ["head", "layer", "index", "pds", "first", "last", "difference", "ci_low", "ci_high", "over", "undefined"]
    ]


def _coreference(
    rows: Rows, heads: pd.DataFrame, model: Any, suites: dict[str, Aligned], settings: Settings
) -> pd.DataFrame:
    """Top-1 and mean attention (Eq. 4, 5), stability (Eq. 6); returns the chosen heads against the rules.

    Eq. 5 and 6 take the argmax over all keys; among the candidates alone a head that looks at neither is right in half
    of the cases, so that reading is reported and not judged.
    """

    rules = []
    for domain in DOMAINS:
        probe = Coreference(domain=domain)  # type: ignore[arg-type]
        table = measure(model, probe, suites[COREFERENCE])
        summary = measured(table).set_index("head")
        heads[f"top1_{domain}"] = summary["top1"].reindex(heads["head"]).to_numpy()
        halves = held_out(table, seed=settings.seed)
        rules.append(halves.assign(domain=domain))
        both = halves[halves["halves"] == "both"].set_index("rule")
        n, name = int(summary["n"].iloc[0]), f"coreference.{domain}"
        rows.add(
            f"{name}.top1", "coreference", "share of cases", both["top1"].iloc[0], n=n, detail=both["head"].iloc[0]
        )
        for rule, one in both.iterrows():
            interval = (one["ci_low"], one["ci_high"])
            gain, clusters = f"{name}.minus_{rule}", int(one["clusters"])
            why = why_of(one["undefined"])
            rows.add(
                gain,
                "coreference against rules",
                "share of cases",
                one["difference"],
                interval=interval,
                n=clusters,
                why=why,
            )
            rows.add(f"{name}.{rule}", "suites", "share of cases", one["rule_share"], n=n)
        rows.add(f"{name}.chance", "suites", "share of cases", both["chance"].iloc[0], n=n)
        rows.add(f"{name}.best", "coreference", "share of cases", summary["top1"].iloc[0], n=n, detail=summary.index[0])
        rows.add(f"{name}.over30", "coreference", "heads", int((summary["top1"] > 0.3).sum()), n=n)
        best = summary.iloc[0]
        rows.add(f"{name}.best_layer", "coreference", "layer", best["layer"], n=n, detail=str(summary.index[0]))
        if domain == "keys":  # needs no distractor: every prompt with an antecedent
            heads["attention"] = summary["attention"].reindex(heads["head"]).to_numpy()
            _ranks(rows, summary, n)
            _pairs(rows, table[table["category"] == "competing-nouns"])
        _stability(rows, table[table["category"] == "competing-nouns"], domain, COREFERENCE)
        _stability(rows, measure(model, probe, suites[COMPETING]), domain, COMPETING)
    return pd.concat(rules, ignore_index=True)


def _ranks(rows: Rows, summary: pd.DataFrame, n: int) -> None:
    """Where the heads with most attention to the antecedent are, and how much the tenth has (Table 3, App. E)."""
    ordered = summary.sort_values("attention", ascending=False, kind="stable")
    most, top = ordered.iloc[0], ordered.head(5)
    rows.add("attention.best", "coreference", "attention", most["attention"], n=n, detail=str(ordered.index[0]))
    tenth = float(ordered["attention"].iloc[9]) if len(ordered) > 9 else NAN
    rows.add(
        "attention.tenth", "coreference", "attention", tenth, n=n, why="" if tenth == tenth else "fewer than 10 heads"
    )
    names = " ".join(map(str, top.index))
    rows.add(
        "coreference.top5_in_L3-L4", "coreference", "heads", int(top["layer"].isin([3, 4]).sum()), n=n, detail=names
    )


def _stability(rows: Rows, table: pd.DataFrame, domain: str, suite: str) -> None:
    """Both readings of Eq. 6 (SPEC §7.3), over the minimal pairs of the table."""

    for _, one in mean_stability(table).iterrows():
        detail = f"{one['left_out']} pairs left out" if one["left_out"] else ""
        rows.add(
            f"stability.{domain}.{one['reading']}.{suite}", "stability", "share of heads", one["mean"], sd=one["sd"],
            interval=(one["ci_low"], one["ci_high"]), n=int(one["pairs"]), detail=detail, why=why_of(one["undefined"]),
        )  # fmt: skip


def _pairs(rows: Rows, table: pd.DataFrame) -> None:
    """Heads that keep to the target of a pair, mean over all, and Eq. 6 by pair of nouns (App. G), over its texts."""
    each = pair_stability(table)
    each = each.assign(nouns=each["pair"].str.extract(r"^coreference-(.+)-\d+$", expand=False))
    rows.add("stability.keys.stable", "stability", "heads", each["stable"].mean(), n=len(each))
    for nouns, one in each.groupby("nouns"):
        mean, n = float(one["jaccard"].mean()), int(one["jaccard"].notna().sum())
        why = "" if n else "no head hits the target in any text"
        rows.add(f"stability.keys.pair.{nouns}", "stability", "share of heads", mean, n=n, why=why)


def _preference(rows: Rows, heads: pd.DataFrame, model: Any, aligned: Aligned) -> None:
    """SPS (Eq. 8) of all heads and by layer, raw, and gated where the model has gates."""
    gates = any(name.endswith("attn.hook_gate") for name in model.hook_dict)
    for reading in ("raw", "gated") if gates else ("raw",):
        probe = Sps(attention=reading)
        table = measure(model, probe, aligned)
        name = "sps" if reading == "raw" else "sps.gated"
        for level in ("all", "layers"):
            for _, one in preferences(table, level).iterrows():
                where, family = ("", "preference") if level == "all" else (f".{one['head']}", "preference by layer")
                interval, n = (one["ci_low"], one["ci_high"]), int(one["clusters"])
                rows.add(f"{name}{where}", family, "attention", one["sps"], sd=one["sd"], interval=interval, n=n,
                         why=why_of(one["undefined"]))  # fmt: skip
        if reading == "raw":
            each = preferences(table, "heads").set_index("head")
            heads["sps"] = each["sps"].reindex(heads["head"]).to_numpy()


def _copying(rows: Rows, model: Any) -> None:
    """Whether the model copies the noun that is meant, as the gate measures it, and induction on random tokens.

    A model that does not copy cannot be expected to look back for nouns.
    """

    gate = Phenomena(only=("copying",)).measure(model).table("phenomena")
    (seen,) = gate.frame.to_dict("records")
    interval, n = (seen["value_low"], seen["value_high"]), int(seen["clusters"])
    rows.add("copying", "copying", seen["unit"], seen["value"], sd=seen["value_sd"], interval=interval, n=n,
             why=gate.missing.get((0, "value_low"), ""))  # fmt: skip
    probe = Heads(length=min(Heads().length, (model.config.n_ctx - 1) // 2))
    scores = by_position(measure(model, probe, []))
    one = scores[scores["score"] == "induction"]
    best = one.loc[one["mean"].idxmax()]
    n = int(best["n"])
    rows.add("induction.max", "copying", "attention", best["mean"], n=n, detail=best["head"])
    rows.add("induction.even", "suites", "attention", best["uniform"], n=n)
