"""Interchange: one direction of a stream that decides, plain passes with another prompt's state, what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformer_lens.tools.analysis.interchange import SubspaceInterchange, fit_das, intervened_logits

from streamscope.instruments.data import Prompts
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts.alignment import OpenPrompts, align
from streamscope.instruments.prompts.suite import Prompt, Suite
from streamscope.interventions.interchange import Interchange, measure
from streamscope.interventions.interchange.measure import answered, apart, cases_of, draw_pairs, margins, states_at
from streamscope.models import build, load
from streamscope.models.hooks import pad
from streamscope.probes.stream_states import Place, places_of
from tests.interventions.passes import captured, under
from tests.tiny import model_of, refused, some

NAMES = ["Mia", "Lily", "Dora", "Anna", "Ella", "Lucy", "Rose", "Sara", "Amy", "Zoe", "Eva", "Ruth",
         "Tom", "Tim", "Ben", "Sam", "Max", "Leo", "Jack", "Finn", "Paul", "Mark", "Dan", "Luke"]  # fmt: skip
WORDS = {"key": (" the", " a"), "box": (" a", " the")}
"""The last word of a prompt, with its answer and its foil."""
CONTEXT, TOKEN = "blocks.0.hook_context_post", "blocks.0.hook_token_post"


def suite() -> Suite:
    """Prompts that end in one of two words, which decides the answer; every name has both."""
    prompts = []
    for name in NAMES:
        for word, (answer, foil) in WORDS.items():
            text, other = (f"{name} saw a {noun}" for noun in (word, "box" if word == "key" else "key"))
            end = (len(text) - 3, len(text))
            prompts.append(Prompt(
                id=f"{name}-{word}", text=text, corrupt=other, roles={"query": end}, category="c",
                coherent=answer, incoherent=foil, answers=(answer,), foils=(foil,), words={"name": name}, cluster=name,
            ))  # fmt: skip
    return Suite("planted", tuple(prompts), "by hand")


def opened(model: Any) -> OpenPrompts:
    return OpenPrompts(align(suite(), model.tokenizer, model.config.n_ctx), model.tokenizer, suite())


def planted() -> Any:
    """The FFN of layer 0 writes the direction u into the context after a key, −u after a box. Only u reaches the
    answer: attention and the other FFN write nothing, the head reads nothing else of these words' embeddings."""
    tokenizer = load("stories/lfa").tokenizer
    assert tokenizer is not None
    changes: dict[str, Any] = {"mlp.activation": "relu", "readout.tied": False}
    model = build("lfa", "tiny", tokenizer=tokenizer, d_vocab=tokenizer.d_vocab, **changes).eval()
    d = model.config.d_model
    u, e = torch.zeros(d), torch.zeros(d)
    u[0], u[1], e[d // 2], e[d // 2 + 1] = 1.0, -1.0, 1.0, -1.0
    key, box = (tokenizer.encode(f"Mia saw a {word}")[-1] for word in WORDS)
    after = [tokenizer.encode(f"Mia saw a key{answer}")[-1] for answer in WORDS["key"]]
    with torch.no_grad():
        for block in model.blocks:
            for parameter in (*block.attn.o.parameters(), *block.mlp.parameters()):
                parameter.zero_()
        model.embed.weight.mul_(0.1)
        for weight in (model.embed.weight, model.head):
            weight[:, [0, 1, d // 2, d // 2 + 1]] = 0.0
        model.embed.weight[[key, box]] += torch.stack([e, -e])
        mlp = model.blocks[0].mlp
        mlp.up.weight[:2], mlp.down.weight[:, :2] = torch.stack([e, -e]), torch.stack([u, -u], 1)
        model.head[after] = torch.stack([5 * u, -5 * u])
    return model


def open_cases(model: Any, data: Any = None, **options: Any) -> pd.DataFrame:
    """The prompts of this file, or the only relation of other data, as cases."""
    (cases,) = cases_of(Interchange(**options), open_data(data, model) if data else opened(model)).values()
    return cases


def test_a_planted_direction_decides() -> None:
    model = planted()
    how = Interchange(
        hooks=(CONTEXT, TOKEN), basis=("whole", "means", "das", "random", "untrained"), pairs=200, steps=20
    )
    result = how.measure(model, opened(model))
    table = result.table().frame.set_index(["stream", "basis"])
    for basis in ("whole", "means", "das"):
        assert table.loc[("context", basis), ["accuracy", "flips", "stays"]].tolist() == [1.0, 1.0, 1.0]
        token = table.loc[("token", basis)]
        assert token["accuracy"] == token["nothing"] and token["flips"] == 0.0 and token["stays"] == 1.0
    assert table.loc[("context", "random"), "flips"] < 0.3
    assert 0.4 < table.loc[("context", "whole"), "nothing"] < 0.6
    u = result.arrays[f"means.c.{CONTEXT}.context"][0]
    assert abs(abs(u[0] - u[1]) / 2**0.5 - 1) < 1e-3, "the direction is u"


def test_das_finds_a_direction_from_a_start_that_is_none() -> None:
    model, place, rng = planted(), Place(CONTEXT, "context", 0), np.random.default_rng(0)
    cases = measure.with_values("chosen", model, open_cases(model))
    states = states_at(model, cases, [place])[place]
    start = torch.linalg.qr(torch.as_tensor(rng.standard_normal((states.shape[1], 1))).float())[0]
    found, _ = measure.das(model, cases, place, states, start, 400, rng)
    pairs = draw_pairs(range(len(cases)), 200, rng)
    prefers = answered(model, cases, pairs, [(place, "random", start), (place, "das", found)], [place])
    of_start, of_das = (prefers == measure.own_answer(cases, pairs)).mean(1)[1:]
    assert of_start < 0.7 and of_das == 1.0


@pytest.mark.parametrize("preset", some(("std-t", "lfa", "dst-kron", "pls", "kromcanon"), ("lfa", "kromcanon")))
def test_a_whole_state_equals_a_plain_pass_with_it(preset: str) -> None:
    """Every base prompt alone, in one pass from its tokens, with the source's state written in by hand."""
    model = model_of(preset, init_std=0.2).eval()
    cases = open_cases(model, variable="right")
    place = places_of(model, ())[-1 if preset == "std-t" else 0]
    pairs = draw_pairs(range(len(cases)), 12, np.random.default_rng(0))
    states = states_at(model, cases, [place])[place]
    U = measure.first_basis(states, cases.value.to_numpy(), 2, np.random.default_rng(1))
    prefers = answered(model, cases, pairs, [(place, "whole", None), (place, "das", U)], [place])
    for k, (base, source) in enumerate(pairs):
        tokens, other = (torch.tensor([cases.tokens[i]]) for i in (base, source))
        own, new = (place.of(captured(model, row, place.hook)[place.hook])[0, -1] for row in (tokens, other))
        for cell, change in enumerate((0 * own, new - own, U @ (U.T @ (new - own)))):

            def write(x: torch.Tensor, hook: Any, change: torch.Tensor = change) -> torch.Tensor:
                x = x.clone()
                place.of(x)[0, -1] += change
                return x

            logits = under(model, tokens, {place.hook: write})
            assert prefers[cell, k] == (float(margins(logits[:, -1], [cases.answers[base]])) > 0)


def test_prompts_for_directions_share_no_word_with_measured_ones() -> None:
    """About .35 of each value are for directions, also where few words make many prompts, as in agreement and ioi."""
    model, how = load("stories/lfa"), Interchange()
    groups = cases_of(how, open_data(Prompts("stories"), model))
    for relation, cases in groups.items():
        assert cases.variable[0] == ("order" if relation == "state" else "kind of noun")
    for suite in ("agreement", "ioi"):
        groups |= cases_of(how, open_data(Prompts(suite), model))
    for relation, cases in groups.items():
        directions, measured = (cases.iloc[rows].reset_index(drop=True) for rows in apart(cases, 0))
        assert not set().union(*directions.words) & set().union(*measured.words)
        for value in (0, 1):
            sizes = [(part.right == value).sum() for part in (directions, measured)]
            assert 0.25 < sizes[0] / sum(sizes) < 0.45, (relation, sizes)
            assert sum(sizes) > (cases.right == value).sum() / (3 if relation == "ioi" else 2)


def test_a_corrupted_text_is_not_run_so_its_length_does_not_matter() -> None:
    """An answer and a foil that begin with one token leave a prompt out."""
    model, prompts = planted(), suite().prompts
    changes: list[dict[str, Any]] = [
        {"corrupt": None},
        {"corrupt": f"{prompts[0].corrupt} that was very old"},
        {"answers": (" the same",), "foils": (" the other",)},
    ]
    for change, kept in zip(changes, (1, 1, 0), strict=True):
        changed = Suite("planted", (replace(prompts[0], **change), *prompts[3:]), "by hand")
        of = OpenPrompts(align(changed, model.tokenizer, model.config.n_ctx), model.tokenizer, changed)
        assert len(cases_of(Interchange(), of)["c"]) == len(prompts) - 3 + kept


def test_the_title_counts_prompts_and_trainings_without_held_out_words(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how, data = load("stories/lfa"), Interchange(basis=("means",), pairs=20), Prompts("ioi-abc")
    cases = open_cases(model, data)
    directions, measured = apart(cases, how.seed)
    left_out = len(open_data(data, model).aligned.prompts) - len(directions) - len(measured)
    assert left_out > len(cases) - len(directions) - len(measured) > 0
    counts = f"{len(directions)} prompts for directions, {len(measured)} measured, {left_out} left out"
    title = how.measure(model, data).table().title
    assert counts in title and "held-out words" not in title
    first = len(open_cases(planted()))
    monkeypatch.setattr(measure, "apart", lambda cases, seed: apart(cases, seed) if len(cases) == first
                        else ([], list(range(len(cases)))))  # fmt: skip
    how = Interchange(hooks=(CONTEXT, TOKEN), basis=("means", "das"), pairs=20, steps=2)
    assert "das had no held-out words at 2 of 2 places" in how.measure(planted(), opened(planted())).table().title


def test_a_trained_basis_is_judged_on_words_that_it_was_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, used = load("stories/lfa"), list[set[str]]()
    cases = cases_of(Interchange(), open_data(Prompts("stories"), model))["gender"]
    place = places_of(model, ["blocks.3.hook_context_post"])[0]

    def own_answer(cases: pd.DataFrame, pairs: np.ndarray) -> np.ndarray:
        used.append(set().union(*(cases.words[i] for i in pairs.ravel())))
        return np.ones(len(pairs), bool)

    monkeypatch.setattr(measure, "own_answer", own_answer)
    start, states = torch.eye(model.cfg.d_model)[:, :1], states_at(model, cases, [place])[place]
    measure.das(model, cases, place, states, start, 1, np.random.default_rng(0))
    held, trained, again = used
    assert held and not held & trained and again == held and len(trained) > len(held)


def test_a_coin_says_nothing_of_the_value() -> None:
    value = np.array([0] * 6 + [1] * 9)
    coins = [measure.coin_of(value, np.random.default_rng(seed)) for seed in range(20)]
    assert {(int(coin[:6].sum()), int(coin[6:].sum())) for coin in coins} == {(3, 4)}
    assert len({tuple(coin) for coin in coins}) > 15


def test_the_answer_follows_the_value_of_the_source_where_the_model_is_wrong() -> None:
    cases = open_cases(planted())[:3].assign(value=[0, 1, 1], right=[1, 1, 0])
    assert measure.own_answer(cases, np.array([[0, 1], [1, 0], [2, 0], [0, 2]])).tolist() == [True, False, True, True]


def test_margins_are_log_odds_of_lists_of_any_length() -> None:
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0)) - 5
    answers = [((1, 2, 3), (4,)), ((5,), (6, 7, 8))]
    expected = [row[list(right)].logsumexp(0) - row[list(wrong)].logsumexp(0)
                for row, (right, wrong) in zip(logits, answers, strict=True)]  # fmt: skip
    torch.testing.assert_close(margins(logits, answers), torch.stack(expected))


def test_the_state_is_put_where_the_option_says() -> None:
    model, bundled, suite = planted(), load("stories/lfa"), Prompts("stories", n=60)
    aligned, prompts = opened(model).aligned, open_data(suite, bundled).aligned
    for position, wanted in (("last", [len(ids) - 1 for ids in aligned.tokens]), ("query", aligned.queries)):
        assert open_cases(model, position=position).position.tolist() == wanted
    at = {tuple(ids): roles["target"][-1] for ids, roles in zip(prompts.tokens, prompts.positions, strict=True)}
    for cases in cases_of(Interchange(position="target"), open_data(suite, bundled)).values():
        assert cases.position.tolist() == [at[tuple(ids)] for ids in cases.tokens]


def test_the_value_is_that_of_the_models_own_answer_or_the_right_one() -> None:
    model = planted()
    with torch.no_grad():
        model.head.neg_()  # it answers the other way round
    cases = open_cases(model)
    assert (measure.with_values("chosen", model, cases).value == 1 - cases.right).all()
    assert (measure.with_values("right", model, cases).value == cases.right).all()


def test_kinds_are_the_two_sides_of_the_nouns_that_stand_together() -> None:
    """Where there is one way to divide them: two parts have four, and of three in a ring two would be alike."""

    def prompt(target: str, other: str) -> Prompt:
        text = f"A {target} and a {other}. It"
        start = len(f"A {target} and a ")
        at = {"target": (2, 2 + len(target)), "distractor": (start, start + len(other))}
        return Prompt(id=text, text=text, roles={**at, "query": (len(text) - 2, len(text))}, category="c")

    for pairs, expected in (
        ("key box, box saw, saw jar, jar key", [0, 1, 0, 1]),
        ("key box, box saw, saw jar, jar key, key saw", None),
        ("axe box, saw jar, jar saw", None),
        ("axe box, saw jar, box saw", [0, 0, 1]),
    ):
        prompts = [prompt(*pair.split()) for pair in pairs.split(", ")]
        variable, value = measure.variable_of(prompts, [((i,), (9,)) for i in range(len(prompts))])
        assert (variable, value.tolist() if expected else None) == ("kind of noun" if expected else "", expected)


def test_the_bar_goes_on_while_pairs_are_measured() -> None:
    """Directions are found at once, the passes of 1,000 pairs take the time: a tick a batch of 64."""
    model, ticks = planted(), []
    cases, places = measure.with_values("chosen", model, open_cases(model)), places_of(model, [CONTEXT, TOKEN])
    pairs = draw_pairs(range(len(cases)), 200, np.random.default_rng(0))
    answered(model, cases, pairs, [(place, "whole", None) for place in places], places, ticks.append)
    assert ticks == [1, 1, 1]  # 200 pairs


def test_what_has_no_variable_and_what_is_no_stream_is_refused() -> None:
    model = load("stories/lfa")
    streams = "give hooks as blocks.0.hook_token_post or blocks.0.hook_context_post"
    no_stream = f"blocks.0.hook_attn_out is no stream that can be changed: {streams}"
    for options, suite, line in (
        ({}, "induction", "interchange needs a variable of two values"),
        ({"position": "target"}, "letter-case", "has no target: give --position last"),
        ({"hooks": ("blocks.0.hook_attn_out",)}, "stories", no_stream),
    ):
        with refused(line):
            Interchange(**options).measure(model, Prompts(suite, n=60))
    with refused(f"blocks.*.hook_attn_out: no stream that can be changed; {streams}"):
        places_of(model, ["blocks.*.hook_attn_out"])
    hooks = [place.hook for place in places_of(model, ["blocks.3.*_post"])]
    assert sorted(hooks) == ["blocks.3.hook_context_post", "blocks.3.hook_token_post"]


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["tool-container", "agent-patient", "gender"])
def test_das_is_as_good_as_that_of_transformer_lens(relation: str) -> None:
    """`fit_das` with its defaults, as many steps of as many pairs; on the same pairs of words that neither has seen."""
    model, how = load("stories/lfa"), Interchange()
    cases = cases_of(how, open_data(Prompts("stories"), model))[relation]
    directions, measured = (
        measure.with_values("chosen", model, cases.iloc[rows].reset_index(drop=True)) for rows in apart(cases, 0)
    )
    place = places_of(model, ["blocks.3.hook_context_post"])[0]
    rng = np.random.default_rng(0)
    pairs = draw_pairs(range(len(measured.tokens)), 1000, rng)
    states = states_at(model, directions, [place])[place]
    start = measure.first_basis(states, directions.value.to_numpy(), 1, rng)
    U, _ = measure.das(model, directions, place, states, start, how.steps, rng)
    expected = measure.own_answer(measured, pairs)
    ours = (answered(model, measured, pairs, [(place, "das", U)], [place])[1] == expected).mean()

    def run_of(part: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor, Any]:
        tokens = pad(part.tokens)
        index = {tuple(row): i for i, row in enumerate(tokens.tolist())}

        def task_logits(rows: torch.Tensor) -> torch.Tensor:
            at = [index[tuple(row)] for row in rows.tolist()]
            logits = model(rows)[torch.arange(len(at)), [len(part.tokens[i]) - 1 for i in at]]
            m = margins(logits, [part.answers[i] for i in at])
            return torch.stack([m, torch.zeros_like(m)], 1)

        return tokens, torch.as_tensor(part.position), task_logits

    tokens, position, task_logits = run_of(directions)
    base, source = draw_pairs(range(len(tokens)), 50 * 64, rng).T
    targets = torch.as_tensor(~measure.own_answer(directions, np.stack([base, source], 1)), dtype=torch.long)
    fitted = fit_das(
        model, place.hook, tokens[base], tokens[source], targets, task_logits, rank=1, batch_size=64,
        base_positions=position[base], source_positions=position[source], epochs=max(1, how.steps * 64 // len(base)),
    )  # fmt: skip
    tokens, position, task_logits = run_of(measured)
    logits = intervened_logits(
        model, place.hook, SubspaceInterchange(fitted.subspace), tokens[pairs[:, 0]],
        states_at(model, measured, [place])[place][pairs[:, 1]], task_logits, positions=position[pairs[:, 0]],
    )  # fmt: skip
    assert ours > ((logits.argmax(1) == 0).numpy() == expected).mean() - 0.03
