"""The process in which chat templates run: programs of somebody else, with limits on CPU time and memory.

`streamscope.text.chat` starts this file. Every line of its standard input is one
request (the parameters of `write`, as JSON), every line of its output one answer: {"text": …} or {"error": …}. It
imports nothing of ours, so that it starts quickly.
"""

import json
import math
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY, SECONDS = 2**29, 3
"""Largest address space in bytes, and CPU time of a request. Windows limits neither, macOS only time."""
LONGEST = 2**20  # longest text of a conversation, in characters


class Generation(Extension):
    """{% generation %} … {% endgeneration %}, which marks what the model wrote: its content, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


def fail(message: str) -> None:
    raise TemplateError(message)


@cache
def compiled(template: str) -> Template:
    """A template in Jinja's sandbox, with the functions that the transformers library gives it."""
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    jinja.filters["tojson"] = lambda x, **options: json.dumps(x, **{"ensure_ascii": False, **options})
    jinja.globals |= {"raise_exception": fail, "strftime_now": lambda form: datetime.now().strftime(form)}
    return jinja.from_string(template)


def write(template: str, variables: dict[str, Any]) -> str:
    """The text of a template. Raises `TemplateError` for a long one, and whatever the template raises."""
    parts, size = [], 0
    for part in compiled(template).generate(**variables):
        parts.append(part)
        if (size := size + len(part)) > LONGEST:
            raise TemplateError(f"it writes more than {LONGEST:,} characters")
    return "".join(parts)


def limit() -> None:
    """Let the system refuse memory beyond `MEMORY`, and end this process after `SECONDS` more of CPU time."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def serve() -> None:
    for line in sys.stdin:
        limit()
        try:
            answer = {"text": write(**json.loads(line))}
        except MemoryError:
            answer = {"error": "it needs too much memory"}
        except Exception as error:  # a template may raise anything
            answer = {"error": " ".join(str(error)[:1000].split())[:200] or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
