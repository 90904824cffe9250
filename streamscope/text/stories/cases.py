"""Labelled passages: a few sentences in which the meaning determines the antecedent of a pronoun.

Every passage independently draws its antecedent's role, the order of the candidates (`first`: antecedent mentioned
first), the number of sentences in between and the number of distractors. So the most recent candidate and the first one
are each right half of the time.

A passage is a function (rng, env, key, held_out, first, pair) -> (marked text, labels, frame), or None if the wanted
combination does not exist. The frame determines how a story leads into it: it happens "here", is a "tale" of animals,
belongs to a "play" or party with other people, happened in the "past", or is a "state". With `pair` (for minimal pairs)
it is a short form in which only the order of the two noun phrases depends on `first`.
"""

from collections.abc import Callable
from random import Random
from zlib import crc32

from streamscope.text.stories.lexicon import TEXT, WORDS
from streamscope.text.stories.template import Env, Label, expand, pick

_TEXT = TEXT["cases"]
Passage = tuple[str, tuple[Label, ...], str]
Combination = tuple[str, str, str]
HELD_OUT_PART = 10
"""One combination in `HELD_OUT_PART` is reserved."""


def is_held_out(category: str, combination: Combination) -> bool:
    """Whether (antecedent, competitor, verb) is reserved for evaluation: about one in ten, by CRC-32."""
    return crc32("|".join((category, *combination)).encode()) % HELD_OUT_PART == 0


class NoCombination(Exception):
    """Among many draws none was on the wanted side of `is_held_out`, so there is no passage."""


def draw(category: str, held_out: bool, propose: Callable[[], Combination], both_ways: bool = False) -> Combination:
    """Draw a combination, reserved or not; `both_ways` if the passage also labels the competitor."""
    for _ in range(200):
        a, b, verb = combination = propose()
        other_way = is_held_out(category, (b, a, verb)) if both_ways else held_out
        if is_held_out(category, combination) == other_way == held_out:
            return combination
    raise NoCombination(category)


BETWEEN_PEOPLE = _TEXT["between_people"]
BETWEEN_PLURAL = _TEXT["between_plural"]
AFTER_THING = _TEXT["after_thing"]
AFTER_PERSON = _TEXT["after_person"]
PAIR_END = "Everyone looked at"


def between(rng: Random, templates: tuple[str, ...], env: Env, pair: bool) -> str:
    roll = 0.0 if pair else rng.random()
    n = 0 if roll < 0.45 else 1 if roll < 0.8 else 2
    return "".join(" " + expand(t, env, rng) for t in rng.sample(templates, n))


def after(rng: Random, templates: tuple[str, ...], env: Env, pair: bool, article: bool = True) -> str:
    """Perhaps one more sentence; of a pair the beginning of one that a name or, with `article`, a noun completes."""
    if pair:
        return f" {PAIR_END} the" if article else f" {PAIR_END}"
    return "" if rng.random() < 0.3 else " " + expand(pick(rng, templates), env, rng)


def after_animal(text: str, env: Env) -> tuple[str, ...]:
    """Sentences that may follow about an animal, without repeating what it does."""
    return _TEXT["after_animal"][1:] if env["does"] in text else _TEXT["after_animal"]


def actor(rng: Random, env: Env) -> dict[str, str]:
    """The environment with one child as subject {s} and the other as {o}."""
    a, b = ("h", "f") if rng.random() < 0.5 else ("f", "h")
    return {**env, "s": env[a], "ss": env[a + "s"], "so": env[a + "o"], "sp": env[a + "p"], "o": env[b]}


def others_like(pronoun: str, env: Env) -> tuple[str, ...]:
    """Names of other children with this pronoun."""
    return tuple(g for g in WORDS["girls" if pronoun == "she" else "boys"] if g not in (env["h"], env["f"]))


def ordered(first: bool, target: str, competitor: str) -> list[str]:
    """Both, the target first or last."""
    return [target, competitor] if first else [competitor, target]


def label_of_two(category: str, relation: str, k: str, combination: Combination, cue: str = "u") -> Label:
    """The label of passage k with two candidates: antecedent a, competitor b, pronoun p, and the mark of the cue."""
    return Label(category, relation, "p" + k, "a" + k, ("a" + k, "b" + k), cue + k, combination)


def noun(rng: Random, key: str, word: str, adjectives: tuple[str, ...], pair: bool) -> str:
    adjective = f"{pick(rng, adjectives)} " if not pair and rng.random() < 0.3 else ""
    return f"a {adjective}[{key} {word}]"


QUALITIES = _TEXT["qualities"]
LOOKS = _TEXT["looks"]


def tool_container(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """Tools are used, containers hold: "He used it", "He put the apples into it"."""
    is_tool = rng.random() < 0.5
    tools, containers, items = WORDS["tools"], WORDS["containers"], WORDS["items"]

    def propose() -> Combination:
        tool, container = pick(rng, tuple(tools)), pick(rng, tuple(containers))
        return (tool, container, pick(rng, tools[tool])) if is_tool else (container, tool, pick(rng, items))

    combination = draw("tool-container", held_out, propose)
    target, other, verb = combination
    env = actor(rng, env)
    things = ordered(first, noun(rng, "a" + k, target, QUALITIES, pair), noun(rng, "b" + k, other, QUALITIES, pair))
    intros: tuple[str, ...] = _TEXT["two_things"] if pair or rng.random() < 0.6 else _TEXT["two_things_apart"]
    keys: tuple[str, ...] = ("a" + k, "b" + k)
    if not pair and rng.random() < 0.12:
        intros, keys = _TEXT["three_things"], (*keys, "c" + k)
        at = int(rng.random() * 3)
        things.insert(at, noun(rng, "c" + k, pick(rng, WORDS["neutral_things"]), QUALITIES, pair))
        env["x3"] = things[2]
    close = "" if is_tool else pick(rng, containers[target])
    env.update(x1=things[0], x2=things[1], n=target, m=other, p="p" + k, u="u" + k)
    env.update(use=verb, items=verb, close=close)
    text = expand(pick(rng, intros), env, rng) + between(rng, _TEXT["between_it"], env, pair)
    if rng.random() < 0.6:  # the pronoun, then what only one thing does
        if pair or rng.random() < 0.15:
            acts = "did the job well" if is_tool else "was rather heavy"
        else:
            acts = WORDS["tool_acts" if is_tool else "container_acts"][target]
        at_work = expand(pick(rng, _TEXT["at_work" if is_tool else "filled"]), env, rng)
        cue = f"[u{k} {at_work}], [p{k} it] {acts}."
    else:
        cue = expand(pick(rng, _TEXT["use"] if is_tool else _TEXT["fill"]), env, rng)
    text += f" {cue}" + after(rng, AFTER_THING, env, pair)
    relation = "tool" if is_tool else "container"
    return text, (Label("tool-container", relation, "p" + k, "a" + k, keys, "u" + k, combination),), "here"


EVENTS = _TEXT["events"]
GLAD = frozenset(_TEXT["glad"])
"""Events after which both sides are content, so that an animal may do what its kind likes."""
BIG_HUNTERS = tuple(h for h in WORDS["hunters"] if h not in WORDS["small_hunters"])


def agent_patient(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """Agent and patient: hunter and hunted, or an event in active or passive voice."""
    is_agent = rng.random() < 0.5
    style = 0.0 if pair else rng.random()
    if style < 0.4:
        return _hunt(rng, env, k, held_out, first, pair, is_agent)
    return _event(rng, env, k, held_out, first, pair, is_agent, style > 0.75)


def event(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage:
    """One animal did something to another of the same kind, and only the event distinguishes them."""
    return _event(rng, env, k, held_out, first, pair, rng.random() < 0.5, people=False)


def _event(
    rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool, is_agent: bool, people: bool
) -> Passage:
    guests = others_like(env["hs"], env)
    events, animals = tuple(EVENTS), tuple(WORDS["animals"])

    def propose() -> Combination:
        if people:
            pair_of = (env["h"], pick(rng, guests))
            return (*(pair_of if rng.random() < 0.5 else pair_of[::-1]), pick(rng, events))
        verb = pick(rng, (*events, "chase"))
        agent, patient = rng.sample(animals, 2)
        if verb == "chase":
            agent, patient = pick(rng, BIG_HUNTERS), pick(rng, tuple(WORDS["hunted"]))
        return (agent, patient, verb) if is_agent else (patient, agent, verb)

    combination = draw("agent-patient", held_out, propose)
    target, other, verb = combination
    past, participle, *cues, why_agent, why_patient, then_agent, then_patient = EVENTS.get(verb, _TEXT["chase"])
    env = actor(rng, env)
    if people:
        nouns = [f"[a{k} {target}]", f"[b{k} {other}]"]
        pronoun, env["o"], env["s"] = env["hs"], env["e"], env["f"]
    else:
        nouns = [noun(rng, "a" + k, target, LOOKS, pair), noun(rng, "b" + k, other, LOOKS, pair)]
        pronoun, env["does"] = "it", WORDS["animals"][target][1]
    if not first:
        nouns.reverse()
    env.update(x1=nouns[0], x2=nouns[1], n=target, N=target, m=other)
    event = f"{{x1}} {past} {{x2}}" if first == is_agent else f"{{x1}} was {participle} by {{x2}}"
    if not pair and rng.random() < 0.35:
        reason = why_agent if is_agent else why_patient
        text = expand(f"{event} because [p{k} {pronoun}] [u{k} {reason}].", env, rng)
    else:
        cue = pick(rng, cues[0] if is_agent else cues[1])
        then = then_agent if is_agent else then_patient
        if verb in GLAD and not people and not pair and rng.random() < 0.6:
            then = WORDS["animals"][target][1]
        text = expand(f"{event}.", env, rng)
        text += between(rng, BETWEEN_PEOPLE, env, pair) + f" [u{k} {cue}], [p{k} {pronoun}] {then}."
    text += after(rng, AFTER_PERSON if people else after_animal(text, env), env, pair)
    relation = "agent" if is_agent else "patient"
    return text, (label_of_two("agent-patient", relation, k, combination),), "past" if people else "tale"


def _hunt(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool, is_agent: bool) -> Passage:
    """A hunter and its prey; their kinds make them agent and patient."""

    def propose() -> Combination:
        prey = tuple(WORDS["hunted"])
        hunter, hunted = pick(rng, WORDS["hunters"]), pick(rng, prey)
        while hunter in WORDS["small_hunters"] and hunted in WORDS["big_prey"]:
            hunted = pick(rng, prey)
        return (hunter, hunted, pick(rng, _TEXT["hunt"])) if is_agent else (hunted, hunter, pick(rng, _TEXT["flee"]))

    combination = draw("agent-patient", held_out, propose)
    target, other, cue = combination
    env = actor(rng, env)
    animals = ordered(first, noun(rng, "a" + k, target, LOOKS, pair), noun(rng, "b" + k, other, LOOKS, pair))
    env.update(x1=animals[0], x2=animals[1], n=target, m=other, does=WORDS["animals"][target][1])
    text = expand(
        pick(rng, _TEXT["two_animals"] if pair or rng.random() < 0.6 else _TEXT["two_animals_apart"]), env, rng
    )
    text += between(rng, BETWEEN_PEOPLE, env, pair)
    if not pair and rng.random() < 0.8:
        then = WORDS["hunts"][target] if is_agent else WORDS["hunted"][target]
    else:
        then = pick(rng, _TEXT["stalk"] if is_agent else _TEXT["escape"])
    text += f" [u{k} {cue}], [p{k} it] {then}."
    text += after(rng, after_animal(text, env), env, pair)
    relation = "agent" if is_agent else "patient"
    return text, (label_of_two("agent-patient", relation, k, combination),), "here"
