"""Labelled passages: a few sentences in which a pronoun has one antecedent, and meaning says which.

Every passage draws its antecedent's role, the order of the candidates (`first`: antecedent mentioned first),
the number of sentences between and the number of distractors independently of each other. So the most
recent candidate and the first one are each right half of the time, whatever else is true of the passage.

A passage is a function (rng, env, key, held_out, first, pair) -> (marked text, labels, frame), or None when
the combination wanted does not exist. The frame says how a story may lead into it: it happens "here", is a
"tale" of animals, belongs to a "play" or party with other people, happened in the "past", or is a "state".
With `pair` it is a short form without follow-up in which nothing but the order of the two noun phrases
depends on `first`: the minimal pairs.
"""

from collections.abc import Callable
from random import Random
from zlib import crc32

from streamscope.models.text.story_text import Env, Label, expand, pick
from streamscope.models.text.story_words import (
    ANIMALS,
    BIG_PREY,
    BOYS,
    CONTAINER_ACTS,
    CONTAINERS,
    GIRLS,
    HUNTED,
    HUNTERS,
    HUNTS,
    ITEMS,
    NEUTRAL_THINGS,
    SMALL_HUNTERS,
    TOOL_ACTS,
    TOOLS,
    words,
)

Passage = tuple[str, tuple[Label, ...], str]
Combination = tuple[str, str, str]
HELD_OUT_PART = 10
"""One combination in this many is reserved."""


def is_held_out(category: str, combination: Combination) -> bool:
    """Whether (antecedent, competitor, verb) is reserved for evaluation: about one in ten, by CRC-32."""
    return crc32("|".join((category, *combination)).encode()) % HELD_OUT_PART == 0


def draw(
    category: str, held_out: bool, propose: Callable[[], Combination], both_ways: bool = False
) -> Combination | None:
    """A combination on the wanted side; `both_ways` when the passage labels the competitor too."""
    for _ in range(200):
        a, b, verb = combination = propose()
        other_way = is_held_out(category, (b, a, verb)) if both_ways else held_out
        if is_held_out(category, combination) == other_way == held_out:
            return combination
    return None


# Sentences between the candidates and the pronoun. In passages about "it" they hold no singular thing or
# animal; in passages about people, no person.
BETWEEN_IT = (
    "<The|Some> birds <sang|chirped> <overhead|nearby|in the {#trees}>.",
    "{^ss} <smiled|nodded|thought hard|hummed|counted to {#age}>.",
    '"<Hurry up|Come on|Let us begin|Do be careful|Look at that>!" {#say} {o}.',
    "{o} watched <closely|with big eyes|from the steps>.",
    "<Two|Three|Some|A few> <children|bees|butterflies|ladies> <hurried|went|came> by.",
    "<White|Gray|Dark> clouds <drifted|moved> over the {#trees}.",
    "{s} and {o} looked at each other.",
)
BETWEEN_PEOPLE = (
    "<Time went by|Some time passed|Evening came|Noon came|A while went by>.",
    "<The|Some> birds <sang|chirped> <overhead|nearby|in the {#trees}>.",
    "<White|Gray|Dark> clouds <drifted|moved> over the {#trees}.",
    "Outside, <rain fell|leaves rustled|bees buzzed|bells rang>.",
)
BETWEEN_PLURAL = (
    "<The|Some> birds <sang|chirped> <overhead|nearby|in the {#trees}>.",
    "<White|Gray|Dark> clouds <drifted|moved> over the {#trees}.",
    "<Two|Three|Some|A few> <children|bees|butterflies|visitors> <hurried|went|came> by.",
    "Outside, <leaves rustled|bees buzzed|bells rang|drops fell from the {#trees}>.",
)
AFTER_THING = (
    "What a {#good} {n}!",
    "Everyone <looked at|talked about|liked> the {n}.",
    "{s} <pointed at|smiled at|thanked everyone for> the {n}.",
    '"That is a {#good} {n}," said {o}.',
    "{^ss} <left|forgot about> the {m} and <kept|thought about> the {n}.",
    "Nobody <needed|looked at|asked about> the {m}.",
)
AFTER_ANIMAL = (
    "The {n} {does}.",
    "Everyone looked at the {n}.",
    '"<Poor|Good|Clever|Dear> {n}," said {o}.',
    "{s} <pointed at|waved at|felt sorry for> the {n}.",
    "{s} never forgot the {n}.",
)
AFTER_PERSON = (
    "Everyone <looked at|smiled at|talked about|was proud of> {n}.",
    '"<Well done|Oh dear|My goodness>, {N}!" said {e}.',
    "That was so like {n}.",
    "{e} <smiled at|nodded at|took a picture of> {n}.",
)
PAIR_END = "Everyone looked at"


def between(rng: Random, templates: tuple[str, ...], env: Env, pair: bool) -> str:
    roll = 0.0 if pair else rng.random()
    n = 0 if roll < 0.45 else 1 if roll < 0.8 else 2
    return "".join(" " + expand(t, env, rng) for t in rng.sample(templates, n))


def after(rng: Random, templates: tuple[str, ...], env: Env, pair: bool) -> str:
    if pair or rng.random() < 0.3:
        return ""
    return " " + expand(pick(rng, templates), env, rng)


def after_animal(text: str, env: Env) -> tuple[str, ...]:
    """What may follow about an animal; what it does is not told twice."""
    return AFTER_ANIMAL[1:] if env["does"] in text else AFTER_ANIMAL


def actor(rng: Random, env: Env) -> dict[str, str]:
    """The environment with a subject {s} (hero or friend) and the other child {o}."""
    a, b = ("h", "f") if rng.random() < 0.5 else ("f", "h")
    return {**env, "s": env[a], "ss": env[a + "s"], "so": env[a + "o"], "sp": env[a + "p"], "o": env[b]}


def noun(rng: Random, key: str, word: str, adjectives: tuple[str, ...], pair: bool) -> str:
    adjective = f"{pick(rng, adjectives)} " if not pair and rng.random() < 0.3 else ""
    return f"a {adjective}[{key} {word}]"


QUALITIES = words("old new big small shiny heavy plain pretty strong little blue green red yellow")
LOOKS = words("big small brown old young white black gray thin fat")

TWO_THINGS = (
    "{s} <had|found|saw|noticed|spotted|came upon|was given> {x1} and {x2}.",
    "{e} <gave|handed|lent|brought> {s} {x1} and {x2}.",
    "<in front of|next to|not far from> {s} lay {x1} and {x2}.",
    "{s} and {o} <carried|held|bought> {x1} and {x2}.",
)
TWO_THINGS_APART = (
    "{s} <saw|found> {x1} <next to|beside|not far from> {x2}.",
    "{s} picked up {x1}, and then {ss} picked up {x2}.",
    '"Here is {x1}, and here is {x2}," said {e} to {s}.',
    "first {s} found {x1}. A moment later {ss} found {x2}.",
)
THREE_THINGS = (
    "{s} <had|found|saw|noticed|carried> {x1}, {x2} and {x3}.",
    "<in front of|next to> {s} lay {x1}, {x2} and {x3}.",
)
USE = (
    "<So|Then> {ss} [{u} used] [{p} it] to {use}.",
    "{^ss} [{u} used] [{p} it] to {use}.",
    "{^ss} was <glad|happy> to [{u} use] [{p} it] to {use}.",
    '"I will [{u} use] [{p} it] to {use}," {ss} said.',
    "{o} asked {so} to [{u} use] [{p} it] to {use}.",
    "All <day|morning|afternoon> {ss} [{u} used] [{p} it] to {use}.",
)
FILL = (
    "<So|Then> {ss} put the {items} [{u} into] [{p} it] and {close}.",
    "{^ss} [{u} filled] [{p} it] with {items} and {close}.",
    "{^ss} [{u} packed] [{p} it] with {items} and {close}.",
    '"I will put the {items} [{u} into] [{p} it]," {ss} said, and {ss} {close}.',
    "{o} helped {so} to [{u} fill] [{p} it] with {items}. Then {ss} {close}.",
    "{^ss} dropped {#age} {items} [{u} into] [{p} it] and {close}.",
)


AT_WORK = ("Put to work", "Put to good use", "In busy hands", "With a job to do", "Needed at last for some work")
FILLED = ("Filled with {items}", "Full of {items}", "With the {items} inside", "Packed with {items}",
          "Loaded with {#age} {items}")  # fmt: skip


def tool_container(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage | None:
    """Tools are used, containers hold: "He used it", "He put the apples into it"."""
    is_tool = rng.random() < 0.5
    tools, containers = tuple(TOOLS), tuple(CONTAINERS)

    def propose() -> Combination:
        tool, container = pick(rng, tools), pick(rng, containers)
        return (tool, container, pick(rng, TOOLS[tool])) if is_tool else (container, tool, pick(rng, ITEMS))

    combination = draw("tool-container", held_out, propose)
    if combination is None:
        return None
    target, other, verb = combination
    env = actor(rng, env)
    things = [noun(rng, "a" + k, target, QUALITIES, pair), noun(rng, "b" + k, other, QUALITIES, pair)]
    if not first:
        things.reverse()
    intros: tuple[str, ...] = TWO_THINGS if pair or rng.random() < 0.6 else TWO_THINGS_APART
    keys: tuple[str, ...] = ("a" + k, "b" + k)
    if not pair and rng.random() < 0.12:
        intros, keys = THREE_THINGS, (*keys, "c" + k)
        things.insert(int(rng.random() * 3), noun(rng, "c" + k, pick(rng, NEUTRAL_THINGS), QUALITIES, pair))
        env["x3"] = things[2]
    close = "" if is_tool else pick(rng, CONTAINERS[target])
    env.update(x1=things[0], x2=things[1], n=target, m=other, p="p" + k, u="u" + k)
    env.update(use=verb, items=verb, close=close)
    text = expand(pick(rng, intros), env, rng) + between(rng, BETWEEN_IT, env, pair)
    if rng.random() < 0.6:  # the pronoun first, and then what only one thing does
        if pair or rng.random() < 0.15:
            told = "did the job well" if is_tool else "was rather heavy"
        else:
            told = (TOOL_ACTS if is_tool else CONTAINER_ACTS)[target]
        cue = f"[u{k} {expand(pick(rng, AT_WORK if is_tool else FILLED), env, rng)}], [p{k} it] {told}."
    else:
        cue = expand(pick(rng, USE if is_tool else FILL), env, rng)
    text += f" {cue}" + after(rng, AFTER_THING, env, pair)
    if pair:
        text += f" {PAIR_END} the"
    relation = "tool" if is_tool else "container"
    return text, (Label("tool-container", relation, "p" + k, "a" + k, keys, "u" + k, combination),), "here"


# event -> (past, participle, agent's and patient's states told before the pronoun, reasons told after it,
# what each then does)
EVENTS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], str, str, str, str]] = {
    "help": ("helped", "helped", ("Glad to be of help", "Happy to lend a hand"),
             ("Thankful for the help", "Grateful for the help"), "liked to help others",
             "was stuck in the mud",
             "said it was nothing", "said thank you"),
    "rescue": ("rescued", "rescued", ("Proud of the brave rescue", "Feeling like a hero"),
               ("Grateful for the rescue", "Safe at last"), "was brave", "was in danger", "took a bow",
               "said thank you"),
    "trick": ("tricked", "tricked", ("Ashamed of the trick", "Sorry for the trick"),
              ("Angry about the trick", "Tired of being tricked"), "loved to play jokes",
             "believed everything",
              "said sorry", "stomped away"),
    "feed": ("fed", "fed", ("Glad to have shared", "Proud of being so generous"), ("Full at last",
             "No longer hungry"),
             "had plenty to share", "had nothing to eat", "packed up the rest", "ate up the last crumbs"),
    "wake": ("woke", "woken", ("Sorry for all the noise", "Sorry to be so loud"),
             ("Still half asleep", "Still full of dreams"), "had good news to tell", "had slept too long",
             "tried to be quiet", "yawned and stretched"),
    "frighten": ("frightened", "frightened", ("Sorry for being so scary", "Sorry for the fright"),
                 ("Shaking with fear", "Trembling with fright"), "jumped out of the dark",
             "was easily scared",
                 "said sorry", "ran off to hide"),
    "thank": ("thanked", "thanked", ("Full of thanks", "Grateful for everything"),
              ("Happy to be thanked", "Glad to have been useful"), "was so grateful", "gave good advice",
              "gave a little bow", "said it was nothing"),
    "praise": ("praised", "praised", ("Impressed by such good work", "Full of admiration"),
               ("Pleased with the praise", "Proud of the praise"), "admired good work", "worked so hard",
               "clapped and clapped", "blushed and smiled"),
    "push": ("pushed", "pushed", ("Sorry for the push", "In too much of a hurry"),
             ("Sore from the push", "Hurt by the push"), "was in a hurry", "stood in the way",
             "came back to say sorry", "got up slowly"),
    "comfort": ("comforted", "comforted", ("Glad to have been a comfort", "Sorry to see such tears"),
                ("No longer sad", "Feeling much better"), "hated to see tears", "cried so hard",
                "told a funny story", "wiped away the tears"),
    "outrun": ("outran", "outrun", ("Proud of the victory", "Happy to have won"),
             ("Sad about losing", "Hoping to win next time"), "ran faster", "ran too slowly",
             "jumped for joy", "went home to practice"),
    "warn": ("warned", "warned", ("Glad to have given a warning", "Having seen the danger first"),
             ("Thankful for the warning", "Having been warned in time"), "saw the danger first",
             "did not see the danger", "led the way home", "got away safely"),
    "forgive": ("forgave", "forgiven", ("No longer angry", "Ready to forgive"),
                ("Glad to be forgiven", "Relieved to be forgiven"), "had a kind heart", "said sorry",
                "said all was well", "promised to be good"),
}  # fmt: skip
CHASE = ("chased", "chased", ("Unable to catch any supper", "Left without any supper"),
         ("Afraid of being caught", "Glad to have got away"), "wanted some supper", "looked so tasty",
         "gave up and lay down", "ran even faster")  # fmt: skip
HUNT = ("Hungry for fresh meat", "Hoping to catch some supper", "Ready to pounce", "Looking for some prey",
        "Ready to attack")  # fmt: skip
FLEE = ("Afraid of being eaten", "In great danger", "Scared for its life", "Too small to fight back",
        "Desperate to escape", "Not wanting to be eaten")  # fmt: skip
STALK = ("crept closer and closer", "bent low and kept still", "watched without a sound", "waited for the right moment")
ESCAPE = ("ran away", "got away", "looked for a hiding place", "called for help")
GLAD = frozenset(words("help rescue thank praise feed comfort forgive warn"))
"""Events after which both sides are content, so that an animal may do what its kind likes to do."""
BIG_HUNTERS = tuple(h for h in HUNTERS if h not in SMALL_HUNTERS)
TWO_ANIMALS = (
    "{s} <saw|watched|met|spotted> {x1} and {x2}.",
    "in the <barn|field|woods|valley|meadow> lived {x1} and {x2}.",
    "{s} and {o} <watched|followed|came across> {x1} and {x2}.",
    "by the <river|lake|road|gate> there stood {x1} and {x2}.",
)
TWO_ANIMALS_APART = (
    "{s} <saw|found> {x1} <not far from|close to|near> {x2}.",
    "first {s} saw {x1}. Then {ss} saw {x2}.",
    "{o} told a story about {x1} who met {x2}.",
)


def agent_patient(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage | None:
    """The one who acts and the one acted on: hunter and hunted, or an event in active or passive voice."""
    is_agent = rng.random() < 0.5
    style = 0.0 if pair else rng.random()
    if style < 0.4:
        return _hunt(rng, env, k, held_out, first, pair, is_agent)
    return _event(rng, env, k, held_out, first, pair, is_agent, style > 0.75)


def event(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool) -> Passage | None:
    """One animal did something to another: both are of one kind, and only who did what tells them apart."""
    return _event(rng, env, k, held_out, first, pair, rng.random() < 0.5, people=False)


def _event(
    rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool, is_agent: bool, people: bool
) -> Passage | None:
    guests = tuple(g for g in (GIRLS if env["hs"] == "she" else BOYS) if g not in (env["h"], env["f"]))
    events, animals = tuple(EVENTS), tuple(ANIMALS)

    def propose() -> Combination:
        if people:
            pair_of = (env["h"], pick(rng, guests))
            return (*(pair_of if rng.random() < 0.5 else pair_of[::-1]), pick(rng, events))
        verb = pick(rng, (*events, "chase"))
        agent, patient = rng.sample(animals, 2)
        if verb == "chase":
            agent, patient = pick(rng, BIG_HUNTERS), pick(rng, tuple(HUNTED))
        return (agent, patient, verb) if is_agent else (patient, agent, verb)

    combination = draw("agent-patient", held_out, propose)
    if combination is None:
        return None
    target, other, verb = combination
    past, participle, *cues, why_agent, why_patient, then_agent, then_patient = EVENTS.get(verb, CHASE)
    env = actor(rng, env)
    if people:
        nouns = [f"[a{k} {target}]", f"[b{k} {other}]"]
        pronoun, env["o"], env["s"] = env["hs"], env["e"], env["f"]
    else:
        nouns = [noun(rng, "a" + k, target, LOOKS, pair), noun(rng, "b" + k, other, LOOKS, pair)]
        pronoun, env["does"] = "it", ANIMALS[target][1]
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
            then = ANIMALS[target][1]
        text = expand(f"{event}.", env, rng)
        text += between(rng, BETWEEN_PEOPLE, env, pair) + f" [u{k} {cue}], [p{k} {pronoun}] {then}."
    text += after(rng, AFTER_PERSON if people else after_animal(text, env), env, pair)
    if pair:
        text += f" {PAIR_END} the"
    relation = "agent" if is_agent else "patient"
    label = Label("agent-patient", relation, "p" + k, "a" + k, ("a" + k, "b" + k), "u" + k, combination)
    return text, (label,), "past" if people else "tale"


def _hunt(rng: Random, env: Env, k: str, held_out: bool, first: bool, pair: bool, is_agent: bool) -> Passage | None:
    """A hunter and its prey, named side by side: what each is makes it the agent or the patient."""

    def propose() -> Combination:
        hunter, hunted = pick(rng, HUNTERS), pick(rng, tuple(HUNTED))
        while hunter in SMALL_HUNTERS and hunted in BIG_PREY:
            hunted = pick(rng, tuple(HUNTED))
        return (hunter, hunted, pick(rng, HUNT)) if is_agent else (hunted, hunter, pick(rng, FLEE))

    combination = draw("agent-patient", held_out, propose)
    if combination is None:
        return None
    target, other, cue = combination
    env = actor(rng, env)
    animals = [noun(rng, "a" + k, target, LOOKS, pair), noun(rng, "b" + k, other, LOOKS, pair)]
    if not first:
        animals.reverse()
    env.update(x1=animals[0], x2=animals[1], n=target, m=other, does=ANIMALS[target][1])
    text = expand(pick(rng, TWO_ANIMALS if pair or rng.random() < 0.6 else TWO_ANIMALS_APART), env, rng)
    text += between(rng, BETWEEN_PEOPLE, env, pair)
    if not pair and rng.random() < 0.8:
        then = HUNTS[target] if is_agent else HUNTED[target]
    else:
        then = pick(rng, STALK if is_agent else ESCAPE)
    text += f" [u{k} {cue}], [p{k} it] {then}."
    text += after(rng, after_animal(text, env), env, pair)
    if pair:
        text += f" {PAIR_END} the"
    relation = "agent" if is_agent else "patient"
    label = Label("agent-patient", relation, "p" + k, "a" + k, ("a" + k, "b" + k), "u" + k, combination)
    return text, (label,), "here"
