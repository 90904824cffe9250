"""An option that has no effect beside the others, or a value that it does not take, is refused in one plain line."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from streamscope import Documents, InputError, Prompts, Text
from streamscope.cli.commands import commands, entry
from streamscope.instruments.registry import discover
from streamscope.interventions import Ablate
from streamscope.probes import Picture


def called(words: str) -> None:
    """A command as one types it."""
    name, *argv = shlex.split(words)
    entry({**commands(), "papers": "streamscope.papers"}[name])(argv)


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("cluster", {"clusters": 3}, "--clusters has no effect with --method hdbscan"),
    ("cluster", {"method": "kmeans", "min_cluster_size": 5}, "--min-cluster-size has no effect with --method kmeans"),
    ("cluster", {"method": "kmeans", "min_samples": 3}, "--min-samples has no effect with --method kmeans"),
    ("cluster", {"method": "kmeans", "selection": "leaf"}, "--selection has no effect"),
    ("cluster", {"resamples": 500}, "--resamples has no effect without --raw"),
    ("cluster", {"fitted": Path("before.parquet"), "method": "kmeans"}, "--method has no effect with --fitted"),
    ("extract", {"k": 3}, "--k has no effect with --tier structural"),
    ("extract", {"window": 3}, "--window has no effect with --tier structural"),
    ("extract", {"theta_gate": 0.5}, "--theta-gate has no effect"),
    ("extract", {"anchor_heads": ("L1.H0",)}, "--anchor-heads has no effect with --tier structural"),
    ("extract", {"tier": "topk", "entity_heads": ("L1.H0",)}, "--entity-heads has no effect with --tier topk"),
    ("heads", {"texts": False, "text_tokens": 9}, "--text-tokens has no effect without --texts"),
    ("phenomena", {"only": ("loss",), "n": 9}, "--n has no effect with --only loss"),
    ("phenomena", {"only": ("loss",), "sequences": 9}, "--sequences has no effect with --only loss"),
    ("amplify", {"text": "", "picture": ("L0.H0",)}, "--picture has no effect without --text"),
    ("amplify", {"prompt": "", "sample_tokens": 9}, "--sample-tokens has no effect without --prompt"),
    ("steer", {"prompt": "", "sample_tokens": 9}, "--sample-tokens has no effect without --prompt"),
    ("mixing", {"change": ("res-mean",), "draws": 2}, "--draws has no effect with --change res-mean"),
    ("streams", {"method": ("zero",), "draws": 2}, "--draws has no effect with --method zero"),
    ("suppress", {"threshold": 0.1}, "--threshold has no effect with --select topk"),
    ("suppress", {"select": ("threshold",), "k": (1,)}, "--k has no effect with --select threshold"),
    ("steer_heads", {"k": 3}, "--k has no effect with --groups entity"),
    ("ablation_effects", {"layers": "all"}, "--layers has no effect with --groups entity anchor semantic"),
    ("patch", {"clean": "a", "corrupt": "b", "answer": "c", "foil": "d", "pairs": 3}, "--pairs has no effect"),
]


@pytest.mark.parametrize(("name", "options", "line"), OPTIONS, ids=[f"{name} {list(o)[-1]}" for name, o, _ in OPTIONS])
def test_options_of_instruments(name: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        discover()[name](**options)


def test_the_same_options_where_they_act() -> None:
    known = discover()
    for name, options in (
        ("cluster", {"method": "kmeans", "clusters": 3}),
        ("cluster", {"min_cluster_size": 5, "min_samples": 2, "raw": (Path("raw.parquet"),), "resamples": 500}),
        ("extract", {"tier": "topk", "k": 3, "window": 3}),
        ("extract", {"tier": "core", "anchor_heads": ("L1.H0",)}),
        ("suppress", {"select": ("topk", "threshold"), "threshold": 0.1, "k": (1,)}),
        ("steer_heads", {"groups": ("entity", "found-anchor"), "k": 3}),
    ):
        known[name](**options)


COMMANDS = [
    ("ablate --suite stories", "--suite has no effect, because neither --measures nor --heads reads prompts"),
    ("ablate --measures sps --data stories:0:40", "--data has no effect"),
    ("suppress --data stories:0:40", "--data has no effect, because no loss is among --measures"),
    ("steer_heads --measures task --max-documents 3", "--max-documents has no effect"),
    ("steer_heads --measures loss --tasks winograd", "--tasks has no effect"),
    ("heads --no-texts --data stories:0:40", "--data has no effect, because --no-texts"),
    ("phenomena --only winograd --max-documents 3", "--max-documents has no effect"),
    ("patch --clean a --corrupt b --answer c --foil d --suite competing", "--suite has"),
    ('picture --text "She ran" --suite stories', "--suite has no effect, because --text gives the prompt"),
    ("picture --max-tokens 9", "--max-tokens has no effect, because the prompt comes from the suite"),
    ("latents --text a --source b --data stories:0:40", "--data has no effect"),
    ("ablate --workers 3", "--workers has no effect with --launch serial"),
    ("ablate --launch ray --partition gpu", "--partition has no effect with --launch ray"),
    ("grid grid.toml --hours 3", "--hours has no effect with --launch serial"),
    ("papers dst --out x.pdf", "--out is for one --table or --figure"),
    ("papers dst --grid mine", "--grid names what is measured of --runs"),
    ("train lfa --optimizer x", "--optimizer takes adamw or muon, got 'x'; "),
    ("train lfa --batch-size x", "--batch-size takes a whole number, got 'x'; "),
    ("train lfa --param-dtype fp16", "--param-dtype takes fp32 or bf16, got 'fp16'; "),
    ("train lfa --bias-correction maybe", "--bias-correction takes True or False, got 'maybe'; "),
    ("suppress --threshold x", "--threshold takes a number or own, got 'x'; "),
    ("suppress --gates 1 x", "--gates takes one or more values, each a number, got "),
    ("heads --seed 1.5", "--seed takes a whole number, got '1.5'; "),
    ("heads --dtype fp64", "--dtype takes fp32 or bf16, got 'fp64'; "),
    ("train lfa --data my book.txt", "--data takes one value, but 'book.txt' follows 'my': "),
    ("train lfa --snapshots 0 5 10", "--snapshots takes one value, but '5' follows '0': put quotes"),
    ("ablate --data a.txt stories/lfa --head L0.H0", "Unrecognized options: --head, L0.H0, did you"),
    ("prompts --suite foo", "Unrecognized options: --suite, foo: give its value without --suite; "),
    ("ablate --run lfa", "Unrecognized options: --run, lfa: give its value without --run; "),
    ("direct_logit_attribution --suite ioi", "Unrecognized options: --suite, ioi; "),
    ("ablate --devise cpu", "Unrecognized options: --devise, cpu, did you mean --device?; "),
    ("ablate --heads L5.H0 --heads L4.H0", "--heads is given twice: give it once, with all its values"),
    ("ablate --max-documents 2 --max-documents=3", "--max-documents is given twice: give it once"),
    ("ablate --max_documents 2 --max-documents 2", "--max-documents is given twice: give it once"),
    ("heads --texts --no-texts", "--texts and --no-texts contradict each other: give one"),
    ("logit_lens stories/lfa --text", "--text has no value: give one, or leave --text out"),
    ("logit_lens --layers --k 3", "--layers has no value: give one, or leave --layers out"),
    ('logit_lens --text "" hello', "--text: a text is empty; give one with words"),
    ('picture --text " "', "--text: a text is empty; give one with words"),
    ('latents --text ""', "--text: a text is empty; give one with words"),
]


@pytest.mark.parametrize(("words", "line"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_what_is_typed_wrongly_or_has_no_effect_is_refused_in_words(words: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        called(words)
    assert str(caught.value).startswith(line)
    assert not set("{}[]<\n") & set(str(caught.value)) and "typing" not in str(caught.value)


def test_data_of_python_that_are_not_read_are_refused_as_those_of_commands() -> None:
    for how, data, line in (
        (Ablate(draws=0), Prompts(suite="ioi"), "--suite has no effect, because neither --measures nor --heads reads"),
        (Ablate(draws=0), Prompts(suite="ioi").half(1), "half 1 of Prompts has no effect, because neither"),
        (Ablate(measures=("sps",)), Documents("stories:0:40"), "--data has no effect, because no loss is among"),
        (Picture(), Text(max_tokens=9), "--max-tokens has no effect, because the prompt comes from the suite"),
    ):
        with pytest.raises(InputError, match=line):
            how.measure("stories/lfa", data)
    Ablate(draws=0).check_read([Prompts()])  # the default is let through


def test_options_that_may_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    called("describe lfa --scale tiny --set n_layers=1 --set n_heads=1")
    assert "blocks.1" not in capsys.readouterr().out
