"""Entities, syntactic anchors, content: the class of every token of a prompt, by form and by the prompt's roles."""

import re
from collections.abc import Sequence

from streamscope.instruments.prompts.suite import Prompt

CLASSES = ("entity", "anchor", "semantic")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRONOUNS = _words(
    """i me my mine you your yours he him his she her hers it its we us our ours they them their theirs himself herself
    itself themselves myself yourself ourselves"""
)
FUNCTION = _words(
    """a an the this that these those some any no every each all both another of to in on at by for from with without
    into onto over under up down out off near beside behind before after about around across through along past until
    and or but so nor yet because if when while as than then there not is am are was were be been being do does did have
    has had will would can could shall should may might must who whom whose which what where why how"""
)


def token_classes(prompt: Prompt, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The class of every token, "" for none; a token belongs to the first word it overlaps, BOS to none."""
    mentions = {prompt.text[slice(*span)].lower() for role, span in prompt.roles.items() if role != "query"}
    words = []
    for match in re.finditer(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]", prompt.text):
        word, prefix = match[0], prompt.text[: match.start()].rstrip(" \n\"'")
        opens = not prefix or prefix[-1] in ".!?"
        if not word[0].isalnum():
            kind = "anchor"
        elif word.lower() in PRONOUNS:
            kind = ""
        elif word.lower() in mentions or (word[0].isupper() and not opens):
            kind = "entity"
        else:
            kind = "anchor" if word.lower() in FUNCTION else "semantic"
        words.append((*match.span(), kind))
    marked = [span for role, span in prompt.roles.items() if role != "query"]
    words = [(a, b, "entity" if any(a < end and start < b for start, end in marked) else c) for a, b, c in words]
    return [next((c for a, b, c in words if max(a, start) < min(b, end)), "") for start, end in spans]
