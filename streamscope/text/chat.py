"""Chat templates: the text that a model was trained to read for a conversation.

A template is a program of somebody else. It runs in Jinja's sandbox, in a process of its own (`chat_process`) with
limits on CPU time and memory, which is ended after `SECONDS`.
"""

import atexit
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Timer

from streamscope.cli.errors import InputError

SECONDS = 60.0
"""Longest wait for the text of a conversation, on a busy machine too; `chat_process.SECONDS` limits CPU time."""


def render(template: str, messages: Sequence[Mapping[str, str]], *, reply: bool, **tokens: str) -> str:
    """The text of `messages` ({"role", "content"}), with `reply` up to where the model answers.

    `tokens` are the special tokens by role (bos_token, eos_token, …). As in the transformers library, tools and
    documents are none, and roles without a token are undefined.
    """
    try:
        chat = [{**message, **{name: message[name] for name in ("role", "content")}} for message in messages]
        variables = {"messages": chat, "tools": None, "documents": None, "add_generation_prompt": reply, **tokens}
        request = json.dumps({"template": template, "variables": variables})
    except (KeyError, TypeError, ValueError):
        chat = []
    if not chat:
        raise InputError('a chat is a list of messages such as {"role": "user", "content": "Hello"}')
    answer = _process.answer(request)
    if "text" not in answer:
        raise InputError(f"the model's chat template cannot write these messages: {answer['error']}")
    return str(answer["text"])


class _Process:
    """`chat_process`, started at the first request, and again after one that it did not survive."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    def answer(self, request: str) -> dict[str, str]:
        with self._lock:
            if self._running is None or self._running.poll() is not None:  # a fork does not share its parent's process
                command = [sys.executable, "-P", str(Path(__file__).with_name("chat_process.py"))]
                self._running = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            process = self._running
            assert process.stdin is not None and process.stdout is not None
            timer = Timer(SECONDS, process.kill)
            timer.start()
            try:
                process.stdin.write(request.encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
            finally:
                timer.cancel()
            if not line:
                self.end()
                return {"error": "it needs too much time or memory"}
            return dict(json.loads(line))

    def end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None


_process = _Process()
