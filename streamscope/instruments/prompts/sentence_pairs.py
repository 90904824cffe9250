"""Published sets as pairs of sentences that a language model can score: the right mention against the wrong one.

    blimp:PATH      as published: sentence_good, sentence_bad
    wsc273:PATH     the blank replaced by either option
    winobias:PATH   the pronoun replaced by either occupation: "because the developer did not like the design"

Replacing lets the words after the pronoun decide, which is where most schemas are settled; a causal model scores the
whole sentence (Trinh & Le 2018, full scoring). Pairs that name the same two candidates are one unit of inference; those
of WinoBias that share one of their occupations are not independent either (`SentencePair.words`).
"""

import re
from collections.abc import Callable
from pathlib import Path

from streamscope.instruments.prompts.loaders import SentencePair, SentencePairs, blimp, schemas, winobias

ARTICLE = re.compile(r"(the|an?|his|her|their|my)\s", re.IGNORECASE)
POSSESSIVE = frozenset({"his", "their"})
AFTER_OBJECT = re.compile(
    r"(that|to|about|if|because|and|for|with|in|on|at|a|an|the|as|when|after|before|by|from|into|of|or|so)",
    re.IGNORECASE,
)
"""Words after "her" that make it an object ("asked her to stay") and not a possessive ("her idea")."""


def wsc273_pairs(path: str | Path) -> SentencePairs:
    """`{"qID", "sentence", "option1", "option2", "answer"}` with one blank "_" that either option fills.

    An option's article is capital only where a sentence begins. Raises `InputError` for a line of another format.
    """
    path = Path(path)
    pairs = []
    for name, sentence, right, wrong in schemas(path):
        at = sentence.index("_")
        good, bad = (_filled(sentence, at, at + 1, x) for x in (right, wrong))
        cluster = " / ".join(sorted((right.lower(), wrong.lower())))
        pairs.append(SentencePair(id=name, good=good, bad=bad, category="winograd", cluster=cluster))
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
        ending = "'s" if _possessive(p.text, start, end) else ""
        named = [p.text[slice(*p.roles[role])] for role in ("target", "distractor")]
        good, bad = (_filled(p.text, start, end, f"the {name}{ending}") for name in named)
        words = (named[0].lower(), named[1].lower())
        cluster = " / ".join(sorted(words))
        pairs.append(SentencePair(id=p.id, good=good, bad=bad, category=p.category, cluster=cluster, words=words))
    return SentencePairs(suite.name, tuple(pairs), suite.source, tuple(skipped))


def _possessive(text: str, start: int, end: int) -> bool:
    pronoun = text[start:end].lower()
    after = re.match(r"\s+(\w+)", text[end:])
    return pronoun in POSSESSIVE or (pronoun == "her" and after is not None and not AFTER_OBJECT.fullmatch(after[1]))


def _filled(text: str, start: int, end: int, mention: str) -> str:
    """The text with [start, end) replaced by a mention, whose article is capital only where a sentence begins."""
    opens = start == 0 or text[:start].rstrip()[-1:] in tuple(".!?")
    if opens:
        mention = mention[0].upper() + mention[1:]
    elif ARTICLE.match(mention):
        mention = mention[0].lower() + mention[1:]
    return text[:start] + mention + text[end:]


PAIRS: dict[str, Callable[[str | Path], SentencePairs]] = {
    "blimp": blimp,
    "wsc273": wsc273_pairs,
    "winobias": winobias_pairs,
}
