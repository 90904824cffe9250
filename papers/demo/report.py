"""The demonstration's page: the commands of sections.toml on every run, and the live page on one of the passages."""

import contextlib
import io
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired

import pandas as pd
from markupsafe import Markup
from typing_extensions import TypedDict

from streamscope.cli.disk import check_folder, read_toml
from streamscope.cli.errors import InputError
from streamscope.cli.provenance import pick_device, provenance
from streamscope.instruments.data import check_tokenizer
from streamscope.instruments.observations import Observations
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align
from streamscope.instruments.result import Result
from streamscope.instruments.stats.estimators import read_clusters, wilson
from streamscope.instruments.stats.held_out import halves
from streamscope.models.checkpoint import load, run_folder
from streamscope.models.training.run import read_metrics
from streamscope.papers.demo import Options
from streamscope.papers.demo.web_page import Section, write_page
from streamscope.viewer.describe import about, identities
from streamscope.viewer.session import MOST, Shown
from streamscope.viewer.view import check_extra

SECTIONS = Path(__file__).with_name("sections.toml")
LIVE, PROMPT, WORDS = "live.html", "Once upon a time", 60
LEAD = "What do the attention heads of a small language model look at, and what is lost without them? "
MORE = Markup(
    'The <a href="{}">live page</a> opens on the passage below: turn a head off there, and see what changes. '
)
LIMITS = """One training run each: whether an architecture differs from another needs several seeds of each, and models
that differ in nothing else. Small models that saw little text: a model that has not learned to use a pronoun cannot
show how it does so. Small samples: “not significantly different” does not mean “equal”."""


class Declared(TypedDict):
    """A section of sections.toml."""

    name: str
    title: str
    text: str
    commands: list[str]
    figures: NotRequired[list[str]]
    table: NotRequired[str]


@dataclass(frozen=True)
class Choice:
    """What is shown of the first run: its head and the pair of prompts, chosen on different halves of the cases."""

    head: str
    """The best one of one half."""
    prompts: tuple[str, ...]
    """The ids of the median pair of the other half."""
    right: str
    """How often the head is right on the other half."""


def measure(options: Options) -> None:
    """Measure every run; write results and both pages. Raises `InputError` as `open_models` and the commands do."""
    check_folder(options.out)
    models = open_models(options.runs, options.device)
    runs, first = shlex.join(options.runs), options.runs[0]
    values: dict[str, Any] = {**asdict(options), "runs": runs, "first": shlex.quote(first), "model": first}
    sections = [Section("The models", [introduction(*named_model) for named_model in models.items()])]
    results: dict[str, list[Result]] = {}
    text, state = "", dict[str, Any]()
    for entry in read_toml(SECTIONS, dict[str, list[Declared]])["section"]:
        if entry["name"] == "picture":
            choice = choose(results["coreference"][0], results["sps"][0], options.pairs)
            suite = load_suite("stories", n=options.pairs)
            pair = tuple(prompt for prompt in suite.prompts if prompt.id in choice.prompts)
            queries = align(replace(suite, prompts=pair), models[first].tokenizer).queries
            text, state = pair[0].text, {"head": choice.head, "token": queries[0]}
            values |= {**asdict(choice), "layer": choice.head.partition(".")[0], "queries": queries}
        commands = [command.format(**values) for command in entry["commands"]]
        results[entry["name"]] = [
            measured(command, options.out / f"{entry['name']}{f'-{i}' if i > 1 else ''}.parquet", options.device)
            for i, command in enumerate(commands, 1)
        ]
        if entry["name"] == "ablation":
            values["without"] = without(results["ablation"][0], first, choice.head)
        sections.append(
            Section(
                entry["title"], [entry["text"].format(**values)], results[entry["name"]], entry.get("figures", [None]),
                entry.get("table"), commands=[f"python -m {command}" for command in commands],
            )
        )  # fmt: skip
    sections.append(Section("What this page does not show", [LIMITS]))
    lead = LEAD + (MORE.format(LIVE) if write_live(models, options.out, text, state) else "")
    write_page(options.out / "index.html", f"Inside {' and '.join(models)}", lead, sections, footer(options.device))
    print(f"{choice.head} of {first} finds the right noun in {choice.right}")
    print(f"{len(list(options.out.glob('*.parquet')))} tables in {options.out}")
    print(f"page {options.out / 'index.html'}")


def open_models(names: tuple[str, ...], device: str) -> dict[str, Any]:
    """The models of the runs, by name.

    Raises `InputError` for a folder that is no run, for a model without tokenizer, and for runs of different
    tokenizers: losses per token and the places of words could not be compared.
    """
    if not names:
        raise InputError("give a run folder or several: python -m papers.demo RUN RUN --out FOLDER")
    if len({run_folder(name).resolve() for name in names}) < len(names):
        raise InputError("the same run is given twice; give different run folders")
    models = {name: load(name, device=pick_device(device)) for name in names}
    first = check_tokenizer(models[names[0]])
    for name, model in models.items():
        if check_tokenizer(model).sha256 != first.sha256:
            raise InputError(
                f"{names[0]} and {name} have different tokenizers, so nothing per token can be compared; train them on "
                f"the same --data, or with --tokenizer {names[0]}, or look at one run at a time"
            )
    return models


def introduction(name: str, model: Any) -> str:
    """How large a model is, where its training ended, and a text of it."""
    folder, loss = run_folder(name), ""
    rows = read_metrics(folder, strict=False) if (folder / "metrics.jsonl").is_file() else []
    if log := [row for row in rows if row["kind"] == "eval"]:
        loss = f" Its validation loss is {log[-1]['loss']:.3f} nats per token after {log[-1]['step']:,} steps."
    room = model.config.n_ctx - len(model.tokenizer.encode(PROMPT))
    ids = model.generate(PROMPT, max_new_tokens=min(WORDS, room), temperature=0.8, seed=0)[0]
    return f"{about(model)}{loss} It writes: “{' '.join(model.to_string(ids).split())} …”"


def measured(command: str, file: Path, device: str) -> Result:
    """What a command writes into a file."""
    module, *argv = shlex.split(command)
    with contextlib.redirect_stdout(io.StringIO()):  # its tables are on the page
        import_module(f"streamscope.{module}").main([*argv, "--out", str(file), "--device", device])
    return Result.load(file)


def choose(coreference: Result, sps: Result, pairs: int) -> Choice:
    """The head that finds the right noun most often in one half of the cases, and the median pair of the other half.

    Of the first of several runs. Raises `InputError` where no pair of that half has both its prompts.
    """
    blocks = ((coreference.blocks, "top1"), (sps.blocks, "sps"))
    hit, leaning = (block[name] if name in block else block[f"run0-{name}"] for block, name in blocks)
    held_out_table = coreference.table("held-out").frame
    head = str(held_out_table.loc[held_out_table["halves"] == "A→B", "head"].iloc[0])
    unseen = halves(hit.units, 0)[0] == 1
    values, clusters = _values(hit, head=head, what="hit")[unseen], hit.units["cluster"][unseen]
    cluster_index, interval = read_clusters(clusters, len(values)), "interval undefined"
    if cluster_index.count > 1:
        interval = "95 % interval {:.1f} to {:.1f}".format(*(100 * end for end in wilson(values, cluster_index)))
    ids = leaning.units["unit"].str.rpartition(":")[0]
    pair_of = {prompt.id: prompt.pair or "" for prompt in load_suite("stories", n=pairs).prompts}
    towards = _values(leaning, head=head, what="semantic") - _values(leaning, head=head, what="distractor")
    rows = pd.DataFrame({"id": ids, "pair": ids.map(pair_of), "sps": towards})
    prompts = median_pair(rows[leaning.units["unit"].isin(hit.units["unit"][unseen])])
    return Choice(head, prompts, f"{100 * values.mean():.1f} % of {len(values)} prompts ({interval})")


def without(ablation: Result, model: str, head: str) -> str:
    """What is left of the log-odds of the first run without a head, and what other heads change."""
    row = ablation.table("coherence").frame.set_index("head").loc[[head]].iloc[0]
    return (
        f"Without {head}, which finds the right noun in {model}, the log-odds go from {row['baseline']:+.2f} to "
        f"{row['edited']:+.2f} nats; without another head they change by {row['control']:+.2f} on average."
    )


def median_pair(rows: pd.DataFrame) -> tuple[str, ...]:
    """The ids of the median pair, by the attention to the right noun minus that to the other, mean of its orders.

    `rows`: id, pair and sps of one head. Of an even number of pairs it is the lower one in the middle. So no picture is
    picked for its looks. Raises `InputError` where no pair has both orders.
    """
    pairs = rows.groupby("pair", sort=False)
    means = pairs["sps"].mean()[pairs["id"].size() == 2]
    if means.empty:
        raise InputError("no pair of stories fits into the context in both orders; give more --pairs, or other runs")
    middle = means.sort_values(kind="stable").index[(len(means) - 1) // 2]
    return tuple(rows["id"][rows["pair"] == middle])


def _values(block: Observations, **labels: str) -> Any:
    """The values of the cell with these labels."""
    (row,) = [i for i, cell in enumerate(block.cells.to_dict("records")) if labels.items() <= cell.items()]
    return block.total[row]


def write_live(models: Mapping[str, Any], out: Path, text: str, state: Mapping[str, Any]) -> bool:
    """Write the live page of the first two runs on a text; whether it could be made.

    It needs packages of the extra `view`, and ONNX Runtime in the cache.
    """
    try:
        check_extra()
        from streamscope.viewer.page import write_page as write

        first_models = dict(list(models.items())[:MOST])
        shown = [*map(Shown, first_models, identities([*first_models]), first_models.values())]
        write(shown, out / LIVE, text, report="index.html", state=state)
    except InputError as error:
        print(f"without the live page: {error}")
        return False
    print(f"live page {out / LIVE}")
    return True


def footer(device: str) -> str:
    """How the page was made."""
    meta = provenance(pick_device(device))
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    return (
        f"Made {meta['started']} by {' '.join(meta['argv'])}, commit {meta['commit']}, on {meta['device']}; {versions}."
    )
