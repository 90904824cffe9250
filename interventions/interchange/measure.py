"""Interchange: pairs of prompts, what is put from one into the other, and which answer follows.

delta = P (h_source − h_base)         at one hook, stream and position of the base prompt
answer = ln Σ p(answers) − ln Σ p(foils) > 0        of the base prompt, with delta added
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor
from torch.nn import functional

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.contract import InstrumentData, title_of
from streamscope.instruments.data import Opened, Prompts
from streamscope.instruments.observations import Contrast, Estimates, Measure, Observations, joined
from streamscope.instruments.progress import Progress, ticks
from streamscope.instruments.prompts.alignment import OpenPrompts
from streamscope.instruments.prompts.suite import Prompt
from streamscope.instruments.prompts.suite import units as units_of
from streamscope.instruments.table import Table, counts, described, key, quantity
from streamscope.interventions.circuits.metrics import log_total
from streamscope.interventions.interchange import Interchange
from streamscope.interventions.patch.pairs import answer_tokens
from streamscope.models.hooks import Edits, Query, edit, pad, run
from streamscope.models.layers.head import unembed
from streamscope.models.make import untrained
from streamscope.models.sweep import passes
from streamscope.probes.stream_states import RESID, Place, places_of

BATCH, LEARNING_RATE = 64, 3e-3  # pairs of a training step, and Adam's rate on a basis of unit vectors
EVERY, PATIENCE = 10, 3  # steps between two looks at held-out pairs; looks without an improvement that end a training
DIRECTIONS, ORDERS = 0.35, 100  # share of the prompts for directions; random orders in which prompts are dealt out


def check(options: Interchange, model: Any) -> None:
    places_of(model, options.hooks)


def cases_of(options: Interchange, opened: OpenPrompts) -> dict[str, pd.DataFrame]:
    """The prompts, a row each, of each relation (or category) that has a variable of two values (`variable_of`).

    position: where the state is put. answers: the right ones, and those that the other value makes right. right: the
    value, 0 or 1, that makes the first of `answers` right. value: that of the model's own answer, or `right`. words:
    those that no two parts of the prompts may share. Raises `InputError` if no relation has a variable, and for a
    position that prompts lack.
    """
    aligned, rows, cases = opened.aligned, list[tuple[Any, ...]](), dict[str, pd.DataFrame]()
    if options.position != "last" and (lost := [p.id for p in aligned.prompts if options.position not in p.roles]):
        raise InputError(f"prompt {lost[0]!r} has no {options.position}: give --position last")
    units = [unit if isinstance(unit, tuple) else (unit,) for unit in units_of(aligned.prompts)]
    for prompt, ids, roles, unit in zip(aligned.prompts, aligned.tokens, aligned.positions, units, strict=True):
        lists = answer_tokens(prompt, ids, opened.tokenizer) if prompt.answers or prompt.incoherent else ""
        if not isinstance(lists, str):
            position = len(ids) - 1 if options.position == "last" else roles[options.position][-1]
            of_roles = [prompt.text[slice(*place)] for role, place in prompt.roles.items() if role != "query"]
            words = frozenset((prompt.words or {}).values() or of_roles or unit)
            rows.append((prompt, ids, position, lists[:2], words, unit, opened.unit(prompt.id)))
    table = pd.DataFrame(rows, columns=["prompt", "tokens", "position", "answers", "words", "unit", "name"])
    two_lists = len({frozenset(right) for right, _ in table["answers"]}) == 2
    table["group"] = [p.category if two_lists else p.relation or p.category for p in table["prompt"]]
    for group, of_group in table.groupby("group", sort=False):
        variable, value = variable_of(of_group["prompt"].tolist(), of_group["answers"].tolist())
        if variable:
            plain = of_group.reset_index(drop=True)
            cases[str(group)] = plain.assign(right=value, value=value, variable=variable)
    if not cases:
        kinds = "two kinds of nouns or both orders of two nouns, as stories, or with two lists of answers, as pronouns"
        raise InputError(f"interchange needs a variable of two values: prompts with {kinds} or agreement")
    return cases


def own_answer(cases: pd.DataFrame, pairs: Int[np.ndarray, "pairs 2"]) -> Bool[np.ndarray, " pairs"]:
    """Whether the source's value calls for the base prompt's `answers`."""
    value, right = (cases[name].to_numpy() for name in ("value", "right"))
    return np.asarray(value[pairs[:, 1]] == right[pairs[:, 0]])


def variable_of(
    prompts: Sequence[Prompt], answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[str, np.ndarray]:
    """The variable of two values, by name, and its value in every prompt; an empty name if there is none.

    answer: which of two lists of answers is right. kind of noun: each prompt names a noun of each kind, such as a tool
    and a container, and one of the two is meant; kinds are the two colours of the graph that joins the nouns of a
    prompt, and perhaps the text after them, which is of the kind of the one that is meant. order: whether the noun that
    is meant comes first or last.
    """
    lists = sorted({frozenset(right) for right, _ in answers}, key=sorted)
    if len(lists) == 2:
        return "answer", np.array([lists.index(frozenset(right)) for right, _ in answers])
    roles = ("target", "distractor")
    if not all(role in prompt.roles for prompt in prompts for role in roles):
        return "", np.zeros(0)
    nouns = [[prompt.text[slice(*prompt.roles[role])] for role in roles] for prompt in prompts]
    after = [prompt.text[max(prompt.roles[role][1] for role in roles) :] for prompt in prompts]
    clues = [[text, distractor] for text, (_, distractor) in zip(after, nouns, strict=True)]
    for differ in (nouns, [*nouns, *clues]):
        if kind := two_kinds(differ):
            return "kind of noun", np.array([kind[target] for target, _ in nouns])
    if all(prompt.order for prompt in prompts):
        return "order", np.array([int(prompt.order == "target_last") for prompt in prompts])
    return "", np.zeros(0)


def two_kinds(differ: Sequence[Sequence[str]]) -> dict[str, int]:
    """A kind, 0 or 1, of every word, so that those of each pair have different ones; {} if there is no or no single way
    up to the exchange of both."""
    words, places = np.unique(np.asarray(differ), return_inverse=True)
    a, b = places.reshape(-1, 2).T
    edges = coo_array((np.ones(len(a)), (a, b)), shape=(len(words), len(words)))
    distance = dijkstra(edges, directed=False, unweighted=True, indices=a[0])
    if not np.isfinite(distance).all() or (distance[a] % 2 == distance[b] % 2).any():
        return {}
    return dict(zip(words.tolist(), (distance % 2).astype(int).tolist(), strict=True))


def apart(cases: pd.DataFrame, seed: int) -> tuple[list[int], list[int]]:
    """Two groups of prompts that share no word: for directions, about `DIRECTIONS` of each right value, and to measure.

    In a random order, one whose words are on a side goes there, one of new words where its value is too rare; a prompt
    with words of both sides is left out. Of `ORDERS` orders, the one whose smallest part is largest for its share."""
    rng, shares = np.random.default_rng([seed, 1]), np.array([[DIRECTIONS], [1 - DIRECTIONS]])
    best, largest = (list[int](), list[int]()), -1.0
    for _ in range(ORDERS):
        words: tuple[set[str], set[str]] = (set(), set())
        rows: tuple[list[int], list[int]] = ([], [])
        sizes = np.zeros((2, 2))
        for i in rng.permutation(len(cases)):
            prompt_words, value = cases["words"][i], int(cases["right"][i])
            sides = [side for side in (0, 1) if prompt_words & words[side]]
            if len(sides) == 2:
                continue
            side = sides[0] if sides else int(sizes[0, value] >= DIRECTIONS * (sizes[:, value].sum() + 1))
            words[side].update(prompt_words)
            rows[side].append(int(i))
            sizes[side, value] += 1
        if (smallest := float((sizes / shares).min())) > largest:
            best, largest = rows, smallest
    return sorted(best[0]), sorted(best[1])


def with_values(variable: str, model: Any, cases: pd.DataFrame) -> pd.DataFrame:
    """The prompts with the value of the model's own answer (chosen), or of the right one."""
    if variable == "right":
        return cases.assign(value=cases["right"])
    with_itself = np.repeat(np.arange(len(cases))[:, None], 2, axis=1)
    (prefers,) = answered(model, cases, with_itself, [], [])
    return cases.assign(value=np.where(prefers, cases["right"], 1 - cases["right"]))


def draw_pairs(prompts: Sequence[int], n: int, rng: np.random.Generator) -> Int[np.ndarray, "pairs 2"]:
    """Different pairs (base, source) of prompts, at most `n`, drawn at random."""
    size = len(prompts)
    if size * (size - 1) <= n:
        return np.array(list(permutations(prompts, 2)))
    drawn: dict[tuple[int, int], None] = {}
    while len(drawn) < n:
        base, source = (int(x) for x in rng.integers(0, size, 2))
        if base != source:
            drawn[prompts[base], prompts[source]] = None
    return np.array(list(drawn))


# ---- bases ------------------------------------------------------------------------------------


def first_basis(
    states: Float[Tensor, "prompts D"], value: np.ndarray, rank: int, rng: np.random.Generator
) -> Float[Tensor, "D k"]:
    """The difference of the means of both values, and random directions orthogonal to it."""
    mask = torch.as_tensor(value == 1)
    direction = states[mask].mean(0) - states[~mask].mean(0)
    if not direction.norm() > 0:
        direction = torch.as_tensor(rng.standard_normal(len(direction))).to(states)
    random_part = torch.as_tensor(rng.standard_normal((len(direction), rank - 1))).to(states)
    return torch.linalg.qr(torch.cat([direction[:, None] / direction.norm(), random_part], 1)).Q


def margins(
    logits: Float[Tensor, "B V"], answers: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> Float[Tensor, " B"]:
    """ln Σ p(answers) − ln Σ p(foils), in nats."""
    right, wrong = (log_total(logits, pad(side, fill=-1).to(logits.device)) for side in zip(*answers, strict=True))
    return right - wrong


def swap(
    place: Place, U: Tensor | None, states: Float[Tensor, "prompts D"], base: Any, source: Any, position: Tensor
) -> Edits:
    """The edit that adds P (h_source − h_base) to base prompts at their positions: P = U Uᵀ, or 1 without U."""
    delta = states[source] - states[base]
    delta = delta if U is None else (delta.to(U) @ U @ U.T).to(delta)
    index = (torch.arange(len(delta), device=position.device), position)
    return {place.hook: lambda x, hook: place.put(x, index, place.of(x)[index] + delta.to(x))}


def das(
    model: Any, cases: pd.DataFrame, place: Place, states: Float[Tensor, "prompts D"], start: Float[Tensor, "D k"],
    steps: int, rng: np.random.Generator,
) -> tuple[Float[Tensor, "D k"], bool]:  # fmt: skip
    """Distributed alignment search at one place: the basis with the least loss on held-out pairs, from `start` on, and
    whether there were no held-out words.

    Held-out pairs have words of their own where both groups of prompts have both values: with few words a basis soon
    learns the words instead of the variable. The states before the layer of the place are computed once.
    """
    tokens, position, last = tensors_of(model, cases, range(len(cases)))
    native = hasattr(model, "segment")
    with torch.no_grad():
        before = model.segment(model.embed_tokens(tokens), 0, place.layer) if native else None

    def loss_of(U: Float[Tensor, "D k"], pairs: Int[np.ndarray, "pairs 2"]) -> Float[Tensor, ""]:
        """Mean of ln(1 + exp(−m)), m the log-odds of the answer that the source's value calls for."""
        base, source = (torch.as_tensor(x, device=last.device) for x in pairs.T)
        rows = torch.arange(len(base), device=base.device)
        with edit(model, swap(place, U, states, base, source, position[base])):
            if native:
                state = torch.utils._pytree.tree_map_only(Tensor, lambda x: x[base], before)
                h = model.readout(model.segment(state, place.layer))
                logits = unembed(model.ln_final(h[rows, last[base]][:, None])[:, 0], model.head)
            else:
                logits = model(tokens[base])[rows, last[base]]
        m = margins(logits, cases["answers"][pairs[:, 0]])
        own = torch.as_tensor(own_answer(cases, pairs), device=m.device)
        return functional.softplus(torch.where(own, -m, m)).mean()

    held_out, trained = apart(cases, int(rng.integers(2**31)))
    learns_words = min(cases["value"][rows].nunique() for rows in (held_out, trained)) < 2
    if learns_words:
        held_out = trained = list(range(len(cases)))
    validation_pairs, train_pairs = draw_pairs(held_out, 4 * BATCH, rng), draw_pairs(trained, 50 * BATCH, rng)
    W, worse, best, least = start.clone().requires_grad_(), 0, start, np.inf
    optimizer = torch.optim.Adam([W], lr=LEARNING_RATE)
    for step in range(steps + 1):
        if step % EVERY == 0 or step == steps:
            with torch.no_grad():
                U = torch.linalg.qr(W).Q if step else start
                validation_loss = float(loss_of(U, validation_pairs))
            best, least, worse = (U, validation_loss, 0) if validation_loss < least else (best, least, worse + 1)
            if worse == PATIENCE or step == steps:
                break
        loss = loss_of(torch.linalg.qr(W).Q, train_pairs[rng.integers(0, len(train_pairs), BATCH)])
        (W.grad,) = torch.autograd.grad(loss, W)
        optimizer.step()
    return best.detach(), learns_words


# ---- measuring --------------------------------------------------------------------------------


def tensors_of(model: Any, cases: pd.DataFrame, rows: Sequence[int]) -> tuple[Tensor, ...]:
    """Of some prompts the padded tokens [B, T], the positions where the state is put, and the last ones [B]."""
    ids = [cases["tokens"][i] for i in rows]
    tokens = pad(ids).to(model.cfg.device)
    places = (cases["position"][rows].tolist(), [len(row) - 1 for row in ids])
    return tokens, *(torch.tensor(x, device=tokens.device) for x in places)


def states_at(model: Any, cases: pd.DataFrame, places: Sequence[Place]) -> dict[Place, Float[Tensor, "prompts D"]]:
    """The state of every prompt at its position, at every place."""
    hooks, positions = tuple(place.hook for place in places), [[position] for position in cases["position"]]
    states = run(model, Query(tokens=cases["tokens"].tolist(), hooks=hooks, positions=positions)).hooks
    return {place: torch.stack([place.of(x[0]) for x in states[place.hook]]) for place in places}


def coin_of(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """0 or 1 for each prompt, in equal parts for both values: a coin that by chance tells the value finds it."""
    coin = np.zeros_like(value)
    for rows in (np.flatnonzero(value == 0), np.flatnonzero(value == 1)):
        coin[rows] = rng.permutation(len(rows)) % 2
    return coin


def bases_of(
    options: Interchange, model: Any, cases: pd.DataFrame, places: Sequence[Place], bases: Sequence[str], tick: Any,
    trainings: dict[str, list[bool]],
) -> Iterator[tuple[Place, str, Tensor | None]]:  # fmt: skip
    """(place, basis, U [D, k]; None for the whole state) from the prompts for directions. `trainings` is told of each
    training of a basis whether it had no held-out words."""
    states, value = states_at(model, cases, places), cases["value"].to_numpy()
    coin = coin_of(value, np.random.default_rng([options.seed, 2]))
    for i, place in enumerate(places):
        rng = np.random.default_rng([options.seed, 3, i])
        h = states[place].to(torch.float32)
        for basis in bases:
            U: Tensor | None = None  # whole
            if basis == "means":
                U = first_basis(h, value, 1, rng)
            elif basis == "random":
                U = torch.linalg.qr(torch.as_tensor(rng.standard_normal((h.shape[1], options.rank))).to(h)).Q
            elif basis != "whole":
                trained = cases.assign(value=coin, right=coin) if basis == "arbitrary" else cases
                start = first_basis(h, trained["value"].to_numpy(), options.rank, rng)
                U, learns_words = das(model, trained, place, h, start, options.steps, rng)
                trainings[basis].append(learns_words)
            yield place, basis, U
            tick(1)


def answered(
    model: Any, cases: pd.DataFrame, pairs: Int[np.ndarray, "pairs 2"],
    bases: Sequence[tuple[Place, str, Tensor | None]], places: Sequence[Place], tick: Any = lambda n: None,
) -> Bool[np.ndarray, "cells pairs"]:  # fmt: skip
    """Whether the model prefers the base prompt's own answer: unedited, and under the interchange in each basis. `tick`
    is called after every batch of about `BATCH` pairs."""
    states = states_at(model, cases, places)
    prefers = np.zeros((1 + len(bases), len(pairs)), bool)
    order = np.argsort(cases["tokens"].map(len).to_numpy()[pairs[:, 0]], kind="stable")
    for rows in np.array_split(order, max(1, len(order) // BATCH)):
        base, source = pairs[rows].T
        tokens, position, last = tensors_of(model, cases, base)
        sweep = [{}, *(swap(place, U, states[place], base, source, position) for place, _, U in bases)]
        options: dict[str, Any] = {"at": last[:, None]} if hasattr(model, "segment") else {}
        for cell, (h, _) in enumerate(passes(model, tokens, sweep, **options)):
            h = h[:, 0] if hasattr(model, "segment") else h[torch.arange(len(rows)), last]
            with torch.no_grad():
                m = margins(unembed(h, model.head), cases["answers"][base])
            prefers[cell, rows] = (m > 0).cpu().numpy()
        tick(1)
    return prefers


KEYS = ("relation", "hook", "stream", "layer", "basis")
HITS = Measure(name="accuracy", unit="share of pairs", resolution=0.0, kind="share")


def observe(options: Interchange, model: Any, data: Opened, progress: Progress) -> InstrumentData:
    """Cells: the unedited model in every relation, and each place and basis. Units: pairs of prompts. The untrained
    model is asked for the right answers, because its own answers hardly vary. A relation whose variable has one value
    in all prompts of a part is left out, and the title says so. Raises `InputError` if none is left."""
    places, groups = places_of(model, options.hooks), cases_of(options, data[Prompts])
    nets: list[tuple[Any, str, list[str]]] = [(model, options.variable, [b for b in options.basis if b != "untrained"])]
    if "untrained" in options.basis:
        nets.append((untrained(model, options.seed), "right", ["untrained"]))
    n_batches = len(nets) * max(1, options.pairs // BATCH)
    tick = ticks(progress, len(groups) * (len(places) * len(options.basis) + n_batches))
    labels, words, arrays = list[dict[str, Any]](), list[str](), dict[str, np.ndarray]()
    hits, differ, units = list[pd.DataFrame](), list[pd.DataFrame](), list[pd.DataFrame]()
    trainings, n_prompts = defaultdict[str, list[bool]](list), np.zeros(2, int)  # for directions, and measured
    for relation, cases in groups.items():
        parts = [cases.iloc[rows].reset_index(drop=True) for rows in apart(cases, options.seed)]
        of_nets = [[with_values(variable, net, part) for part in parts] for net, variable, _ in nets]
        variable = cases["variable"][0]
        if min(part["value"].nunique() for part in of_nets[0]) < 2:
            words.append(f"{relation} left out: the {variable} has one value in all prompts of a part")
            continue
        n_prompts += [len(part) for part in parts]
        pairs = draw_pairs(range(len(parts[1])), options.pairs, np.random.default_rng([options.seed, 4]))
        base, source = (parts[1].iloc[rows].reset_index() for rows in pairs.T)
        names = base["name"] + " ← " + source["name"]
        units.append(pd.DataFrame({"unit": names, "cluster": base["unit"] + source["unit"]}))
        for (net, _, net_bases), (directions, measured) in zip(nets, of_nets, strict=True):
            bases = list(bases_of(options, net, directions, places, net_bases, tick, trainings))
            prefers = answered(net, measured, pairs, bases, places, tick)
            base_value, source_value = measured["value"].to_numpy()[pairs].T
            must_flip = np.broadcast_to(base_value != source_value, prefers.shape)
            for frames, matrix in ((hits, prefers == own_answer(measured, pairs)), (differ, must_flip)):
                frames.append(pd.DataFrame(matrix.astype(float), columns=names))
            keys = [("", "", -1, "nothing"), *((place.hook, place.stream, place.layer, b) for place, b, _ in bases)]
            labels += [dict(zip(KEYS, (relation, *of_cell), strict=True)) for of_cell in keys]
            arrays |= {
                f"{basis}.{relation}.{place.hook}.{place.stream}": np.ascontiguousarray(U.cpu().numpy().T, np.float32)
                for place, basis, U in bases if U is not None
            }  # fmt: skip
        words.append(f"{relation} by {variable} ({differ[-len(nets)].iloc[0].mean():.3f} must flip)")
    tick(0)
    if not hits:
        raise InputError(f"{'; '.join(words)}: give --n more, --variable right, or another suite")
    table = pd.concat(units, ignore_index=True)
    left_out = len(data[Prompts].aligned.prompts) - n_prompts.sum()
    title = [
        f"{title_of(model)} on {data[Prompts].title()}", counted(len(table), "pair"),
        f"{options.variable} value of {', '.join(words)}", f"position: {options.position}",
        f"{counted(n_prompts[0], 'prompt')} for directions, {n_prompts[1]} measured, {left_out} left out",
    ]  # fmt: skip
    for basis, learns in trainings.items():
        if any(learns):
            title.append(f"{basis} had no held-out words at {sum(learns)} of {counted(len(learns), 'place')}")
    total, flips = (pd.concat(frames).to_numpy() for frames in (hits, differ))  # NaN for pairs of other relations
    sizes = {"accuracy": total >= 0, "flips": flips == 1, "stays": flips == 0}
    cells = pd.DataFrame(labels).assign(cell=range(len(labels)))
    blocks = {
        name: Observations(measure=HITS, cells=cells, units=table, total=total * size, size=size)
        for name, size in sizes.items()
    }
    contrasts, baseline, plain = defaultdict[str, list[Contrast]](list), 0, partial(Contrast, null=None)
    for i, of_cell in enumerate(labels):
        if of_cell["basis"] == "nothing":
            baseline = i
            continue
        for name in sizes:
            contrasts[name].append(plain(quantity=name, weights={i: 1.0}, labels=of_cell))
        contrasts["accuracy"] += [
            plain(quantity="nothing", weights={baseline: 1.0}, labels=of_cell),
            Contrast(quantity="above", weights={i: 1.0, baseline: -1.0}, labels=of_cell, family=of_cell["basis"]),
        ]
    return InstrumentData(blocks, contrasts, {"title": "; ".join(title)}, arrays)


def tables(options: Interchange, data: InstrumentData, estimates: Mapping[str, Estimates]) -> dict[str, Table]:
    frame, missing = joined([estimates[name] for name in ("accuracy", "flips", "stays")], KEYS, COLUMNS)
    return {"interchange": Table(frame, COLUMNS, missing, data.about["title"])}


share = partial(described, format=".3f", sd="pairs")
COLUMNS = (
    key("relation", "relation", "relation or category of the prompts"),
    key("hook", "hook", "where the state is put", shown=False),
    key("layer", "layer", "counted from 0", "layer", "d"),
    key("stream", "stream", f"the stream; {RESID}: a single one"),
    key("basis", "basis", "what of the source's state is put into the base"),
    *share("accuracy", "accuracy", "share of pairs", "pairs with the answer that the source's variable calls for"),
    *share("flips", "flips", "share of pairs with different variables", "accuracy where the answer must change"),
    *share("stays", "stays", "share of pairs with equal variables", "accuracy where the answer must stay"),
    *share("nothing", "doing nothing", "share of pairs", "accuracy of the unedited model", shown=False),
    *quantity("above", "accuracy − doing nothing", "share of pairs", "gain over the unedited model", format="+.3f",
              sd="pairs"),
    *counts("pairs of prompts", "independent pairs, or the fewest words of a kind"),
)  # fmt: skip
