"""Labelled passages about owners and possessions, gender and number (see `stories.cases`)."""

from random import Random

from streamscope.text.stories.cases import (
    AFTER_PERSON,
    AFTER_THING,
    BETWEEN_PEOPLE,
    BETWEEN_PLURAL,
    LOOKS,
    QUALITIES,
    Combination,
    Passage,
    actor,
    after,
    after_animal,
    between,
    draw,
    label_of_two,
    noun,
    ordered,
    others_like,
)
from streamscope.text.stories.lexicon import TEXT, WISHES, WORDS
from streamscope.text.stories.template import Env, Label, capital, expand, pick

_TEXT = TEXT["people"]


def possessor_possessed(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """Owner and owned: animacy distinguishes a person or an animal from a thing."""
    is_owner = rng.random() < 0.5
    style = 0.0 if pair else rng.random()
    if style < 0.45:
        return _animal_and_thing(rng, env, k, held_out, first, pair, is_owner)
    env = actor(rng, env)
    things = WORDS["things"]
    double = style > 0.7

    def propose() -> Combination:
        thing = pick(rng, tuple(things))
        verb = (
            pick(rng, tuple(_TEXT["care"]))
            if double
            else pick(rng, _TEXT["person_acts"])
            if is_owner
            else things[thing][1]
        )
        return (env["s"], thing, verb) if double or is_owner else (thing, env["s"], verb)

    combination = draw("possessor-possessed", held_out, propose, both_ways=double)
    owner, verb = env["s"], combination[2]
    thing = combination[1] if combination[0] == owner else combination[0]
    keys = ("a" + k, "b" + k)
    env["s"], env["m"] = f"[a{k} {owner}]", owner
    if double:  # "Anna's doll was dirty, so she washed it."
        owned_first = first != is_owner
        owned = f"[b{k} {thing}]"
        subject = f"the {owned} that belonged to {env['s']}" if owned_first else f"{env['s']}'s {owned}"
        cares = _TEXT["care"][verb]
        text = f"{subject} was {verb}, so [p{k} {env['ss']}] {cares} [q{k} it]."
        env.update(s=owner, n=thing)
        text += after(rng, AFTER_THING[:4], env, pair)
        swapped = (combination[1], combination[0], verb)
        she = Label("possessor-possessed", "possessor", "p" + k, keys[0], keys, "p" + k, combination)
        it = Label("possessor-possessed", "possessed", "q" + k, keys[1], keys, "q" + k, swapped)
        return text, (she, it), "here"
    owner_first = first == is_owner
    env["x1" if not owner_first else "x2"] = noun(rng, keys[1], thing, QUALITIES, pair)
    text = expand(pick(rng, _TEXT["owner_first"] if owner_first else _TEXT["owned_first"]), env, rng)
    env.update(s=owner, n=thing)
    text += between(rng, BETWEEN_PLURAL, env, pair)
    pronoun = capital(env["ss"]) if is_owner else "It"
    text += f" [p{k} {pronoun}] {expand(verb, env, rng)}."
    if is_owner:
        text += after(rng, AFTER_PERSON, {**env, "n": owner, "N": owner}, pair)
    else:
        text += after(rng, AFTER_THING[:4], env, pair)
    relation, antecedent = ("possessor", keys[0]) if is_owner else ("possessed", keys[1])
    return text, (Label("possessor-possessed", relation, "p" + k, antecedent, keys, "p" + k, combination),), "here"


def _animal_and_thing(
    rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool, is_owner: bool
) -> Passage:
    """Both are "it"; the words before the pronoun are only true of one of them."""
    things = WORDS["things"]

    def propose() -> Combination:
        animal, thing = pick(rng, _TEXT["owners"]), pick(rng, tuple(things))
        return (animal, thing, pick(rng, _TEXT["animal_moods"])) if is_owner else (thing, animal, things[thing][0])

    combination = draw("possessor-possessed", held_out, propose)
    target, other, cue = combination
    env = actor(rng, env)
    adjectives = (LOOKS, QUALITIES) if is_owner else (QUALITIES, LOOKS)
    nouns = ordered(
        first, noun(rng, "a" + k, target, adjectives[0], pair), noun(rng, "b" + k, other, adjectives[1], pair)
    )
    env.update(x1=nouns[0], x2=nouns[1], n=target, m=other)
    frame = "tale"
    if pair or rng.random() < 0.4:
        frame = "here"
        text = expand(pick(rng, _TEXT["animal_and_thing"]), env, rng)
    elif first == is_owner:
        text = expand("<{x1} had {x2}|{x1} loved to play with {x2}|{x1} sat beside {x2}>.", env, rng)
    else:
        text = expand("<{x1} belonged to {x2}|{x1} was the treasure of {x2}|{x1} lay beside {x2}>.", env, rng)
    text += between(rng, BETWEEN_PLURAL, env, pair)
    if is_owner:
        env["does"] = WORDS["animals"][target][1]
        then = pick(rng, _TEXT["animal_calm"]) if pair or rng.random() < 0.3 else env["does"]
    else:
        then = things[target][1]
    text += f" [u{k} {cue}], [p{k} it] {then}."
    text += after(rng, after_animal(text, env) if is_owner else AFTER_THING[:4], env, pair)
    relation = "possessor" if is_owner else "possessed"
    return text, (label_of_two("possessor-possessed", relation, k, combination),), frame


def gender(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """He and she, with one child of each; a fact about the child returns after the pronoun."""
    is_hero = rng.random() < 0.5
    a, b = ("h", "f") if is_hero else ("f", "h")
    style = 0.0 if pair else rng.random()
    wish, options, before, then = pick(rng, WISHES)
    states = WORDS["states"]

    def propose() -> Combination:
        if style < 0.3:
            return (env[a], env[b], pick(rng, _TEXT["person_acts"]))
        return (env[a], env[b], f"{wish} {pick(rng, options)}" if style > 0.7 else pick(rng, tuple(states)))

    combination = draw("gender", held_out, propose)
    verb = combination[2]
    keys: tuple[str, ...] = ("a" + k, "b" + k)
    people = [f"[a{k} {env[a]}]", f"[b{k} {env[b]}]"]
    env, frame = {**env, "n": env[a], "N": env[a]}, "here" if style < 0.3 else "state"
    if style < 0.3:
        x1, x2 = ordered(first, *people)
        env.update(x1=x1, x2=x2)
        intros = _TEXT["two_people"] if pair or rng.random() < 0.4 else _TEXT["two_people_apart"]
        text, fact = expand(pick(rng, intros), env, rng), verb
    else:
        third = rng.random() < 0.12
        if style > 0.7:
            option = verb.split(" ", 1)[1]
            facts = [before.format(o=option)]
            others = rng.sample([o for o in options if o != option], 2)
            facts += [before.format(o=o) for o in others]
            fact = then.format(o=option)
        else:
            facts, fact = [f"was {verb}"], pick(rng, states[verb][1])
            used = {states[verb][0]}
            while len(facts) < 3:
                state = pick(rng, tuple(states))
                if states[state][0] not in used:
                    used.add(states[state][0])
                    facts.append(f"was {state}")
        clauses = ordered(first, f"{people[0]} {facts[0]}", f"{people[1]} {facts[1]}")
        if third:  # a second child of the competitor's gender
            children = others_like(env[b + "s"], env)
            clauses.insert(int(rng.random() * 3), f"[c{k} {pick(rng, children)}] {facts[2]}")
            keys = (*keys, "c" + k)
            text = f"{clauses[0]}, {clauses[1]}, and {clauses[2]}."
        else:
            text = pick(rng, _TEXT["joints"]).join(clauses) + "."
    text += between(rng, BETWEEN_PEOPLE, env, pair)
    text += f" [p{k} {capital(env[a + 's'])}] {expand(fact, env, rng)}." + after(rng, AFTER_PERSON, env, pair, False)
    return text, (Label("gender", env[a + "s"], "p" + k, "a" + k, keys, "p" + k, combination),), frame


def number(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """A group and a single one, each in its own state, so that "they" cannot mean all of them."""
    is_group = rng.random() < 0.5
    animals = rng.random() < 0.5
    states = WORDS["animal_states" if animals else "states"]
    kinds = tuple(WORDS["animals"])

    def propose() -> Combination:
        if animals:
            one, many = rng.sample(kinds, 2)
            group, single = WORDS["animals"][many][0], one
        else:
            group, single = pick(rng, WORDS["groups"]), pick(rng, tuple(WORDS["singles"]))
        state = pick(rng, tuple(states))
        return (group, single, state) if is_group else (single, group, state)

    combination = draw("number", held_out, propose)
    target, other, state = combination
    group, single = (target, other) if is_group else (other, target)
    other_state = pick(rng, [s for s in states if states[s][0] != states[state][0]])
    group_key, single_key = ("a" + k, "b" + k) if is_group else ("b" + k, "a" + k)
    the_group = f"the [{group_key} {group}]"
    head = single.removeprefix("the ")
    the_single = f"the [{single_key} {head}]" if animals or head != single else f"[{single_key} {single}]"
    clauses = {True: f"{the_group} were ", False: f"{the_single} was "}
    sentences = ordered(first, clauses[is_group] + state, clauses[not is_group] + other_state)
    text = ""
    if animals and rng.random() < 0.4:
        pair_of = [f"<some|two|three> [{group_key} {group}]", f"a [{single_key} {single}]"]
        if rng.random() < 0.5:
            pair_of.reverse()
        text = expand(f"there <lived|were once> {pair_of[0]} and {pair_of[1]}. ", env, rng)
    joint = pick(rng, _TEXT["joints"])
    text += capital(sentences[0]) if text else sentences[0]
    text += joint + (capital(sentences[1]) if joint == ". " else sentences[1]) + "."
    text += between(rng, BETWEEN_PEOPLE, env, pair)
    pronoun = "They" if is_group else WORDS["singles"].get(single, "It")
    text += f" [p{k} {pronoun}] {expand(pick(rng, states[state][1]), env, rng)}."
    name = target if target in ("Grandma", "Grandpa", "Mom", "Dad") else "the " + target.removeprefix("the ")
    follow = AFTER_PERSON[:1] if is_group or animals else AFTER_PERSON
    text += after(rng, follow, {**env, "n": name, "N": name}, pair)
    label = label_of_two("number", "group" if is_group else "single", k, combination, cue="p")
    return text, (label,), "tale" if animals else "play"
