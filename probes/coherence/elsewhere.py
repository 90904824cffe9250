"""The control of coherence: the same question after another prompt's nouns.

"Mia found a crayon and a basket. She used it to draw. She looked at the" can be answered without its first sentence,
from the verb alone. So the sentences with the nouns are replaced by those of another prompt of the same relation, whose
nouns are of the same kinds but other words. The remaining log-odds are not due to the nouns of the text.

    own text        opening_i + rest_i
    elsewhere       opening_j + rest_i      j of another pair, same relation, no noun of i in it,
                                            its rest begins with the same word
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamscope.instruments.prompts.alignment import Aligned, align
from streamscope.instruments.prompts.suite import Prompt, Suite

_END = re.compile(r"[.!?][\"'”’]?\s+")
NO_CONTROL = "its nouns have no sentence of their own before the query, or no other prompt fits"


def opening(prompt: Prompt) -> int | None:
    """Characters up to the end of the sentence with the last noun; None if the query lies inside it."""
    nouns = [span for role, span in prompt.roles.items() if role != "query"]
    if not nouns:
        return None
    end = _END.search(prompt.text, max(stop for _, stop in nouns))
    return end.end() if end is not None and end.end() <= prompt.roles["query"][0] else None


def with_other_openings(aligned: Aligned, seed: int = 0) -> Suite | None:
    """The prompts that can have a control, each after another's opening; None if there is none.

    Ids and continuations stay; of the roles only the query stays. `seed` draws the donor among those that fit.
    """
    cut = {p.id: opening(p) for p in aligned.prompts if p.coherent is not None}
    usable = [p for p in aligned.prompts if cut.get(p.id) is not None]
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str | None, str], list[Prompt]] = {}
    for p in usable:
        groups.setdefault((p.relation, _first_word(p, cut)), []).append(p)
    made = []
    for p in usable:
        donors = groups[p.relation, _first_word(p, cut)]
        for i in rng.permutation(len(donors))[:50]:
            donor, stop, own = donors[i], cut[donors[i].id], cut[p.id]
            assert stop is not None and own is not None
            other = donor.text[:stop]
            if (donor.pair or donor.id) != (p.pair or p.id) and not _names(p) & set(re.findall(r"\w+", other.lower())):
                start, end = p.roles["query"]
                roles = {"query": (start - own + stop, end - own + stop)}
                made.append(replace(p, text=other + p.text[own:], roles=roles, pair=None, order=None))
                break
    return Suite(f"{seed}-elsewhere", tuple(made), "other prompts' openings") if made else None


def _first_word(prompt: Prompt, cut: Mapping[str, int | None]) -> str:
    found = re.match(r"\W*(\w+)", prompt.text[cut[prompt.id] :])
    return found[1] if found else ""


def _names(prompt: Prompt) -> set[str]:
    """The words of its nouns."""
    spans = [span for role, span in prompt.roles.items() if role != "query"]
    return {word for start, end in spans for word in re.findall(r"\w+", prompt.text[start:end].lower())}


def aligned_control(aligned: Aligned, tokenizer: Any, n_ctx: int | None = None) -> Aligned | None:
    """`with_other_openings` in tokens."""
    suite = with_other_openings(aligned)
    return None if suite is None else align(suite, tokenizer, n_ctx)
