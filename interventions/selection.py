"""Groups of heads by name: those of paper PLS, those found in a model, or any heads of the grammar.

entity   L5.H4+L5.H5        anchor   L5.H2+L5.H3        semantic   L5.H0+L5.H1      (PLS §5.1, Table 2; SPEC §7.4)
found                       the same three, found in this model's attention (`probes.head_groups`)
found-entity                one of these
L5.H4+L5.H5, L4.*           heads of `models.head_spec`, joined by +
mine=L5.H4+L4.H1            the same under a name
top2:entity, top3:pds       by score: entity, anchor, semantic (`probes.head_groups`), pds (`probes.pds`,
                            heads for the last noun and for the first alike)
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pandas as pd

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.prompts.word_classes import CLASSES
from streamscope.models.head_spec import Head, parse_heads, score_names
from streamscope.probes.head_groups import HeadGroups
from streamscope.probes.head_groups import measure as head_groups
from streamscope.probes.pds import Pds
from streamscope.probes.roles import head_scores

PLS = {"entity": "L5.H4+L5.H5", "anchor": "L5.H2+L5.H3", "semantic": "L5.H0+L5.H1"}
FOUND = "found"


class Group(NamedTuple):
    """Heads under a name."""

    name: str
    heads: tuple[Head, ...]

    @property
    def label(self) -> str:
        """The heads, as L5.H4+L5.H5."""
        return "+".join(head.label for head in self.heads)

    @property
    def spec(self) -> str:
        """found-entity=L5.H4+L5.H5: names the same group without finding it again."""
        return f"{self.name}=" + "+".join(f"L{head.layer}.H{head.head}" for head in self.heads)


class HeadFinder:
    """The groups of one model; its attention is measured only if a specification needs it."""

    def __init__(self, model: Any, tokenizer: Any, *, k: int = 2, layers: Literal["last", "all"] = "last") -> None:
        self.model, self.tokenizer, self.k, self.layers = model, tokenizer, k, layers

    @cached_property
    def _read(self) -> tuple[HeadGroups, Any, Any]:
        aligned = align(load_suite("story-cases", n=200), self.tokenizer, self.model.config.n_ctx)
        return HeadGroups(k=self.k, layers=self.layers), *head_groups.capture(self.model, aligned, self.tokenizer)

    @cached_property
    def summary(self) -> pd.DataFrame:
        options, captures, query = self._read
        return head_groups.summary(options, head_groups.read(captures, query, self.tokenizer))

    @cached_property
    def roles(self) -> pd.DataFrame:
        """The heads of the found groups, compared with shuffled roles (`head_groups.measure.role_tests`)."""
        return head_groups.role_tests(self.summary, head_groups.shuffled_scores(*self._read, self.tokenizer))

    def single(self, heads: Sequence[str], groups: Sequence[str]) -> list[Group]:
        """The heads of `heads`, each under its own name; without any, all heads, or none if there are `groups`."""
        specs = heads or (() if groups else ("all",))
        members = [head for group in (self.groups(specs) if specs else []) for head in group.heads]
        return [Group(head.label, (head,)) for head in dict.fromkeys(members)]

    def heads_and_groups(self, heads: Sequence[str], groups: Sequence[str]) -> list[Group]:
        """`single`, then the `groups`, each once. Raises `InputError` for two with one name."""
        all_groups = dict.fromkeys([*self.single(heads, groups), *(self.groups(groups) if groups else [])])
        if len({group.name for group in all_groups}) < len(all_groups):
            raise InputError("a group has the name of a single head; rename it as NAME=SPEC")
        return list(all_groups)

    def groups(self, specs: Sequence[str]) -> list[Group]:
        """The groups of `specs`, in order, each once. Raises `InputError` without a group, for unknown heads or scores,
        and for two groups with one name."""
        by_name: dict[str, Group] = {}
        for spec in specs:
            for group in self._one(spec):
                if by_name.setdefault(group.name, group) != group:
                    raise InputError(f"two groups of heads are called {group.name!r}; rename one as NAME=SPEC")
        if not by_name:
            raise InputError("give at least one group of heads, such as entity, found or L5.H4+L5.H5")
        return list(by_name.values())

    def _one(self, spec: str) -> list[Group]:
        kind, _, class_name = spec.partition("-")
        if kind == FOUND and class_name in ("", *CLASSES):
            groups = head_groups.groups_of(self.summary)
            return [Group(f"{FOUND}-{name}", groups[name]) for name in ([class_name] if class_name else CLASSES)]
        name, _, heads = spec.rpartition("=")
        if heads in PLS:
            try:
                return [Group(name or heads, self._heads(PLS[heads]))]
            except InputError:
                config = self.model.config
                shape = f"this model has {counted(config.n_layers, 'layer')} of {counted(config.n_heads, 'head')}"
                raise InputError(f"{heads} is {PLS[heads]} (PLS §5.1), but {shape}; use found or name heads") from None
        chosen = self._heads(heads)
        return [Group(name or "+".join(head.label for head in chosen) if len(chosen) < 5 else name or heads, chosen)]

    def _heads(self, spec: str) -> tuple[Head, ...]:
        parts = spec.split("+")
        scores: dict[str, Mapping[Head, float]] = {}
        names = score_names(parts)
        if names & set(CLASSES):
            scores |= {name: head_scores(self.summary, name) for name in CLASSES}
        if "pds" in names:
            prompts = given_prompts(load_suite("competing"), self.model, self.tokenizer)
            scores["pds"] = head_scores(Pds().measure(self.model, prompts, progress=iter).table().frame, "pds")
        return tuple(parse_heads(parts, self.model.config.n_layers, self.model.config.n_heads, scores))
