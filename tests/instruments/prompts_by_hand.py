"""A prompt made by hand, what suites hold, and a tokenizer of the built-in stories."""

from functools import cache

from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.suite import Prompt, Suite
from streamscope.text.stories import documents
from streamscope.text.tokenizer import Tokenizer

TEXT = "Tim saw a key and a box. He used it to open the"
ROLES = {"query": (33, 35), "target": (10, 13), "distractor": (20, 23)}


def prompt_of(name: str = "p", text: str = TEXT, **changes: object) -> Prompt:
    roles = {**ROLES, **changes.pop("roles", {})}  # type: ignore[dict-item]
    return Prompt(**{"id": name, "text": text, "roles": roles, "category": "c", **changes})  # type: ignore[arg-type]


def words_of(prompt: Prompt) -> dict[str, str]:
    return {role: prompt.text[start:end] for role, (start, end) in prompt.roles.items()}


@cache
def suite_of(name: str) -> Suite:
    return load_suite(name, n=200) if name == "stories" else load_suite(name)


@cache
def stories_tokenizer() -> Tokenizer:
    return Tokenizer.train([*documents(0, 1000), *[TEXT] * 300], 1024)
