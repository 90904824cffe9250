"""Passages in which two of the same kind compete for a pronoun, and only the event determines the referent.

They are two animals, people, girls, boys or things, so their kind does not help. The text tells what happened to each,
the cue before the pronoun determines the referent, and the next word repeats what the text told of it: "A fox who
hummed was rescued by a hen who skipped. Safe at last, it hummed again."

The functions have the form of `text.stories.cases`, with `held_out` "" for training, "combinations" for reserved
triples (antecedent, competitor, verb) or "words" for reserved words.
"""

from collections.abc import Callable
from random import Random

from streamscope.text.stories.cases import (
    BETWEEN_PEOPLE,
    EVENTS,
    Combination,
    Passage,
    after,
    between,
    is_held_out,
    label_of_two,
    ordered,
)
from streamscope.text.stories.lexicon import WORDS
from streamscope.text.stories.template import Env, capital, expand, pick
from streamscope.text.stories4.lexicon import ADJECTIVES, RESERVED, TEXT, TRAINING, Words

_TEXT = TEXT["passages"]
HELD_OUT = ("", "combinations", "words")
STATES = WORDS["states"]

ACTS = _TEXT["acts"]
TRANSFERS = _TEXT["transfers"]
TASK_PAIRS = frozenset(frozenset(pair.split("-")) for pair in _TEXT["task_pairs"])
"""Pairs of nouns in datasets/tasks/winograd, which no schema here combines."""


def vocabulary(held_out: str) -> Words:
    return RESERVED if held_out == "words" else TRAINING


def draw(category: str, held_out: str, propose: Callable[[], Combination]) -> Combination:
    """Draw a combination: any of reserved words, else one on the wanted side of `is_held_out`."""
    while True:
        combination = propose()
        if held_out == "words" or is_held_out(category, combination) == (held_out == "combinations"):
            return combination


def two(rng: Random, options: tuple[str, ...]) -> tuple[str, str]:
    """Draw two different entries."""
    a, b = int(rng.random() * len(options)), int(rng.random() * (len(options) - 1))
    return options[a], options[b + (b >= a)]


def _cast(rng: Random, held_out: str, kinds: tuple[str, ...]) -> tuple[tuple[str, ...], str, str]:
    """(words to choose from, their article, their pronoun)."""
    kind = pick(rng, kinds)
    chosen: tuple[str, ...] = getattr(vocabulary(held_out), kind)
    if kind in ("girls", "boys"):
        return chosen, "", "she" if kind == "girls" else "he"
    return chosen, "a ", pick(rng, ("he", "she")) if kind == "people" else "it"


def _who(key: str, word: str, article: str, act: str) -> str:
    """ "a [a fox] who hummed", "[a Anna], who hummed,"."""
    marked = f"{article}[{key} {word}]"
    if not act:
        return marked
    return f"{marked} who {act}" if article else f"{marked}, who {act},"


def _finish(
    rng: Random, env: Env, k: str, pair: bool, story: str, cue: str, pronoun: str, then: str, category: str,
    relation: str, combination: Combination, article: str, frame: str,
) -> Passage:  # fmt: skip
    """Complete a passage: the facts, perhaps other sentences, cue and pronoun, and the rest."""
    target = combination[0]
    env = {**env, "the": f"the {target}" if article else target}
    text = story.replace(",.", ".") + between(rng, BETWEEN_PEOPLE, env, pair)
    text += f" [u{k} {cue}], [p{k} {pronoun}] {then}."
    text += after(rng, _TEXT["after"], env, pair, bool(article))
    return text, (label_of_two(category, relation, k, combination),), frame


def _acts(rng: Random, acts: tuple[str, ...], always: bool = False) -> tuple[str, str, str]:
    """(act of the referent, act of the other, words after it), or "" for all."""
    if not always and rng.random() < 0.3:
        return "", "", ""
    one, other = two(rng, acts)
    return one, other, expand(pick(rng, _TEXT["tails"]), {}, rng)


def event(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """An event between two, in active or passive voice."""
    options, article, pronoun = _cast(rng, held_out, ("animals", "people", "girls", "boys"))
    is_agent = rng.random() < 0.5

    def propose() -> Combination:
        return (*two(rng, options), pick(rng, tuple(EVENTS)))

    target, other, verb = combination = draw("event", held_out, propose)
    past, participle, agents, patients, _, _, then_agent, then_patient = EVENTS[verb]
    act, other_act, tail = _acts(rng, ACTS)
    people = ordered(first, _who("a" + k, target, article, act), _who("b" + k, other, article, other_act))
    does = past if first == is_agent else f"was {participle} by"
    story = f"{people[0]} {does} {people[1]}."
    cue = pick(rng, agents if is_agent else patients)
    then = f"{act} {tail}" if act else then_agent if is_agent else then_patient
    return _finish(rng, env, k, pair, story, cue, pronoun, then, "event", "agent" if is_agent else "patient",
                   combination, article, "past")  # fmt: skip


def state(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """Two in different states; the cue fits one of them."""
    options, article, pronoun = _cast(rng, held_out, ("things", "things", "animals", "people", "girls", "boys"))
    things = options is vocabulary(held_out).things
    told_of, acts = (_TEXT["thing_conditions"], _TEXT["thing_acts"]) if things else (_TEXT["conditions"], ACTS)
    conditions = tuple(told_of)

    def propose() -> Combination:
        return (*two(rng, options), pick(rng, conditions))

    target, other, verb = combination = draw("state", held_out, propose)
    another = pick(rng, conditions)
    while another == verb:
        another = pick(rng, conditions)
    act, other_act, tail = _acts(rng, acts, always=True)
    join = ", and " if not article or rng.random() < 0.5 else ". "
    who = [_who("a" + k, target, article, act), _who("b" + k, other, article, other_act)]
    if things:
        who = [one.replace(" who ", " that ") for one in who]
    clauses = ordered(first, f"{who[0]} was {verb}", f"{who[1]} was {another}")
    story = clauses[0] + join + (capital(clauses[1]) if join == ". " else clauses[1]) + "."
    return _finish(rng, env, k, pair, story, pick(rng, told_of[verb]), pronoun, f"{act} {tail}", "state",
                   "things" if things else "living", combination, article, "past")  # fmt: skip


def transfer(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """Something changed hands; the cue shows whether the referent has it."""
    options, article, pronoun = _cast(rng, held_out, ("people", "girls", "boys"))
    is_giver = rng.random() < 0.5
    goods = vocabulary(held_out).things if rng.random() < 0.7 else vocabulary(held_out).foods
    verbs = tuple(v for v, (_, giver_first) in TRANSFERS.items() if giver_first == (first == is_giver))
    place = rng.random()

    def propose() -> Combination:
        # the verb depends on the order, so the reserved triple names the referent's role instead
        return (*two(rng, options), "giver" if is_giver else "taker")

    combination = draw("transfer", held_out, propose)
    thing, verb = pick(rng, goods), verbs[int(place * len(verbs))]
    act, other_act, tail = _acts(rng, ACTS, always=True)
    one, other = combination[:2]
    people = ordered(first, _who("a" + k, one, article, act), _who("b" + k, other, article, other_act))
    story = f"{people[0]} {verb} a {thing} {TRANSFERS[verb][0]} {people[1]}."
    cue = expand(pick(rng, _TEXT["giver"] if is_giver else _TEXT["taker"]), {"t": thing}, rng)
    return _finish(rng, env, k, pair, story, cue, pronoun, f"{act} {tail}", "transfer", combination[2],
                   combination, article, "past")  # fmt: skip


def winograd(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """One word swaps the referent: "because it was too big", "because it was too small". The cue follows the
    pronoun."""
    did, how, of_first, of_second, *kinds = pick(rng, _TEXT["schemas"])
    words = vocabulary(held_out)
    one_of, other_of = (tuple(WORDS["containers"]) if kind == "boxes" else getattr(words, kind) for kind in kinds)
    adjective = pick(rng, of_first if first else of_second)

    def propose() -> Combination:
        while True:
            a, b = pick(rng, one_of), pick(rng, other_of)
            if a != b and frozenset((a, b)) not in TASK_PAIRS:
                return (a, b, adjective) if first else (b, a, adjective)

    combination = draw("winograd", held_out, propose)
    keys = ("a" + k, "b" + k) if first else ("b" + k, "a" + k)
    names = combination[:2] if first else combination[1::-1]
    pronoun = pick(rng, ("he", "she")) if kinds[0] == "people" else "it"
    text = f"the [{keys[0]} {names[0]}] {did} the [{keys[1]} {names[1]}]"
    text += f" because [p{k} {pronoun}] was [u{k} {how} {adjective}]. "
    text += expand(pick(rng, _TEXT["retell"][kinds[0]]), {"how": how, "adj": adjective, "n": combination[0]}, rng)
    return text, (label_of_two("winograd", "first" if first else "second", k, combination),), "tale"


def spelled(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """A word that returns in the same spelling, as a capitalised name or as a plain word."""
    found = vocabulary(held_out)
    things = (found.animals, found.things, found.foods)
    n, m = two(rng, pick(rng, things))
    name = capital(pick(rng, ADJECTIVES) if not held_out and rng.random() < 0.4 else n)
    env = {**env, "a": pick(rng, found.animals), "N": name, "n": n, "m": m, "adj": pick(rng, ADJECTIVES)}
    env |= {"place": pick(rng, TRAINING.places), "title": pick(rng, _TEXT["titles"])}
    env["x"] = expand(pick(rng, _TEXT["aside"]), env, rng)
    return expand(pick(rng, _TEXT["named"] if first else _TEXT["unnamed"]), env, rng), (), "tale"


_FORMS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}


def person(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """He, she and their forms, with one person or one of each gender."""
    found = vocabulary(held_out)
    sexes = ("she", "he") if rng.random() < 0.5 else ("he", "she")

    def name(sex: str) -> str:
        return (
            pick(rng, _TEXT["gendered"][sex])
            if rng.random() < 0.3
            else pick(rng, found.girls if sex == "she" else found.boys)
        )

    names_and_state = draw("gender", held_out, lambda: (name(sexes[0]), name(sexes[1]), pick(rng, tuple(STATES))))
    names, state = names_and_state[:2], names_and_state[2]
    s, o, p = _FORMS[sexes[0]]
    state2 = pick(rng, tuple(STATES))
    while STATES[state2][0] == STATES[state][0]:
        state2 = pick(rng, tuple(STATES))
    t, u = two(rng, found.things)
    env = {**env, "s": s, "o": o, "p": p, "pp": p, "state": state, "state2": state2, "t": t, "u": u, "k": k,
           "animal": pick(rng, found.animals), "n": names[0], "m": names[1]}  # fmt: skip
    env["told"] = expand(pick(rng, STATES[state][1]), env, rng)
    if rng.random() < 0.5:
        return _capitals(expand(pick(rng, _TEXT["one_person"]), env, rng)), (), "state"
    heads = [name.removeprefix("the ") for name in names]
    env |= {x: name.replace(head, f"[{key}{k} {head}]")
            for x, key, name, head in zip("nm", "ab", names, heads, strict=True)}  # fmt: skip
    label = label_of_two("gender", s, k, names_and_state, cue="p")
    return _capitals(expand(pick(rng, _TEXT["two_persons"]), env, rng)), (label,), "state"


def _capitals(text: str) -> str:
    """Capitalise sentences that begin with "the"."""
    return text.replace(". the ", ". The ")


SAME_KIND = {"event": event, "state": state, "transfer": transfer}
OTHERS = {"winograd": winograd, "person": person, "spelled": spelled}
