"""The local server: who may ask, what is refused in one line, and that answers come in order and equal torch's."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays
from starlette.testclient import TestClient

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.hooks import capture, edit
from streamscope.models.hooks.controls import edits_of
from streamscope.viewer.server import LARGEST, application
from streamscope.viewer.session import Shown, open_models, page_data
from streamscope.viewer.view import main
from tests.tiny import refused

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token"
ORIGIN = "http://127.0.0.1:8080"
EDITS = {"heads": {"L2.H3": {"scale": 0}}, "streams": {"context": "unembedding"}}


@pytest.fixture(scope="module")
def client() -> TestClient:
    shown = open_models(["stories/lfa", "stories/std-t"])
    return TestClient(application(shown, "", TOKEN, 8080), base_url=ORIGIN)


def ask(client: TestClient, kind: str, question: Any, **headers: str) -> Any:
    return client.post(f"/{kind}", json=question, headers={"X-Streamscope-Token": TOKEN, **headers})


def question(**other: Any) -> dict[str, Any]:
    return {"model": "lfa", "step": None, "tokens": [0, 5, 6, 7, 8], "edits": {}, **other}


def test_the_page_needs_its_token_and_holds_json_without_it(client: TestClient) -> None:
    page = client.get(f"/?token={TOKEN}")
    for address in ("/", "/?token=", "/?token=wrong", "/?token=%C3%A9"):
        answer = client.get(address)
        assert answer.status_code == 403 and "token" in answer.json()["error"]
    assert ask(client, "run", question(), **{"X-Streamscope-Token": "wrong"}).status_code == 403
    assert client.post("/run", json=question()).status_code == 403
    for answer in (page, client.get("/"), ask(client, "run", question())):
        assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
    assert page.status_code == 200 and TOKEN not in page.text, "no address leaves the machine"
    data = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page.text, re.DOTALL)
    assert data is not None and [one["id"] for one in json.loads(data[1])["models"]] == ["lfa", "std-t"]
    assert '"state":{"second":"std-t"}' in page.text, "two models are next to each other from the start"
    assert page_data(open_models(["stories/lfa"]), "server")["state"] == {}


def test_a_foreign_host_is_refused(client: TestClient) -> None:
    for host in ("example.org", "example.org:8080", "127.0.0.1", "127.0.0.1:8081"):
        answer = client.get(f"/?token={TOKEN}", headers={"Host": host})
        assert answer.status_code == 403 and answer.json()["error"] == "this server only answers on this machine"
        assert ask(client, "run", question(), Host=host).status_code == 403
    assert client.get(f"/?token={TOKEN}", headers={"Host": "localhost:8080"}).status_code == 200


@torch.no_grad()
def test_numbers_are_those_of_torch(client: TestClient) -> None:
    model, tokens = load("stories/lfa"), torch.tensor([question()["tokens"]])
    with edit(model, edits_of(EDITS, model)), capture(model, "blocks.*.attn.hook_pattern") as seen:
        logits = model(tokens)
    got = load_arrays(ask(client, "run", question(edits=EDITS)).content)
    assert set(got) == {"logits", "patterns"}
    np.testing.assert_allclose(got["logits"], logits[0], atol=1e-4)
    np.testing.assert_allclose(got["patterns"], torch.cat(list(seen.values())), atol=1e-5)
    lens = load_arrays(ask(client, "lens", question(edits=EDITS, stream=2)).content)
    with edit(model, edits_of({"heads": EDITS["heads"]}, model)):
        p, best = model.layer_logits(tokens)[0].softmax(-1).topk(5)  # [T, L, 5]
    np.testing.assert_allclose(lens["lens_p"][1:-1], p.transpose(0, 1)[:-1], atol=1e-5)
    np.testing.assert_array_equal(lens["lens_ids"][1:-1, :, 0], best.transpose(0, 1)[:-1, :, 0])
    np.testing.assert_allclose(lens["lens_p"][-1], logits[0].softmax(-1).topk(5).values, atol=1e-5)


def test_fifty_updates_at_once_are_answered_in_their_order(client: TestClient) -> None:
    asked = [question(edits={"heads": {"L0.H0": {"scale": i / 25 - 1}}}) for i in range(50)]
    expected = [load_arrays(ask(client, "run", one).content)["logits"] for one in asked]
    got: dict[int, np.ndarray] = {}

    async def together() -> None:
        how: Any = {"transport": httpx.ASGITransport(client.app), "headers": {"X-Streamscope-Token": TOKEN}}
        async with httpx.AsyncClient(base_url=ORIGIN, **how) as own:

            async def one(i: int) -> None:
                got[i] = load_arrays((await own.post("/run", json=asked[i])).content)["logits"]

            await asyncio.gather(*map(one, range(50)))

    asyncio.run(together())
    assert list(got) == list(range(50))
    for i in got:
        np.testing.assert_array_equal(got[i], expected[i])
    assert np.abs(got[0] - got[49]).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "asked", "line"),
    [
        ("run", {"model": "x"}, "a question names a model of this page: lfa, std-t"),
        ("run", [1], "a question names a model of this page: lfa, std-t"),
        ("run", question(tokens=[0]), "give 2 to 128 token ids below 2048"),
        ("run", question(tokens=[0] * 129), "give 2 to 128 token ids below 2048"),
        ("run", question(tokens=[0, 2048]), "give 2 to 128 token ids below 2048"),
        ("run", question(tokens=[0, True]), "give 2 to 128 token ids below 2048"),
        ("run", question(edits=[]), "edits must be an object"),
        ("run", question(edits={"heads": {"L9.H9": {"scale": 0}}}), "'L9.H9': this model has layers 0 to 5"),
        ("run", question(step=7), "stories/lfa has no snapshot 7; it has none"),
        ("run", {"model": ["lfa"]}, "a question names a model of this page: lfa, std-t"),
        ("lens", question(), "lens needs a stream"),
        ("lens", question(stream=3), "the lens reads streams 0 to 2, not 3"),
        ("tokenize", {"model": "lfa"}, "tokenize needs a text"),
        ("load", question(), "unknown question 'load': .*"),
    ],
)
def test_a_wrong_question_is_one_line(client: TestClient, kind: str, asked: Any, line: str) -> None:
    answer = ask(client, kind, asked)
    assert answer.status_code == 400 and re.fullmatch(line, answer.json()["error"])


def test_what_is_no_question(client: TestClient) -> None:
    headers = {"X-Streamscope-Token": TOKEN}
    for content in (b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000):
        answer = client.post("/run", content=content, headers=headers)
        assert answer.status_code == 400 and answer.json() == {"error": "a question is JSON"}
    large = client.post("/run", content=b" " * (LARGEST + 1), headers=headers)
    assert large.status_code == 400 and large.json() == {"error": "a question has at most 1,048,576 bytes"}


def test_text_is_tokens_without_bos(client: TestClient) -> None:
    text = "Lily had a red ball. <|endoftext|> 🙂"
    tokenizer = load("stories/lfa").tokenizer
    assert tokenizer is not None
    assert ask(client, "tokenize", {"model": "lfa", "text": text}).json() == {"ids": tokenizer.encode(text, bos=False)}


def test_snapshots_answer_with_their_own_weights() -> None:
    shown = open_models(["stories/lfa@all"])
    assert shown[0].steps[0] == 512 and shown[0].name == "stories/lfa"
    client = TestClient(application(shown, "", TOKEN, 8080), base_url=ORIGIN)
    for step, name in ((1000, "stories/lfa@1000"), (None, "stories/lfa"), (shown[0].steps[-1], "stories/lfa")):
        with torch.no_grad():
            expected = load(name)(torch.tensor([question()["tokens"]]))[0]
        found = load_arrays(ask(client, "run", question(step=step)).content)["logits"]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    half = open_models(["stories/lfa@all"], dtype="bf16")[0]
    assert {p.dtype for step in (None, 1000) for p in half.at_step(step).parameters()} == {torch.bfloat16}


def test_the_text_must_fit_and_the_models_open() -> None:
    shown, untexted = open_models(["stories/lfa"]), load("stories/lfa")
    untexted.tokenizer = None
    for call, line in (
        (lambda: page_data(shown, "server", "word " * 200),
         r"^the text has \d+ tokens, the context of stories/lfa only 128: shorten it$"),
        (lambda: open_models(["lfa", "stories/lfa"]), "^stories/lfa is named twice$"),
        (lambda: open_models(["stories/lfa"] * 3), "one model or two next to each other, not 3"),
        (lambda: open_models(["stories/std-t@all"]), "std-t has no snapshots"),
        (lambda: page_data([Shown("x", "x", untexted)], "server"), "^x has no tokenizer, so it reads no text: save"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            call()


def test_the_command_serves_until_it_is_interrupted() -> None:
    argv = [sys.executable, "-W", "error", "-m", "viewer.view", "stories/lfa", "--text", "Lily had a ball"]
    server = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stderr is not None
    try:
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address), server.stderr.read()
        assert "Ctrl-C" in server.stdout.readline()
        page = urllib.request.urlopen(address, timeout=60).read().decode()
        assert "Lily had a ball" in page
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.partition("?")[0], timeout=60)
        port = int(address.split(":")[2].partition("/")[0])
        taken = subprocess.run([*argv[:5], "--port", str(port)], cwd=ROOT, capture_output=True, text=True)
        assert taken.returncode == 2 and taken.stderr == (
            f"error: port {port}: Address already in use; leave --port out for a free one\n"
        )
        with socket.socket() as other, pytest.raises(OSError):  # it listens on one address of this machine only
            other.connect(("127.0.0.2", port))
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert out == "" and err in ("", "interrupted\n"), err


def test_command_refuses_in_one_line(tmp_path: Path) -> None:
    for words, line in (
        (["--out", "page.htm"], "--out page.htm: the page is a file with the suffix .html"),
        (["--out", str(tmp_path / "a.html"), "--port", "80"], "--port, --device and --dtype are of"),
        (["nowhere"], "nowhere is not a run folder"),
        (["--text", ""], "--text: the text is empty; give one with words, or leave it out"),
        (["--text", " \n"], "--text: the text is empty; give one with words, or leave it out"),
    ):
        with refused(f"^{line}"):
            main(words)
