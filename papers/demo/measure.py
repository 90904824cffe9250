"""What `papers.demo` measures on a run: the probes' own plans, tables and summaries, at the sizes of `Sizes`."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from streamscope.cli.disk import Config, read_json
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device
from streamscope.instruments.data import Prompts
from streamscope.instruments.prompts import align, load_suite
from streamscope.instruments.prompts.alignment import check_tokenizer
from streamscope.instruments.stats.held_out import RULES, halves, held_out
from streamscope.instruments.stats.means import estimate, hits, with_holm
from streamscope.instruments.undefined_cells import note
from streamscope.interventions.ablate.measure import ablate_heads
from streamscope.interventions.suppress import Suppress
from streamscope.models.checkpoint import load, run_folder
from streamscope.models.describe import parameters_by_part
from streamscope.models.head_spec import parse_heads
from streamscope.models.training.config import tokens_seen
from streamscope.models.training.data import evaluation_shards
from streamscope.models.training.run import read_metrics
from streamscope.papers.demo.options import Sizes
from streamscope.probes.attention import choose
from streamscope.probes.coherence.elsewhere import aligned_control
from streamscope.probes.coherence.measure import rows as log_odds
from streamscope.probes.coherence.measure import summary as coherence
from streamscope.probes.coreference import Coreference
from streamscope.probes.coreference.measure import summary as by_coreference
from streamscope.probes.pds.measure import summary as by_pds
from streamscope.probes.picture.measure import picture
from streamscope.probes.probe import measure
from streamscope.probes.sps import Sps
from streamscope.probes.sps.measure import summary as by_sps

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.instruments.prompts.alignment import Aligned

    Bar = Callable[[str], Callable[[Iterable], Iterable]]

SUITE, PROMPT, WORDS = "stories", "Once upon a time", 90


GATES = (1.0, 0.5, 0.0)


@dataclass(frozen=True)
class Subject:
    """A run that is looked into."""

    name: str
    """Its name on the page."""
    folder: Path
    model: Any
    run: str
    """As it was called: a run folder or a bundled model."""


@dataclass
class Found:
    """The tables of one run, by name, and what is shown of it besides."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    sample: str = ""
    leaning: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Attention to the two nouns per prompt and head: `probes.sps`."""
    rows: list[pd.DataFrame] = field(default_factory=list)
    """The attention picture: one table of `probes.picture` per order of the pair."""
    pair: tuple[str, ...] = ()
    """The ids of its prompts: the median case of the half that did not choose the head."""
    text: str = ""
    """The first of its prompts."""
    head: str = ""
    """Of the attention picture: the best head of the half of the cases that the pair is not in."""
    unseen: tuple[str, ...] = ()
    """The ids of the prompts of the other half."""
    right: dict[str, Any] = field(default_factory=dict)
    """How often the head is right there: share, its interval, n."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Prompt -> the head that was best on the half of the cases that the prompt is not in."""


def open_runs(folders: tuple[str, ...], device: str) -> list[Subject]:
    """The models of the runs, under names that differ.

    Raises `InputError` for a folder that is no run, for a model without tokenizer, and for runs of different
    tokenizers: losses per token and the places of words could not be compared.
    """

    paths = [run_folder(name) for name in folders]
    if len({p.resolve() for p in paths}) < len(paths):
        raise InputError("the same run is given twice; give different run folders")
    found = [load(path, device=pick_device(device)) for path in paths]
    first = check_tokenizer(found[0])
    for path, model in zip(paths[1:], found[1:], strict=True):
        if check_tokenizer(model).sha256 != first.sha256:
            raise InputError(
                f"{paths[0]} and {path} have different tokenizers, so nothing per token can be compared; train them on "
                f"the same --data, or with --tokenizer {paths[0]}, or look at one run at a time"
            )
    presets = [model.config.name for model in found]
    short = [p.resolve().name for p in paths]
    whole = [str(p) for p in paths]
    names = next(n for n in (presets, short, whole) if len(set(n)) == len(n))
    return [Subject(*one) for one in zip(names, paths, found, folders, strict=True)]


def measure_run(subject: Subject, sizes: Sizes, bar: "Bar") -> Found:
    """Everything of the page, of one run. `bar(label)` wraps the longer loops."""

    model, found = subject.model, Found()
    aligned = align(load_suite(SUITE, n=sizes.pairs), model.tokenizer, model.config.n_ctx)
    steps: list[Callable[[], None]] = [
        lambda: _about(subject, found),
        lambda: _pds(model, aligned, found),
        lambda: _coreference(model, aligned, found),
        lambda: _meaning(model, aligned, found),
        lambda: _picture(model, aligned, found),
        lambda: _following(model, aligned, found),
    ]
    for step in bar(f"{subject.name}: probes, {len(aligned.prompts)} prompts")(steps):
        step()
    _ablation(subject, sizes, found, bar)
    _suppression(subject, sizes, found, bar)
    return found


def _about(subject: Subject, found: Found) -> None:
    """Parameters by part, the training log, a text of the model."""

    model, log = subject.model, subject.folder / "metrics.jsonl"
    found.tables["parameters"] = pd.DataFrame(parameters_by_part(model), columns=["part", "parameters"])
    rows = read_metrics(subject.folder, strict=False) if log.is_file() else []
    kinds = [(r["step"], r["kind"], r["loss"]) for r in rows if r["kind"] in ("train", "eval")]
    log_rows = pd.DataFrame(kinds, columns=["step", "kind", "loss"])
    found.tables["losses"] = log_rows.assign(tokens=_tokens_seen(subject.folder, log_rows["step"]))
    room = model.config.n_ctx - len(model.tokenizer.encode(PROMPT))
    ids = model.generate(PROMPT, max_new_tokens=min(WORDS, room), temperature=0.8, seed=0)[0]
    found.sample = model.to_string(ids)


def _tokens_seen(folder: Path, steps: "pd.Series[int]") -> list[float]:
    """Training tokens after each of `steps`; NaN of a folder that does not say how it was trained."""

    config = read_json(folder / "config.json", Config) if (folder / "config.json").is_file() else {}
    if "training" not in config:
        return [math.nan] * len(steps)
    return [float(tokens_seen(config["training"], config["model"]["n_ctx"], int(step))) for step in steps]


def _pds(model: Any, aligned: "Aligned", found: Found) -> None:

    found.tables["pds"] = by_pds(model, aligned)


def _coreference(model: Any, aligned: "Aligned", found: Found) -> None:
    """All heads; the head of one half on the other against the rules; its Top-1 with Wilson's interval.

    The rules choose between the two nouns, so a head is held against them there. The paper's Top-1 (LFA Eq. 5) is over
    all tokens; it is measured as well, with a head of its own.
    """

    table, over_keys = (measure(model, one, aligned) for one in (Coreference(), Coreference(domain="keys")))
    chosen = held_out(table)
    found.tables |= {"coreference": by_coreference(table), "coreference-held-out": chosen}
    found.tables |= {"coreference-keys": by_coreference(over_keys)}
    found.tables |= {"coreference-keys-held-out": held_out(over_keys)}
    side, heads = halves(table, 0)[0], chosen.set_index("halves")["head"]
    first, second = heads["A→B"].iloc[0], heads["B→A"].iloc[0]
    scored = table[((side == 1) & (table["head"] == first)) | ((side == 0) & (table["head"] == second))]
    rows = []
    for name, values in {"best head": scored["hit"], **{rule: scored[rule] for rule in RULES}}.items():
        share = hits(values.to_numpy(), scored["cluster"].to_numpy())
        why = share.pop("why")
        rows.append({"who": name, **share, "undefined": note({"ci_low": why, "ci_high": why} if why else {})})
    rows.append({"who": "chance", "share": scored["chance"].mean(), "ci_low": float("nan"), "ci_high": float("nan"),
                 "undefined": "ci_low, ci_high: known without measuring"})  # fmt: skip
    found.tables["coreference-top1"] = pd.DataFrame(rows).assign(
        n=len(scored), clusters=int(chosen["clusters"].iloc[-1])
    )
    unseen = table[(side == 1) & (table["head"] == first)]
    found.head, found.unseen = first, tuple(unseen["id"])
    found.right = {**hits(unseen["hit"].to_numpy(), unseen["cluster"].to_numpy()), "n": len(unseen)}
    sides = dict(zip(table["id"], side, strict=True))
    found.chosen = {name: first if half == 1 else second for name, half in sides.items()}


def median_pair(rows: pd.DataFrame) -> tuple[str, ...]:
    """The ids of the median pair, by the attention to the right noun minus that to the other, mean of its orders.

    `rows` are those of `probes.sps` of one head. Of an even number of pairs it is the lower one in the middle; a single
    prompt if no pair has both orders. So no picture is picked for its looks.
    """
    pairs = rows[rows["pair"] != ""].groupby("pair", sort=False)
    means = pairs["sps"].mean()[pairs["id"].size() == 2]
    if means.empty:
        return tuple(rows["id"][:1])
    middle = means.sort_values(kind="stable").index[(len(means) - 1) // 2]
    return tuple(rows["id"][rows["pair"] == middle])


def _picture(model: Any, aligned: "Aligned", found: Found) -> None:
    """Attention from the pronoun of the pair in the middle of those that did not take part in choosing the head."""

    rows = found.leaning
    found.pair = median_pair(rows[(rows["head"] == found.head) & rows["id"].isin(found.unseen)])
    found.text = next(prompt.text for prompt in aligned.prompts if prompt.id == found.pair[0])
    heads = parse_heads(found.head.replace("H", ".H"), model.config.n_layers, model.config.n_heads)
    place = {prompt.id: i for i, prompt in enumerate(aligned.prompts)}
    both = [choose(aligned, [place[name]]) for name in found.pair]
    found.rows = [picture(model, one, heads, int(one.queries[0])) for one in both]


def _meaning(model: Any, aligned: "Aligned", found: Found) -> None:
    """SPS over all heads and per layer; coherence over all pairs and per relation."""

    rows = found.leaning = measure(model, Sps(), aligned)
    sps = pd.concat([by_sps(rows, level) for level in ("all", "layers")], ignore_index=True)
    found.tables["sps"] = sps.drop(columns=["layer", "index"]).rename(columns={"head": "heads"})
    found.tables["coherence"] = coherence(log_odds(model, aligned, None, model.tokenizer), elsewhere=False)


def _following(model: Any, aligned: "Aligned", found: Found) -> None:
    """What is due to the text's nouns (`probes.coherence.elsewhere`), and how it changes without the head that follows
    the right one best and without each other head of its layer.

    Every prompt loses the head that was chosen without its half of the cases. Rows: the whole, the chosen head, the
    others one at a time, their mean, and chosen − mean; empty where no prompt has nouns that can be exchanged.
    """

    found.tables["following"] = pd.DataFrame(columns=["who", "role", "change", "ci_low", "ci_high", "n", "undefined"])
    after = aligned_control(aligned, model.tokenizer, model.config.n_ctx)
    if after is None:
        return
    both = (aligned, after)
    whole = _due(model, both, None)
    whole = whole[whole["id"].isin(found.chosen)].reset_index(drop=True)
    heads = sorted(set(found.chosen.values()))
    of_layer = {h: [f"{h.split('H')[0]}H{i}" for i in range(model.config.n_heads)] for h in heads}
    cut = {one: _due(model, both, one) for one in sorted({x for some in of_layer.values() for x in some})}
    change = pd.DataFrame({one: whole["id"].map(t.set_index("id")["due"]) - whole["due"] for one, t in cut.items()})
    mine = whole["id"].map(found.chosen)
    own = change.to_numpy()[np.arange(len(change)), change.columns.get_indexer(mine)]
    others = np.stack([change.loc[i, [x for x in of_layer[h] if x != h]].to_numpy(float) for i, h in mine.items()])
    rows = [("/".join(heads), "chosen", own)]
    if others.shape[1]:
        names = [[x for x in of_layer[h] if x != h] for h in heads]
        rows += [("/".join(some), "other", others[:, i]) for i, some in enumerate(zip(*names, strict=True))]
    found_rows = [{"who": w, "role": role, **estimate(x, whole["cluster"])} for w, role, x in rows]
    table = with_holm(pd.DataFrame(found_rows))
    more = [("nothing", "whole", whole["due"])]
    if others.shape[1]:
        more += [("mean of the others", "mean", others.mean(1)), ("chosen − mean", "above", own - others.mean(1))]
    more_rows = [{"who": w, "role": role, **estimate(x, whole["cluster"])} for w, role, x in more]
    found.tables["following"] = pd.concat([table, pd.DataFrame(more_rows)], ignore_index=True).rename(
        columns={"mean": "change"}
    )


def _due(model: Any, both: "tuple[Aligned, Aligned]", without: str | None) -> pd.DataFrame:
    """Per prompt with a control: log-odds − those after another prompt's nouns, as `due`; `without` one head."""

    edits: dict[str, Any] = {}
    if without is not None:
        (head,) = parse_heads(without.replace("H", ".H"), model.config.n_layers, model.config.n_heads)

        def removed(z: Any, hook: Any) -> Any:
            z = z.clone()
            z[:, :, head.head] = 0
            return z

        edits = {f"blocks.{head.layer}.attn.hook_z": removed}
    return log_odds(model, *both, model.tokenizer, edits).dropna(subset="due")


def _ablation(subject: Subject, sizes: Sizes, found: Found, bar: "Bar") -> None:
    """Every head at z = 0, one at a time, on validation documents: `interventions.ablate`."""

    model = subject.model
    shards = evaluation_shards(subject.folder, model.tokenizer, None)
    heads = parse_heads("all", model.config.n_layers, model.config.n_heads)
    progress = bar(f"{subject.name}: {len(heads)} heads ablated")
    groups = [[head] for head in heads]
    measured = ablate_heads(model, shards, groups, [0.0], max_documents=sizes.documents, progress=progress)
    table = measured.short("delta")
    found.tables["ablation"] = table.sort_values("delta", ascending=False, kind="stable", ignore_index=True)


def _suppression(subject: Subject, sizes: Sizes, found: Found, bar: "Bar") -> None:
    """The k heads with the largest PDS under every gate, with their controls: `interventions.suppress`."""

    model = subject.model
    k = min(sizes.k, model.config.n_layers * model.config.n_heads // 2)
    how = Suppress(k=(k,), gates=GATES, draws=sizes.draws)
    result = how.measure(model, Prompts(SUITE, n=sizes.suppress_pairs), progress=bar(f"{subject.name}: suppressions"))
    parts = {"": "effects", "-controls": "controls", "-draws": "draws"}
    found.tables |= {f"suppression{name}": result.table(table).short("delta") for name, table in parts.items()}
