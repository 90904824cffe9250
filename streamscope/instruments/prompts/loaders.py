"""Readers of published evaluation sets: each turns one file into a `Suite`, or BLiMP into pairs of sentences.

    winobias(path)     WinoBias, `pro_stereotyped_type1.txt.dev` and its like (Zhao et al. 2018)
    wsc273(path)       Winograd schemas as JSON lines with a blank "_" (sentence, option1, option2, answer)
    wsc285(path)       Winograd schemas, `WSCollection.xml` (Davis, Morgenstern & Ortiz)
    winogender(path)   Winogender, `all_sentences.tsv` (Rudinger et al. 2018)
    gap(path)          GAP, `gap-*.tsv` (Webster et al. 2018)
    blimp(path)        BLiMP, one paradigm as JSON lines (Warstadt et al. 2020)

What entries share goes with them, so that intervals know it: WinoBias its pairs of occupations and either occupation,
Winogender the occupation and the participant, Winograd schemas their two answers, GAP the page.

Roles hold a mention without its article. None of these sets has minimal pairs in the sense of LFA (two orders of the
same nouns), so their prompts have no `pair`. An entry that cannot be a prompt is listed in `Suite.skipped` with its
reason; a line of another format raises `InputError` with file, line and what was expected.
"""

import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts.suite import Prompt, Suite, order_of
from streamscope.text.readers import check_content, json_lines, numbered_lines, strings

Roles = dict[str, tuple[int, int]]
Entry = Prompt | tuple[str, str]  # A prompt; or the id of an entry that cannot be one, and why
PRONOUNS = frozenset({"he", "him", "his", "she", "her", "hers", "they", "them", "their", "theirs"})
# the forty of WinoBias (Zhao et al. 2018, Table 1), as its sentences spell them
OCCUPATIONS = (
    "accountant", "analyst", "assistant", "attendant", "auditor", "baker", "carpenter", "cashier", "CEO", "chief",
    "cleaner", "clerk", "construction worker", "cook", "counselor", "designer", "developer", "driver", "editor",
    "farmer", "guard", "hairdresser", "housekeeper", "janitor", "laborer", "lawyer", "librarian", "manager", "mechanic",
    "mover", "nurse", "physician", "receptionist", "salesperson", "secretary", "sheriff", "supervisor", "tailor",
    "teacher", "writer",
)  # fmt: skip
GAP_COLUMNS = (
    "ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL",
)  # fmt: skip


def _expect(ok: Any, place: str, expected: str, line: str) -> None:
    if not ok:
        raise InputError(f"{place}: expected {expected}, found {line[:60]!r}")


def _bare(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters of a mention without surrounding space and without its article."""
    match = re.match(r"\s*(?:(?:the|an?)\s+)?", text[start:end], re.IGNORECASE)
    first = start + (match.end() if match else 0)
    return first, first + len(text[first:end].rstrip())


def _mention(text: str, name: str) -> tuple[int, int] | None:
    """The last place in `text` where `name` stands as whole words, article and case aside; else its last word."""
    bare = name[slice(*_bare(name, 0, len(name)))]
    for words in dict.fromkeys((bare, bare.split()[-1] if bare.split() else "")):
        spans = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE)]
        if words and spans:
            return spans[-1]
    return None


def _loader(generator: Callable[[Path], Iterator[Entry]]) -> Callable[[str | Path], Suite]:
    """Collect the entries that a generator reads from a file in a suite that is called after the file."""

    @wraps(generator)
    def load(path: str | Path) -> Suite:
        path = Path(path)
        entries = list(generator(path))
        prompts = tuple(entry for entry in entries if isinstance(entry, Prompt))
        return Suite(path.stem, prompts, str(path), tuple(entry for entry in entries if isinstance(entry, tuple)))

    return load


def winobias(path: str | Path) -> Suite:
    """One prompt per bracketed pronoun; the competitor is the other occupation named before it.

    Sentences about the same two occupations are one unit, and sentences that share either of them are not independent.

    Lines such as `1 [The developer] argued with the designer because [she] did not like the design.`
    The category is the file's name without its suffixes, as `anti_stereotyped_type1`.
    """
    path = Path(path)
    prompts, category = [], path.name.split(".")[0]
    for place, line in numbered_lines(path):
        match = re.fullmatch(r"\s*(\d+)\s+(.*\S)\s*", line)
        number, sentence = match.groups() if match else ("", "")
        brackets = list(re.finditer(r"\[([^\[\]]*)\]", sentence))
        text = re.sub(r"\[([^\[\]]*)\]", r"\1", sentence)
        marks = [(m.start() - 2 * i, m.end() - 2 * i - 2) for i, m in enumerate(brackets)]
        pronouns = [m for m in marks if text[slice(*m)].strip().lower() in PRONOUNS]
        entities = [m for m in marks if m not in pronouns]
        expected = "a number and a sentence with [an occupation] and [pronouns] in brackets"
        _expect(len(entities) == 1 and pronouns and not {*"[]"} & {*text}, place, expected, line)
        target = _bare(text, *entities[0])
        spans = [m.span() for o in OCCUPATIONS for m in re.finditer(rf"\b{o}\b", text, re.IGNORECASE)]
        others = [(start, end) for start, end in spans if not (start < target[1] and target[0] < end)]
        competitor = text[slice(*others[0])] if others else "none"
        words = {"target": text[slice(*target)].lower(), "competitor": competitor.lower()}
        for k, pronoun in enumerate(pronouns):
            query = _bare(text, *pronoun)
            distractors = sorted(span for span in others if span[1] <= query[0])
            names = ("distractor", *(f"distractor{i}" for i in range(2, len(distractors) + 1)))
            roles = {"query": query, "target": target, **dict(zip(names, distractors, strict=False))}
            prompts.append(
                Prompt(
                    id=f"{category}-{number}" + (f"-{k + 1}" if len(pronouns) > 1 else ""), text=text, roles=roles,
                    order=order_of(roles), category=category, cluster=_pair(*words.values()), words=words,
                )
            )  # fmt: skip
    return Suite(category, tuple(prompts), str(path))


def _pair(a: str, b: str) -> str:
    return " / ".join(sorted((a.lower(), b.lower())))


def _two_candidates(
    name: str, text: str, query: tuple[int, int], right: str, wrong: str, category: str, cluster: str | None = None,
    words: dict[str, str] | None = None,
) -> Entry:  # fmt: skip
    """A prompt whose candidates are looked for by their words before the query; by default a unit with all of both."""
    prefix = text[: query[0]]
    target, distractor = _mention(prefix, right), _mention(prefix, wrong)
    if target is None or distractor is None:
        return name, f"the {'antecedent' if target is None else 'competitor'} is not named before the query"
    if target[0] < distractor[1] and distractor[0] < target[1]:
        return name, "antecedent and competitor are not named apart"
    roles, cluster = {"query": query, "target": target, "distractor": distractor}, cluster or _pair(right, wrong)
    return Prompt(
        id=name, text=text, roles=roles, order=order_of(roles), category=category, cluster=cluster, words=words
    )


def schemas(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(id, sentence with one blank "_", right option, wrong option) of each line of a file of `wsc273`."""
    for place, row in json_lines(path, "a schema as JSON with sentence, option1, option2 and answer"):
        name, sentence, first, second, answer = strings(place, row, ("qID", "sentence", "option1", "option2", "answer"))
        is_schema = sentence.count("_") == 1 and answer in ("1", "2")
        _expect(is_schema, place, "one blank '_' in the sentence and answer 1 or 2", answer)
        yield name, sentence, *((first, second) if answer == "1" else (second, first))


@_loader
def wsc273(path: Path) -> Iterator[Entry]:
    """Winograd schemas whose pronoun was replaced by a blank: the text up to the blank.

    `{"qID", "sentence", "option1", "option2", "answer": "1" or "2"}`. The file does not say which pronoun it was, so
    the query is the last word before the blank, where a causal model predicts what fills it. What settles a
    schema mostly comes after the blank, and a causal model has not read it there: see `wsc285` for the same limit.
    """
    for name, sentence, right, wrong in schemas(path):
        text = sentence.split("_")[0].rstrip()
        word = re.search(r"\S+$", text)
        if word is None:
            yield name, "the sentence starts with the blank"
            continue
        yield _two_candidates(name, text, word.span(), right, wrong, "winograd")


@_loader
def wsc285(path: Path) -> Iterator[Entry]:
    """`WSCollection.xml`: the whole sentence, its pronoun as query, the two answers at their mentions before it.

    What settles a schema mostly comes after the pronoun, so attention from the pronoun of a causal model shows
    its preference before the fact; the files serve as text with roles, not as a test of understanding.
    """
    import xml.etree.ElementTree as ElementTree

    expected = "expected an XML collection of <schema> with <text>, <answers> and <correctAnswer>"
    check_content(path)
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        raise InputError(f"{path}:{error.position[0]}: {expected} ({error})") from None
    schemas = list(root.iter("schema"))
    if not schemas:
        raise InputError(f"{path}:1: {expected}, found <{root.tag}> without any")
    for i, schema in enumerate(schemas):
        texts = (schema.findtext(f"text/{part}") or "" for part in ("txt1", "pron", "txt2"))
        prefix, pronoun, suffix = (" ".join(text.split()) for text in texts)
        answers = [" ".join((a.text or "").split()) for a in schema.findall("answers/answer")]
        letter = (schema.findtext("correctAnswer") or "").strip().rstrip(".")
        is_whole = prefix and pronoun and len(answers) == 2 and letter in ("A", "B")
        _expect(is_whole, f"{path}: schema {i + 1}", "txt1, pron, two answers and A or B", letter)
        right, wrong = answers if letter == "A" else answers[::-1]
        query = (len(prefix) + 1, len(prefix) + 1 + len(pronoun))
        text = f"{prefix} {pronoun}{'' if suffix[:1] in tuple(',.;:!?') else ' '}{suffix}".rstrip()
        yield _two_candidates(f"wsc285-{i:03d}", text, query, right, wrong, "winograd")


def _below(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The numbered lines below a header of columns, with tabs between."""
    lines = numbered_lines(path)
    place, header = next(lines)
    _expect(tuple(header.split("\t")) == columns, place, f"the header {'<TAB>'.join(columns)}", header)
    yield from lines


@_loader
def winogender(path: Path) -> Iterator[Entry]:
    """`all_sentences.tsv`: a header `sentid<TAB>sentence`, ids as `technician.customer.1.male.txt`.

    The number says who is meant, 0 the occupation and 1 the participant; the pronoun is the first of the id's gender.
    Sentences about "someone" keep the word as mention. The category is `winogender-male` and so on. The 720 sentences
    are 120 templates of 60 occupations: an occupation is one unit, and some share their participant. The template's
    two sentences often are the same up to the pronoun (`attention.undecided`).
    """
    forms = {"male": "he|him|his", "female": "she|her|hers", "neutral": "they|them|their|theirs"}
    for place, line in _below(path, ("sentid", "sentence")):
        name, _, text = line.partition("\t")
        parts = name.split(".")
        is_sentence = len(parts) == 5 and parts[2] in ("0", "1") and parts[3] in forms and text.strip()
        _expect(is_sentence, place, "an id such as technician.customer.1.male.txt, a tab and a sentence", line)
        pronoun = re.search(rf"\b({forms[parts[3]]})\b", text, re.IGNORECASE)
        if pronoun is None:
            raise InputError(f"{place}: no {parts[3]} pronoun in {text[:60]!r}")
        right, wrong = parts[:2] if parts[2] == "0" else parts[1::-1]
        someone = parts[1] if parts[1] != "someone" else f"someone beside the {parts[0]}"
        yield _two_candidates(
            name.removesuffix(".txt"), text, pronoun.span(), right, wrong, f"winogender-{parts[3]}",
            cluster=parts[0], words={"participant": someone},
        )  # fmt: skip


@_loader
def gap(path: Path) -> Iterator[Entry]:
    """`gap-*.tsv`: eleven columns with offsets of the pronoun and of the names A and B.

    An entry in which neither name is meant has no target and is skipped. A name after the pronoun stays: `align`
    filters it.
    """
    for place, line in _below(path, GAP_COLUMNS):
        cells = line.split("\t")
        row = dict(zip(GAP_COLUMNS, cells, strict=False))
        spans: Roles = {}
        for name in ("Pronoun", "A", "B"):
            offset, words = row.get(f"{name}-offset", ""), row.get(name, "")
            spans[name] = (int(offset), int(offset) + len(words)) if offset.isdecimal() else (0, 0)
            if not words or row["Text"][slice(*spans[name])] != words:
                raise InputError(f"{place}: expected {name} {words!r} at character {offset!r} of the text")
        corefers = (row.get("A-coref", ""), row.get("B-coref", ""))
        if len(cells) != len(GAP_COLUMNS) or not set(corefers) <= {"TRUE", "FALSE"}:
            raise InputError(f"{place}: expected {len(GAP_COLUMNS)} columns, and TRUE or FALSE for A and B")
        if corefers[0] == corefers[1]:
            yield row["ID"], f"{'both names are' if corefers[0] == 'TRUE' else 'neither name is'} meant"
            continue
        right, wrong = ("A", "B") if corefers[0] == "TRUE" else ("B", "A")
        roles = {"query": spans["Pronoun"], "target": spans[right], "distractor": spans[wrong]}
        yield Prompt(
            id=row["ID"], text=row["Text"], roles=roles, order=order_of(roles), category="gap", cluster=row["URL"]
        )


FORMATS: dict[str, Callable[[str | Path], Suite]] = {
    "winobias": winobias, "wsc273": wsc273, "wsc285": wsc285, "winogender": winogender, "gap": gap,
}  # fmt: skip


SentencePair = namedtuple("SentencePair", ("id", "good", "bad", "category", "cluster", "words"), defaults=(None, ()))
"""Two sentences that differ in one point: a model should find `good` more probable than `bad`.

Pairs that share a `cluster` are one unit of inference; `words` are what pairs share crosswise, as many for each
(`suite.Prompt.words`).
"""
SentencePairs = namedtuple("SentencePairs", ("name", "pairs", "source", "skipped"), defaults=((),))
"""Minimal pairs of sentences under one name; `skipped`: entries of the source that cannot be pairs, and why."""


def blimp(path: str | Path) -> SentencePairs:
    """One BLiMP paradigm: `{"sentence_good", "sentence_bad", "UID", "pairID", …}` on each line."""
    path = Path(path)
    pairs = []
    for place, row in json_lines(path, "a pair as JSON with sentence_good and sentence_bad"):
        good, bad, paradigm, number = strings(place, row, ("sentence_good", "sentence_bad", "UID", "pairID"))
        _expect(good != bad, place, "two different sentences", f"{good[:53]} twice")
        pairs.append(SentencePair(id=f"{paradigm}-{number}", good=good, bad=bad, category=paradigm))
    return SentencePairs(path.stem, tuple(pairs), str(path))


# ---- pairs of sentences to score: the right mention against the wrong one -------------------------
#
# The blank of wsc273 is replaced by either option, the pronoun of WinoBias by either occupation: "because the developer
# did not like the design". Replacing lets the words after the pronoun decide, which is where most schemas are settled;
# a causal model scores the whole sentence (Trinh & Le 2018, full scoring). Pairs that name the same two candidates are
# one unit of inference; those of WinoBias that share one of their occupations are not independent either.


ARTICLE = re.compile(r"(the|an?|his|her|their|my)\s", re.IGNORECASE)
AFTER_OBJECT = re.compile(
    r"(that|to|about|if|because|and|for|with|in|on|at|a|an|the|as|when|after|before|by|from|into|of|or|so)",
    re.IGNORECASE,
)
"""Words after "her" that make it an object ("asked her to stay") and not a possessive ("her idea")."""


def wsc273_pairs(path: str | Path) -> SentencePairs:
    """`{"qID", "sentence", "option1", "option2", "answer"}` with one blank "_" that either option fills.

    An option's article is capital only where a sentence begins.
    """
    path = Path(path)
    pairs = []
    for name, sentence, right, wrong in schemas(path):
        blank = sentence.index("_")
        good, bad = (_filled(sentence, blank, blank + 1, x) for x in (right, wrong))
        pairs.append(SentencePair(id=name, good=good, bad=bad, category="winograd", cluster=_pair(right, wrong)))
    return SentencePairs(path.stem, tuple(pairs), str(path))


def winobias_pairs(path: str | Path) -> SentencePairs:
    """Every pronoun of `loaders.winobias` whose competitor is named before it, replaced by either occupation.

    his, their and a possessive her become "the developer's"; other pronouns "the developer".
    """
    suite = winobias(path)
    pairs, skipped = [], list(suite.skipped)
    for p in suite.prompts:
        if "distractor" not in p.roles:
            skipped.append((p.id, "the competitor is not named before the pronoun"))
            continue
        start, end = p.roles["query"]
        pronoun, next_word = p.text[start:end].lower(), re.match(r"\s+(\w+)", p.text[end:])
        her = pronoun == "her" and next_word is not None and not AFTER_OBJECT.fullmatch(next_word[1])
        ending = "'s" if pronoun in ("his", "their") or her else ""
        names = [p.text[slice(*p.roles[role])] for role in ("target", "distractor")]
        good, bad = (_filled(p.text, start, end, f"the {name}{ending}") for name in names)
        words, cluster = (names[0].lower(), names[1].lower()), _pair(*names)
        pairs.append(SentencePair(id=p.id, good=good, bad=bad, category=p.category, cluster=cluster, words=words))
    return SentencePairs(suite.name, tuple(pairs), suite.source, tuple(skipped))


def _filled(text: str, start: int, end: int, mention: str) -> str:
    """The text with [start, end) replaced by a mention, whose article is capital only where a sentence begins."""
    opens = start == 0 or text[:start].rstrip()[-1:] in tuple(".!?")
    if opens:
        mention = mention[0].upper() + mention[1:]
    elif ARTICLE.match(mention):
        mention = mention[0].lower() + mention[1:]
    return text[:start] + mention + text[end:]


PAIRS: dict[str, Callable[[str | Path], SentencePairs]] = {
    "blimp": blimp, "wsc273": wsc273_pairs, "winobias": winobias_pairs,
}  # fmt: skip
