"""Chat templates: the text is the transformers library's; time and memory of a template are limited."""

import json
import time
from pathlib import Path

import pytest
import tokenizers

import streamscope.models
from streamscope.cli.errors import InputError
from streamscope.text.chat import render
from streamscope.text.tokenizer import ROLES, Tokenizer

ZOO = Path(streamscope.models.__file__).parent / "zoo" / "gpt2" / "tokenizer.json"
CHAT = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": " What is gravity?\n"},
    {"role": "assistant", "content": "A   force"},
]
TEMPLATES = {
    "tools": "{% if tools is not none %}You have tools: {{ tools }}{% endif %}{{ messages[1].content }}",
    "documents": "{%- if documents is not none %}Read: {{ documents }}{% endif -%}\n{{ messages[1].content }}",
    "tools that are not given": "{% if tools is defined and tools %}tools{% else %}none{% endif %}{{ documents }}",
    "roles": "|".join(f"{{{{ {role} }}}}{{% if {role} is defined %}}!{{% endif %}}" for role in ROLES),
    "generation": (
        "{% set name = 'a' %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{% set name = 'b' %}{{ m.content }}{{ name }}<|im_end|>{% endgeneration %}{{ name }}\n"
        "{% else %}{{ m.role }}{% endif %}{% endfor %}"
    ),
    "loop control": "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
    "the reply": "{{ messages[0]['content'] | trim }}{% if add_generation_prompt %}\n<think>{% endif %}{{ thoughts }}",
}


@pytest.mark.parametrize("form", ["named", "unnamed", "no bos"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_the_librarys(name: str, form: str, tmp_path: Path) -> None:
    """From its files, from a library's tokenizer, and after saving; roles that the files do not name are undefined."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    backend = tokenizers.Tokenizer.from_str(ZOO.read_text())
    extra = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
    backend.add_special_tokens(list(extra.values()))
    backend.save(str(folder / "tokenizer.json"))
    told = {
        "named": extra,
        "unnamed": {},
        "no bos": {"bos_token": None, "pad_token": {"__type": "AddedToken", "content": "<pad>"}},
    }[form]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATES[name], **told}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    ours.save(tmp_path)
    for tokenizer in (ours, Tokenizer.load(tmp_path), Tokenizer.from_transformers(peer)):
        for reply in (False, True):
            want = peer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=reply)
            assert tokenizer.chat_text(CHAT, reply=reply) == want


BOMBS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{% set n = 10 %}{{ (n ** (n ** 8)) % 7 }}",
    "repetition": "{{ ('x' * 9000000000) | length }}",
    "a list": "{{ ([1] * 3000000000) | length }}",
    "padding": "{{ 'x'.center(3000000000) | length }}",
    "the filter center": "{{ ('x' | center(3000000000)) | length }}",
    "percent": "{{ ('%3000000000d' % 1) | length }}",
    "the filter format": "{{ ('%3000000000d' | format(1)) | length }}",
    "format": "{{ '{:>3000000000}'.format(1) | length }}",
    "replacement": "{{ 'a' | replace('a', 'b' * 99999) | replace('b', 'b' * 99999) | length }}",
    "doubling": "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
    "indentation": "{{ messages | tojson(indent=3000000000) | length }}",
    "a long text": "{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_time_and_memory_of_a_template_are_limited(name: str) -> None:
    """One line, after a few seconds of CPU time; the next chat is written as if nothing had happened."""
    with pytest.raises(InputError, match="chat template cannot write these messages: it ") as caught:
        render(BOMBS[name], CHAT, reply=True)
    assert "\n" not in str(caught.value)
    assert render("{{ messages[1].content }}", CHAT, reply=True) == CHAT[1]["content"]


def test_what_is_no_chat_is_refused_and_any_text_is_written() -> None:
    for bad in ([], [{"role": "user"}], [{"role": "user", "content": Path("x")}]):
        with pytest.raises(InputError, match="a chat is a list of messages"):
            render("x", bad, reply=True)  # type: ignore[arg-type]
    odd = [{"role": "user", "content": "é\ud800\u2028\n\0 🙂"}]
    start = time.perf_counter()
    for _ in range(200):
        assert render("{{ messages[0].content }}", odd, reply=True) == odd[0]["content"]
    assert time.perf_counter() - start < 30, "the process is started once"
