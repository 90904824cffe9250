"""Chat templates: the text that a model was trained to read for a conversation.

A template is a program of somebody else. It runs in Jinja's `ImmutableSandboxedEnvironment`, with the functions that
the transformers library gives it: `raise_exception`, `strftime_now`, and the filter `tojson`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from streamscope.cli.disk import read_bytes, read_json
from streamscope.cli.errors import InputError

TEMPLATE = "chat_template.jinja"
"""File of a run or Hugging Face folder with its template."""
REMEDY = "download it again"
LONGEST = 2**20
"""Longest text of a conversation, in characters."""


def read_template(folder: Path) -> str | None:
    """The template of a folder, from chat_template.jinja, else tokenizer_config.json (of several the one named
    default); or None."""
    if (folder / TEMPLATE).is_file():
        return read_bytes(folder / TEMPLATE, REMEDY).decode("utf-8-sig", errors="replace")
    path = folder / "tokenizer_config.json"
    fields = read_json(path, dict[str, Any], REMEDY, any_int=True) if path.is_file() else {}
    found = fields.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def render(template: str, messages: Sequence[Mapping[str, str]], *, reply: bool, **tokens: str) -> str:
    """The text of `messages` ({"role", "content"}), with `reply` up to where the model answers.

    `tokens` are the special tokens by role (bos_token, eos_token). Raises `InputError` for messages of another form and
    a template that fails or needs what the sandbox forbids.
    """
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    fields = {"role", "content"}
    if not messages or not all(isinstance(one, Mapping) and fields <= one.keys() for one in messages):
        raise InputError('a chat is a list of messages such as {"role": "user", "content": "Hello"}')

    def fail(message: str) -> None:
        raise TemplateError(message)

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja.filters["tojson"] = lambda x, **options: json.dumps(x, **{"ensure_ascii": False, **options})
    jinja.globals |= {"raise_exception": fail, "strftime_now": lambda form: datetime.now().strftime(form)}
    chat = [dict(one) for one in messages]
    try:
        parts: list[str] = []
        size = 0
        for part in jinja.from_string(template).generate(messages=chat, add_generation_prompt=reply, **tokens):
            parts.append(part)
            if (size := size + len(part)) > LONGEST:
                raise TemplateError(f"it writes more than {LONGEST:,} characters")
        return "".join(parts)
    except Exception as error:  # a template may raise anything
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model's chat template cannot write these messages: {reason}") from None
