"""SmolLM2-135M under our instruments, against plain code on the transformers library: `make test-real`.

The plain side reads the GGUF file itself, with the library's own reader, and hooks the library's modules. What the
model is known to do (an induction head in layer 18, names in IOI) is tested as well, so that equal nonsense would fail.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamscope.instruments.data import Documents, Prompts, Text
from streamscope.instruments.open_data import open_data
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import align, given_prompts
from streamscope.instruments.prompts.suite import Suite
from streamscope.interventions.ablate import Ablate
from streamscope.interventions.amplify import Amplify
from streamscope.interventions.patch import Patch
from streamscope.interventions.patch.pairs import PatchPair, choose_pairs, make_pairs
from streamscope.models import load
from streamscope.probes.heads import Heads
from streamscope.probes.logit_lens import LogitLens
from streamscope.probes.pds import Pds

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]
RUN, FILE = ROOT / "runs" / "smollm2", ROOT / ".venv" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
STORY = "Once upon a time, Lily found a little key under the old tree. She ran home to show the key to her brother."
DOCUMENTS = Documents("stories:1:4", max_documents=2)
HEADS = [(2, 3), (10, 0), (15, 6), (18, 6), (29, 8)]


@pytest.fixture(scope="module")
def ours() -> Any:
    return load(RUN)


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32, attn_implementation="eager"
    )
    return net.eval()


@pytest.fixture(scope="module")
def words() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)


def logits_of(net: Any, ids: list[int]) -> Tensor:
    """[T, V] of one row."""
    with torch.no_grad():
        return net(torch.tensor([ids])).logits[0]


def patterns_of(net: Any, ids: list[int]) -> np.ndarray:
    """[L, H, T, T] of one row."""
    with torch.no_grad():
        return torch.stack(net(torch.tensor([ids]), output_attentions=True).attentions)[:, 0].numpy()


@contextmanager
def head_outputs(net: Any, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change what the output projection of a layer reads, [B, T, H, K]."""

    def put(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (change(inputs[0].unflatten(-1, (9, 64)).clone()).flatten(-2), *inputs[1:])

    handle = net.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(put)
    try:
        yield
    finally:
        handle.remove()


def loss_of(net: Any, rows: list[list[int]]) -> float:
    """Mean cross-entropy per token, nats."""
    parts = [torch.nn.functional.cross_entropy(logits_of(net, ids)[:-1], torch.tensor(ids[1:]), reduction="sum")
             for ids in rows]  # fmt: skip
    return float(sum(parts)) / sum(len(ids) - 1 for ids in rows)


def test_tokens_and_chats(ours: Any, words: Any) -> None:
    for text in (STORY, "def f(x):\n    return x + 1", "naïve café, 日本 🙂", "  two  spaces\n\n\nend"):
        assert ours.to_tokens(text)[0, 1:].tolist() == words(text, add_special_tokens=False).input_ids
    chat = [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": "Apple"}]
    assert ours.to_chat(chat, reply=False)[0].tolist() == list(
        words.apply_chat_template(chat, tokenize=True)["input_ids"]
    )


def test_logits(ours: Any, theirs: Any) -> None:
    tokens = ours.to_tokens(STORY)
    want = logits_of(theirs, tokens[0].tolist())
    with torch.no_grad():
        found = ours(tokens)[0]
    assert float((found - want).abs().max()) < 1e-4 * float(want.abs().max())


def test_generation(ours: Any, theirs: Any) -> None:
    ids = ours.to_tokens(STORY)
    want = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=2)
    assert ours.generate(ids, max_new_tokens=20, temperature=0.0)[0] == want[0].tolist()


def test_positional_heads(ours: Any, theirs: Any) -> None:
    how = Heads(sequences=2, length=16, texts=False)
    table = how.measure(ours).table("scores").frame
    rows = [patterns_of(theirs, list(ids)) for ids in how.plan([], ours.tokenizer).tokens]
    for score, back, start in (("previous", 1, 2), ("duplicate", 16, 17), ("induction", 15, 17)):
        mine = table[table["score"] == score].set_index(["layer", "index"])["mean"]
        for layer, head in HEADS:
            want = np.mean([np.mean([a[layer, head, i, i - back] for i in range(start, 33)]) for a in rows])
            assert mine[layer, head] == pytest.approx(want, abs=1e-5), (score, layer, head)
    best = table[table["score"] == "induction"].set_index(["layer", "index"])["mean"]
    assert best.idxmax() == (18, 6) and best.max() > 0.8 and (best > 0.3).sum() >= 8


def test_ablation(ours: Any, theirs: Any) -> None:
    found = Ablate(heads=("L18.H6",), draws=1).measure(ours, DOCUMENTS).table("loss").frame.iloc[0]
    rows = [list(ids) for ids in open_data(DOCUMENTS, ours).rows()]
    whole = loss_of(theirs, rows)
    with head_outputs(theirs, 18, lambda z: z.index_fill(2, torch.tensor(6), 0.0)):
        assert found["delta"] == pytest.approx(loss_of(theirs, rows) - whole, abs=2e-5)


def test_amplification(ours: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies its scores by `scaling`, so α times that is attention sharpened by α."""
    how = Amplify(alpha=(1.0, 4.0), text="", prompt="")
    found = how.measure(ours, DOCUMENTS).table("amplify").frame.set_index("alpha")["loss"]
    rows = [list(ids) for ids in open_data(DOCUMENTS, ours).rows()]
    assert found[1.0] == pytest.approx(loss_of(theirs, rows), abs=2e-5)
    for layer in theirs.model.layers:
        monkeypatch.setattr(layer.self_attn, "scaling", 4.0 * layer.self_attn.scaling)
    assert found[4.0] == pytest.approx(loss_of(theirs, rows), abs=1e-3) and found[4.0] > found[1.0] + 0.5


def test_patching_ioi(ours: Any, theirs: Any) -> None:
    """The mean over pairs of the recovery from putting one head's clean output into the corrupted run."""
    how = Patch(pairs=4, hooks=("z",), layers=("18",), method=("exact",))
    suite = Prompts(suite="ioi", n=40)
    found = how.measure(ours, suite).table("patches").frame.set_index("name")
    aligned = align(load_suite("ioi", n=40), ours.tokenizer)
    pairs = choose_pairs(make_pairs(aligned, ours.tokenizer, "corrupt"), 4).pairs

    def odds(pair: PatchPair, ids: tuple[int, ...]) -> float:
        last = logits_of(theirs, list(ids))[-1]
        return float(last[pair.answers[0]] - last[pair.foils[0]])

    def effect(pair: PatchPair, head: int) -> float:
        clean: list[Tensor] = []

        def keep(z: Tensor) -> Tensor:
            clean.append(z)
            return z

        with head_outputs(theirs, 18, keep):
            odds(pair, pair.clean)
        before = odds(pair, pair.corrupt)
        with head_outputs(theirs, 18, lambda z: z.index_copy(2, torch.tensor([head]), clean[0][:, :, [head]])):
            return odds(pair, pair.corrupt) - before

    for head in (6, 0):
        effects = [effect(pair, head) for pair in pairs]
        assert found.loc[f"z L18.H{head}", "effect"] == pytest.approx(np.mean(effects), abs=2e-4), head
    assert np.mean([odds(pair, pair.clean) for pair in pairs]) > 2, "the model does the task"


def test_pds(ours: Any, theirs: Any) -> None:
    whole = load_suite("competing")
    suite = Suite("some", whole.prompts[:12], "the first six pairs")
    found = Pds().measure(ours, given_prompts(suite, ours)).table("heads").frame.set_index("head")["pds"]
    aligned = align(suite, ours.tokenizer)
    values: dict[str, list[np.ndarray]] = {"target_first": [], "target_last": []}
    for i, prompt in enumerate(aligned.prompts):
        a, at = patterns_of(theirs, aligned.tokens[i]), aligned.positions[i]
        values[str(prompt.order)].append(a[:, :, at["query"][-1], list(at["target"])].sum(-1))
    want = np.abs(np.mean(values["target_last"], 0) - np.mean(values["target_first"], 0))
    for layer, head in HEADS:
        assert found[f"L{layer}.H{head}"] == pytest.approx(want[layer, head], abs=1e-5)


def test_logit_lens(ours: Any, theirs: Any) -> None:
    found = LogitLens(layers=(5, 20)).measure(ours, Text(text=(STORY,), max_tokens=24)).table("layers").frame
    ids = ours.to_tokens(STORY)[0, :24].tolist()
    with torch.no_grad():
        states = theirs.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in (5, 20):
            logits = theirs.lm_head(theirs.model.norm(states[layer + 1]))[0, :-1]
            want = float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))
            assert found.set_index("layer").loc[layer, "loss"] == pytest.approx(want, rel=1e-5)


def test_attribution_adds_up(ours: Any, theirs: Any) -> None:
    """Embedding, heads and FFNs sum to the difference of logits; the embedding's part by hand."""
    ids = ours.to_tokens("Then Lily and Tom went home. Lily gave a ball to")
    answer, foil = (ours.to_single_token(name) for name in (" Tom", " Lily"))
    _, cache = ours.run_with_cache(ids)
    parts = cache.logit_attrs(cache.decompose_resid(), answer, foil)[:, 0, -1].detach()
    want = logits_of(theirs, ids[0].tolist())[-1]
    assert float(parts.sum()) == pytest.approx(float(want[answer] - want[foil]), abs=1e-3) and want[answer] > want[foil]
    with torch.no_grad():
        last = theirs.model(ids, output_hidden_states=True).hidden_states
        embedded, head = last[0][0, -1], theirs.lm_head.weight[answer] - theirs.lm_head.weight[foil]
    kept: list[Tensor] = []
    handle = theirs.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    logits_of(theirs, ids[0].tolist())
    handle.remove()
    scale = (kept[0][0, -1].pow(2).mean() + theirs.config.rms_norm_eps).sqrt()
    by_hand = float((embedded / scale * theirs.model.norm.weight.detach() * head).sum())
    assert float(parts[0]) == pytest.approx(by_hand, abs=1e-4)
