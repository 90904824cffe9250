# ruff: noqa: E501 (a template a line, unbroken, is what a reader compares)
"""Passages in which two of one kind compete for a pronoun, and only what happened says which is meant.

Two animals, two people of one profession's kind, two girls, two boys or two things: what they are settles nothing.
What happened to each is told, what settles the pronoun (the cue) stands before it, and the word after it is the one that
was told of the referent: "A fox who hummed was rescued by a hen who skipped. Safe at last, it hummed again."

The functions have the form that `models.text.story_cases` describes, but `held_out` says what is kept for evaluation:
"" training text; "combinations" triples (antecedent, competitor, verb) that it never uses; "words" words that it never
uses.
"""

from collections.abc import Callable
from random import Random

from streamscope.models.text.stories4.lexicon import ADJECTIVES, RESERVED, TRAINING, Words
from streamscope.models.text.story_cases import (
    BETWEEN_PEOPLE,
    EVENTS,
    PAIR_END,
    Combination,
    Passage,
    after,
    between,
    is_held_out,
)
from streamscope.models.text.story_text import Env, Label, capital, expand, pick
from streamscope.models.text.story_words import CONTAINERS, STATES, words

HELD_OUT = ("", "combinations", "words")
EVENT_NAMES = tuple(EVENTS)
STATE_NAMES = tuple(STATES)

ACTS = words(
    "hummed skipped whistled yawned giggled sneezed danced clapped winked bowed hopped snored coughed sighed grinned nodded "
    "blushed shivered waved limped stumbled mumbled wept sang swayed stretched trembled laughed crawled"
)
THING_ACTS = words(
    "wobbled rattled squeaked glittered clicked creaked rolled swung dripped buzzed gleamed thumped jingled spun flashed "
    "shook tilted rustled glowed ticked"
)
TAILS = ("again", "once more", "all day", "for a long time", "as before", "and <stayed|stopped>")
AFTER = (
    "Everyone <looked at|talked about|thought of> {the}.",
    "{e} <pointed at|took a picture of|never forgot> {the}.",
    "{h} <told|asked> {f} about {the}.",
)
# what was so -> what is told before the pronoun of the one it was told of
CONDITIONS: dict[str, tuple[str, ...]] = {
    "hungry": ("Looking for something to eat", "With nothing to eat"),
    "thirsty": ("Looking for some water", "Longing for a drink"),
    "tired": ("Longing for some sleep", "After too little sleep"),
    "cold": ("Shivering all over", "In need of something warm"),
    "hot": ("Looking for some shade", "In need of something cool"),
    "lost": ("Far from home", "Unable to find the way"),
    "scared": ("Trembling with fear", "Afraid of every sound"),
    "sad": ("Close to tears", "In need of comfort"),
    "late": ("Out of breath", "In too much of a hurry"),
    "rich": ("With gold to spare", "Able to buy everything"),
    "dirty": ("In need of a bath", "With mud all over"),
    "angry": ("Stamping with rage", "Unable to calm down"),
    "curious": ("Full of questions", "Eager to know more"),
    "sick": ("With a high fever", "In need of medicine"),
    "bored": ("With nothing to do", "Tired of waiting"),
    "famous": ("Known all over the world", "Used to being stared at"),
}
THING_CONDITIONS: dict[str, tuple[str, ...]] = {
    "torn": ("Sewn together again", "With a long rip"),
    "wet": ("Dried in the sun", "Full of water"),
    "dirty": ("Washed with soap", "Covered in mud"),
    "missing": ("Found at last", "Back from who knows where"),
    "broken": ("Glued together again", "In two pieces"),
    "dusty": ("Wiped with a cloth", "Under a gray layer"),
    "borrowed": ("Given back in time", "Returned to its owner"),
    "sold": ("Wrapped up for the buyer", "Paid for in silver"),
    "frozen": ("Covered in ice", "Left in the snow all night"),
    "rusty": ("Rubbed with oil", "Brown with age"),
    "stolen": ("Hidden by the thief", "Brought back by the police"),
    "forgotten": ("Remembered after years", "Left behind by all"),
    "painted": ("Bright with color", "Still smelling of paint"),
    "burning": ("In a cloud of smoke", "Saved from the flames"),
    "new": ("Just out of the shop", "Never used before"),
    "hidden": ("Pulled out of the dark", "Out of sight for weeks"),
}  # fmt: skip
# (verb, who gives comes first)
TRANSFERS = {
    "gave": ("to", True), "sold": ("to", True), "lent": ("to", True), "handed": ("to", True), "threw": ("to", True),
    "sent": ("to", True), "showed": ("to", True), "brought": ("to", True),
    "got": ("from", False), "bought": ("from", False), "borrowed": ("from", False), "took": ("from", False),
    "won": ("from", False), "stole": ("from", False),
}  # fmt: skip
GIVER = ("With the {t} gone", "Without the {t}", "Left with no {t}")
TAKER = ("With the {t} in hand", "Holding the {t}", "Now with a {t}")
# (what happened, what is true of the first if so, of the second, kinds, the pronoun)
SCHEMAS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], str, str], ...] = (
    ("could not be squeezed into", "too", words("big wide thick long large"), words("small narrow tight short tiny"), "things", "boxes"),
    ("could not be lifted by", "too", words("heavy big huge"), words("weak small tired young"), "things", "animals"),
    ("could not reach", "too", words("short small low"), words("high tall far"), "things", "things"),
    ("could not carry", "too", words("weak small thin"), words("heavy big huge"), "things", "things"),
    ("scratched", "so", words("sharp rough hard"), words("soft smooth thin"), "things", "things"),
    ("overtook", "so", words("fast quick strong"), words("slow tired lazy old"), "animals", "animals"),
    ("could not catch", "too", words("slow old fat lazy tired"), words("fast quick clever"), "animals", "animals"),
    ("ran away from", "so", words("scared shy afraid"), words("scary fierce mean angry"), "animals", "animals"),
    ("carried", "so", words("strong big kind"), words("tired sick hurt"), "animals", "animals"),
    ("waited for", "so", words("early patient fast"), words("late slow lost"), "animals", "animals"),
    ("taught", "so", words("clever wise old"), words("young new curious"), "animals", "animals"),
    ("gave money to", "so", words("rich kind good"), words("poor hungry sad"), "people", "people"),
    ("could not hear", "so", words("deaf old sleepy"), words("quiet shy far"), "people", "people"),
    ("laughed at", "so", words("rude mean bad"), words("funny silly odd"), "people", "people"),
    ("went to help", "so", words("kind nice good"), words("stuck weak sick poor"), "people", "people"),
    ("took care of", "so", words("kind gentle good"), words("sick weak hurt"), "people", "people"),
)  # fmt: skip
RETELL = {
    "people": ("The one who was {how} {adj} was the {n}.", "It was the {n} who was {how} {adj}."),
    "animals": ("The one that was {how} {adj} was the {n}.", "It was the {n} that was {how} {adj}."),
    "things": ("What was {how} {adj} was the {n}.", "The thing that was {how} {adj} was the {n}."),
}
TASK_PAIRS = frozenset(
    frozenset(pair.split("-"))
    for pair in words(
        "ball-box cat-mouse dog-bear stone-window man-boy bird-branch king-farmer teacher-girl fish-worm wolf-rabbit book-bag "
        "car-bus truck-car bee-flower frog-snake nurse-girl lion-mouse shirt-sun lamp-cave key-door goat-sheep knife-bread "
        "ladder-roof blanket-bed pig-gate"
    )
)
"""The nouns of datasets/tasks/winograd: never together in a schema here."""


def vocabulary(held_out: str) -> Words:
    return RESERVED if held_out == "words" else TRAINING


def draw(category: str, held_out: str, propose: Callable[[], Combination]) -> Combination:
    """A combination of reserved words as it comes, else one on the wanted side of `is_held_out`."""
    while True:
        combination = propose()
        if held_out == "words" or is_held_out(category, combination) == (held_out == "combinations"):
            return combination


def two(rng: Random, options: tuple[str, ...]) -> tuple[str, str]:
    """Two different entries."""
    a, b = int(rng.random() * len(options)), int(rng.random() * (len(options) - 1))
    return options[a], options[b + (b >= a)]


def _cast(rng: Random, held_out: str, kinds: tuple[str, ...]) -> tuple[tuple[str, ...], str, str]:
    """Words to choose from, the article before them and the pronoun of each."""
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
    rng: Random, env: Env, k: str, pair: bool, told: str, cue: str, pronoun: str, then: str, category: str,
    relation: str, combination: Combination, article: str, frame: str,
) -> Passage:  # fmt: skip
    """What was told, perhaps something else, the cue and the pronoun, what follows, and perhaps who is meant."""
    target = combination[0]
    env = {**env, "the": f"the {target}" if article else target}
    text = told.replace(",.", ".") + between(rng, BETWEEN_PEOPLE, env, pair)
    text += f" [u{k} {cue}], [p{k} {pronoun}] {then}."
    text += f" {PAIR_END}{' the' if article else ''}" if pair else after(rng, AFTER, env, pair)
    return text, (Label(category, relation, "p" + k, "a" + k, ("a" + k, "b" + k), "u" + k, combination),), frame


def _acts(rng: Random, acts: tuple[str, ...], always: bool = False) -> tuple[str, str, str]:
    """What the referent and the other do, and what comes behind it; "" where nothing is told of them."""
    if not always and rng.random() < 0.3:
        return "", "", ""
    one, other = two(rng, acts)
    return one, other, expand(pick(rng, TAILS), {}, rng)


def event(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """One did something to another, in active or passive voice."""
    options, article, pronoun = _cast(rng, held_out, ("animals", "people", "girls", "boys"))
    is_agent = rng.random() < 0.5

    def propose() -> Combination:
        return (*two(rng, options), pick(rng, EVENT_NAMES))

    target, other, verb = combination = draw("event", held_out, propose)
    past, participle, agents, patients, _, _, then_agent, then_patient = EVENTS[verb]
    act, other_act, tail = _acts(rng, ACTS)
    people = [_who("a" + k, target, article, act), _who("b" + k, other, article, other_act)]
    if not first:
        people.reverse()
    does = past if first == is_agent else f"was {participle} by"
    told = f"{people[0]} {does} {people[1]}."
    cue = pick(rng, agents if is_agent else patients)
    then = f"{act} {tail}" if act else then_agent if is_agent else then_patient
    return _finish(rng, env, k, pair, told, cue, pronoun, then, "event", "agent" if is_agent else "patient",
                   combination, article, "past")  # fmt: skip


def state(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """Each was in a state of its own; the cue fits one of the two."""
    options, article, pronoun = _cast(rng, held_out, ("things", "things", "animals", "people", "girls", "boys"))
    things = options is vocabulary(held_out).things
    told_of, acts = (THING_CONDITIONS, THING_ACTS) if things else (CONDITIONS, ACTS)
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
    clauses = [f"{who[0]} was {verb}", f"{who[1]} was {another}"]
    if not first:
        clauses.reverse()
    told = clauses[0] + join + (capital(clauses[1]) if join == ". " else clauses[1]) + "."
    return _finish(rng, env, k, pair, told, pick(rng, told_of[verb]), pronoun, f"{act} {tail}", "state",
                   "things" if things else "living", combination, article, "past")  # fmt: skip


def transfer(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """Something changed hands, and the cue says whether it is there or gone."""
    options, article, pronoun = _cast(rng, held_out, ("people", "girls", "boys"))
    is_giver = rng.random() < 0.5
    goods = vocabulary(held_out).things if rng.random() < 0.7 else vocabulary(held_out).foods
    verbs = tuple(v for v, (_, giver_first) in TRANSFERS.items() if giver_first == (first == is_giver))
    place = rng.random()

    def propose() -> Combination:
        # the verb depends on the order; the reserved triple must not, so it is named by who is meant
        return (*two(rng, options), "giver" if is_giver else "taker")

    combination = draw("transfer", held_out, propose)
    thing, verb = pick(rng, goods), verbs[int(place * len(verbs))]
    act, other_act, tail = _acts(rng, ACTS, always=True)
    people = [_who("a" + k, combination[0], article, act), _who("b" + k, combination[1], article, other_act)]
    if not first:
        people.reverse()
    told = f"{people[0]} {verb} a {thing} {TRANSFERS[verb][0]} {people[1]}."
    cue = expand(pick(rng, GIVER if is_giver else TAKER), {"t": thing}, rng)
    return _finish(rng, env, k, pair, told, cue, pronoun, f"{act} {tail}", "transfer", combination[2],
                   combination, article, "past")  # fmt: skip


def winograd(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """One word swaps the referent: "because it was too big", "because it was too small". The cue follows the pronoun."""
    did, how, of_first, of_second, *kinds = pick(rng, SCHEMAS)
    found = vocabulary(held_out)
    one_of, other_of = (tuple(CONTAINERS) if kind == "boxes" else getattr(found, kind) for kind in kinds)
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
    text += expand(pick(rng, RETELL[kinds[0]]), {"how": how, "adj": adjective, "n": combination[0]}, rng)
    label = Label(
        "winograd", "first" if first else "second", "p" + k, "a" + k, ("a" + k, "b" + k), "u" + k, combination
    )
    return text, (label,), "tale"


# ---- text without labels: how names and words are written, and who is he and who is she --------------------------

NAMED = (
    "{h} had a {a} called {N}. {x} {h} <went to look for|gave some water to|was proud of> {N}.",
    "a {a} lived next door, and its name was {N}. {x} Everyone liked {N}.",
    "{e} told a tale of a {a} named {N}. {x} In the end all came to see {N}.",
    "{title} {N} lived <on the hill|down the road>. {x} {h} <waved to|ran to meet|asked> {title} {N}.",
)
UNNAMED = (
    "{h} found a {n} near the {place}. {x} {f} wanted to see the {n}.",
    "there was a {n} in the {place}. {x} Nobody but {h} noticed the {n}.",
    "the {n} was {adj}. {x} The {m} was also {adj}.",
    "{h} had a {adj} {n}. {x} {f} liked the {adj} {n}.",
)
ASIDE = ("It was a {#day}.", "Time went by.", "Some birds sang.", "{f} laughed.", "Then it rained.")
TITLES = ("Mr.", "Mrs.", "Miss", "Aunt", "Uncle", "Captain")


def spelled(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """A word as a name, with a capital, or as a word, without: it comes back as it was."""
    found = vocabulary(held_out)
    things = (found.animals, found.things, found.foods)
    n, m = two(rng, pick(rng, things))
    name = capital(pick(rng, ADJECTIVES) if not held_out and rng.random() < 0.4 else n)
    env = {**env, "a": pick(rng, found.animals), "N": name, "n": n, "m": m, "adj": pick(rng, ADJECTIVES)}
    env |= {"place": pick(rng, TRAINING.places), "title": pick(rng, TITLES)}
    env["x"] = expand(pick(rng, ASIDE), env, rng)
    return expand(pick(rng, NAMED if first else UNNAMED), env, rng), (), "tale"


GENDERED = {
    "she": ("Mom", "Grandma", "Aunt Rose", "the queen", "the princess", "the girl", "the woman", "the lady"),
    "he": ("Dad", "Grandpa", "Uncle Joe", "the king", "the prince", "the boy", "the man", "the old man"),
}
ONE_PERSON = (
    "{n} felt {state}, so {s} {told}.",
    "{n} was so {state} that {s} {told}.",
    "because {n} was {state}, {s} {told}.",
    "{n} looked for {p} {t} and found {p} {u}.",
    "{n} took {p} {t} and went to see {p} friends.",
    "they all waved to {n} and gave {o} a {t}.",
    "{n} sat down, and a {animal} came up to {o}. It liked {o}.",
    "{n} said that {s} had lost {p} {t}, and we all helped {o}.",
)
TWO_PERSONS = (
    "{m} had a {t}. {n} asked for the {t}, and soon [p{k} {s}] had the {t}.",
    "{m} <sang|read|slept>, and {n} came in with [p{k} {p}] {t}.",
    "{m} called out. {n} ran as fast as [p{k} {s}] could run.",
    "{m} was {state2}. {n} was {state}, so [p{k} {s}] {told}.",
    "{n} was {state}, but {m} was {state2}. So [p{k} {s}] {told}.",
    "{n} was {state}, so {m} went to help [p{k} {o}].",
    "{n} fell down, and {m} ran to help [p{k} {o}].",
    "{n} wanted to visit {m}, but [p{k} {s}] was late.",
)
_FORMS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}


def person(rng: Random, env: Env, k: str, held_out: str, first: bool, pair: bool) -> Passage:
    """He, she and their forms, with one person or with one of each."""
    found = vocabulary(held_out)
    sexes = ("she", "he") if rng.random() < 0.5 else ("he", "she")

    def name(sex: str) -> str:
        return (
            pick(rng, GENDERED[sex]) if rng.random() < 0.3 else pick(rng, found.girls if sex == "she" else found.boys)
        )

    names_and_state = draw("gender", held_out, lambda: (name(sexes[0]), name(sexes[1]), pick(rng, STATE_NAMES)))
    names, state = names_and_state[:2], names_and_state[2]
    s, o, p = _FORMS[sexes[0]]
    state2 = pick(rng, STATE_NAMES)
    while STATES[state2][0] == STATES[state][0]:
        state2 = pick(rng, STATE_NAMES)
    t, u = two(rng, found.things)
    env = {**env, "s": s, "o": o, "p": p, "pp": p, "state": state, "state2": state2, "t": t, "u": u, "k": k,
           "animal": pick(rng, found.animals), "n": names[0], "m": names[1]}  # fmt: skip
    env["told"] = expand(pick(rng, STATES[state][1]), env, rng)
    if rng.random() < 0.5:
        return _capitals(expand(pick(rng, ONE_PERSON), env, rng)), (), "state"
    heads = [name.removeprefix("the ") for name in names]
    env |= {x: name.replace(head, f"[{key}{k} {head}]")
            for x, key, name, head in zip("nm", "ab", names, heads, strict=True)}  # fmt: skip
    label = Label("gender", s, "p" + k, "a" + k, ("a" + k, "b" + k), "p" + k, names_and_state)
    return _capitals(expand(pick(rng, TWO_PERSONS), env, rng)), (label,), "state"


def _capitals(text: str) -> str:
    """The first letter of every sentence in upper case ("the king" may begin one)."""
    return text.replace(". the ", ". The ")


SAME_KIND = {"event": event, "state": state, "transfer": transfer}
OTHERS = {"winograd": winograd, "person": person, "spelled": spelled}
