"""Parses head specifications such as L5.H4.

L5.H4        one head                    all          every head
L4.*         a layer                     random3:7    three heads drawn with seed 7
L4-5.H0-2    ranges, ends included       top3:NAME    the three heads with the largest score NAME
*.H2         head 2 of every layer       bottom3:NAME the three with the smallest

Other parts of layers have similar specifications (`parse_parts`): L2.attn, L2.*, L0-2.up, *.v, all.

The command computes only the scores that `score_names` lists, for example pds by `probes.pds`.
"""

import random
import re
from collections.abc import Mapping, Sequence
from itertools import product, starmap
from operator import itemgetter
from typing import Any, NamedTuple

from streamscope.cli.errors import InputError, unknown

_RANKED = r"(top|bottom)(\d+):(\w+)"
Scores = Mapping[str, Mapping["Head", float]]
"""Score name -> value of every head."""


class Head(NamedTuple):
    """A head, by layer and index from 0."""

    layer: int
    head: int

    @property
    def label(self) -> str:
        return f"L{self.layer}.H{self.head}"


def parse_heads(specs: str | Sequence[str], n_layers: int, n_heads: int, scores: Scores | None = None) -> list[Head]:
    """Parse to heads, sorted and without repetition. Raises `InputError` for a head that the model does not have."""
    every = [*starmap(Head, product(range(n_layers), range(n_heads)))]
    chosen, scores = set[Head](), scores or {}
    for spec in [specs] if isinstance(specs, str) else specs:
        drawn, ranked = re.fullmatch(r"random(\d+):(\d+)", spec), re.fullmatch(_RANKED, spec)
        k = int(drawn[1]) if drawn else int(ranked[2]) if ranked else 1
        if not 1 <= k <= len(every):
            raise InputError(f"{spec!r} asks for {k} heads, but the model has {len(every)}")
        if spec == "all":
            chosen.update(every)
        elif drawn:
            chosen.update(random.Random(int(drawn[2])).sample(every, k))
        elif ranked:
            if (name := ranked[3]) not in scores:
                computed = sorted(scores) or ["none: this command computed no scores"]
                raise unknown(f"head score in {spec!r}", name, computed)
            sign, score_of = -1.0 if ranked[1] == "top" else 1.0, scores[name]
            chosen.update(sorted(every, key=lambda head: (sign * score_of[head], head))[:k])
        else:
            places = re.fullmatch(r"(?:L(\d+)(?:-(\d+))?|\*)\.?(?:H(\d+)(?:-(\d+))?|\*)", spec)
            if places is None:
                forms = "write L5.H4, L4.*, L4-5.H0-2, all, random3:7 or top3:SCORE"
                raise InputError(f"{spec!r} does not name a head: {forms}")
            layers = _range(repr(spec), "layer", places[1], places[2], n_layers)
            heads = _range(repr(spec), "head", places[3], places[4], n_heads)
            chosen.update(starmap(Head, product(layers, heads)))
    return sorted(chosen)


def every_head(model: Any) -> list[Head]:
    return [*starmap(Head, product(range(model.config.n_layers), range(model.config.n_heads)))]


def score_names(specs: str | Sequence[str]) -> set[str]:
    """The scores by which `specs` rank heads: {"pds"} for top3:pds."""
    lines = specs if isinstance(specs, str) else "\n".join(specs)
    return {*map(itemgetter(2), re.findall(f"^{_RANKED}$", lines, re.MULTILINE))}


def parse_layers(specs: Sequence[str], n_layers: int, option: str = "--layers") -> list[int]:
    """Parse "3" and "2-4" (inclusive) to sorted layers. Raises `InputError`, which names the option, for others."""
    layers: set[int] = set()
    for spec in specs:
        if (ends := re.fullmatch(r"(\d+)(?:-(\d+))?", spec, re.ASCII)) is None:
            raise InputError(f"{option} {spec}: give layers as 3 or 2-4")
        layers.update(_range(f"{option} {spec}", "layer", ends[1], ends[2], n_layers))
    return sorted(layers)


def parse_parts(specs: str | Sequence[str], n_layers: int, parts: Sequence[str], noun: str) -> list[tuple[int, str]]:
    """Parse parts of layers (L2.q, L2.*, L0-2.up, *.v, all) to sorted, distinct (layer, part); errors name `noun`."""
    chosen: set[tuple[int, str]] = set()
    for spec in [specs] if isinstance(specs, str) else specs:
        match = re.fullmatch(r"(?:L(\d+)(?:-(\d+))?|\*)\.(\w+|\*)", "*.*" if spec == "all" else spec)
        if match is None:
            first, last = parts[0], parts[-1]
            raise InputError(f"{spec!r} does not name a {noun}: write L2.{first}, L2.*, L0-2.{last}, *.{first} or all")
        if match[3] not in (*parts, "*"):
            raise unknown(f"{noun} in {spec!r}", match[3], list(parts))
        names = parts if match[3] == "*" else [match[3]]
        layers = _range(repr(spec), "layer", match[1], match[2], n_layers)
        chosen.update((layer, part) for layer in layers for part in names)
    return sorted(chosen, key=lambda pair: (pair[0], list(parts).index(pair[1])))


def _range(spec: str, noun: str, first: str | None, last: str | None, n: int) -> range:
    if first is None:
        return range(n)
    low, high = int(first), int(last or first)
    if high < low:
        raise InputError(f"{spec}: the range of {noun}s is reversed: write {high}-{low}")
    if high >= n:
        raise InputError(f"{spec}: this model has {noun}s 0 to {n - 1}")
    return range(low, high + 1)
