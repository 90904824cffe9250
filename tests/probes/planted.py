"""A model with hand-set weights whose heads have known attention, a suite it reads, and loops that follow the paper.

One layer, five heads, ALiBi with slopes set by hand, embeddings of ±1 features that LayerNorm leaves as they are. The
score of key k at distance d is β noun(k) + γ tool(k) − m d, so over the two nouns, 3 tokens apart:

    recency   m = 10          all on the later noun
    semantic  γ               all on the tool
    mixture   m = ln(3) / 3   3/4 on the later noun, 1/4 on the earlier
    leaning   2 γ = ln 4      4/5 on the tool, 1/5 on the container
    constant  0               1 / keys everywhere
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import tokenizers
import torch
from tokenizers import pre_tokenizers

from streamscope.instruments.contract import InstrumentData
from streamscope.instruments.observations import estimate_all
from streamscope.instruments.prompts import load_suite
from streamscope.instruments.prompts.alignment import Aligned
from streamscope.instruments.prompts.suite import Prompt, Suite
from streamscope.instruments.table import Table
from streamscope.models.config import Alibi, Attention, Gate, LayerNorm, ModelConfig, Readout
from streamscope.models.hooks import capture
from streamscope.models.make import build
from streamscope.text.tokenizer import Tokenizer
from tests.tiny import randomise

TOOLS, BOXES = ["key", "hammer", "spoon", "saw", "brush", "pen"], ["box", "jar", "bag", "drawer", "chest", "basket"]
OTHER = ["Tim", "took", "a", "and", ".", "He", "used", "it", "to", "work", "with", "the"]
VOCABULARY = ["<|endoftext|>", "<unk>", *OTHER, *TOOLS, *BOXES]
HEADS = ["recency", "semantic", "mixture", "leaning", "constant"]
PDS = [1.0, 0.0, 0.5, 0.0, 0.0]
SPS = [0.0, 1.0, 0.0, 0.6, 0.0]
TOP1 = [0.5, 1.0, 0.5, 1.0, 0.0]
TIES = [0.0, 0.0, 0.0, 0.0, 1.0]
CONTEXT = 32


def tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> Tokenizer:
    """One token per word."""
    words = tokenizers.models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>")
    backend = tokenizers.Tokenizer(words)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def prompt(i: int, tool_first: bool) -> Prompt:
    """Prompt of pair i; relations in turn."""
    tool, box = TOOLS[i % 6], BOXES[(i + i // 6) % 6]
    first, last = (tool, box) if tool_first else (box, tool)
    text = f"Tim took a {first} and a {last} . He used it to work with the"
    at = {"query": "it to", "target": tool, "distractor": box}
    roles = {r: (text.index(w), text.index(w) + (2 if r == "query" else len(w))) for r, w in at.items()}
    order = "target_first" if tool_first else "target_last"
    return Prompt(
        id=f"p{i}-{order}", text=text, roles=roles, pair=f"p{i}", order=order, category="competing-nouns",
        relation=["tool-container", "agent-patient"][i % 2], coherent=f" {tool}", incoherent=f" {box}",
    )  # fmt: skip


def suite(n: int = 12) -> Suite:
    """n pairs."""
    return Suite("planted", tuple(prompt(i, first) for i in range(n) for first in (True, False)), "planted")


def model(gate: Gate | None = None) -> Any:
    """The hand-set model; with a gate, its weights are 0 and its biases for the caller to set."""
    config = ModelConfig(
        n_layers=1, n_heads=5, d_model=40, d_vocab=len(VOCABULARY), n_ctx=CONTEXT, positions=Alibi(),
        norm=LayerNorm(eps=1e-12), attention=Attention(gate=gate), readout=Readout(tied=False),
    )  # fmt: skip
    planted = build(config, tokenizer=tokenizer())
    noun, tool = set(TOOLS + BOXES), set(TOOLS)
    features = torch.ones(len(VOCABULARY), 20)
    features[:, 1] = torch.tensor([1.0 if w in noun else -1.0 for w in VOCABULARY])
    features[:, 2] = torch.tensor([1.0 if w in tool else -1.0 for w in VOCABULARY])
    score = {
        "recency": (100.0, 0.0),
        "semantic": (0.0, 20.0),
        "mixture": (20.0, 0.0),
        "leaning": (20.0, math.log(4) / 2),
    }
    slopes = {"recency": 10.0, "mixture": math.log(3) / 3}
    block = planted.blocks[0]
    with torch.no_grad():
        planted.embed.weight.copy_(torch.cat([features, -features], 1))  # mean 0, variance 1
        for weight in (block.attn.q.weight, block.attn.k.weight, block.attn.o.weight, block.mlp.down.weight):
            weight.zero_()
        for h, name in enumerate(HEADS):
            beta, gamma = score.get(name, (0.0, 0.0))
            block.attn.q.weight[8 * h, 0] = math.sqrt(8)  # feature 0 is 1: every query is the same
            block.attn.k.weight[8 * h, 1], block.attn.k.weight[8 * h, 2] = beta, gamma
        block.attn.positions.slopes.copy_(torch.tensor([slopes.get(name, 0.0) for name in HEADS]))
    return planted


def set_pattern(weights: Callable[[int], torch.Tensor]) -> dict[str, Any]:
    """An edit of every pattern: weights(T), [T] or [T, T], at all heads."""
    return {"blocks.*.attn.hook_pattern": lambda x, hook: weights(x.shape[-1]).to(x).expand_as(x).clone()}


def even(n: int) -> torch.Tensor:
    """[T, T]: every query attends to itself and to all before it alike."""
    return torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]


def random_model(preset: str, suite: str) -> Any:
    """A random model that cuts the nouns of a bundled suite into several tokens."""
    words = Tokenizer.train([p.text for p in load_suite(suite).prompts], 300)
    return randomise(build(preset, "tiny", n_ctx=128, d_vocab=300, tokenizer=words))


def tables_of(how: Any, seen: InstrumentData) -> dict[str, Table]:
    """What an instrument makes of observations."""
    seen.about.setdefault("title", "")
    return how.tables(seen, estimate_all(seen.blocks, seen.contrasts))


def naive_rows(net: Any, aligned: Aligned) -> list[dict[tuple[int, int], list[float]]]:
    """Per prompt, (layer, head) -> attention of the query to every key up to it; one forward pass per prompt."""
    found = []
    for ids, at in zip(aligned.tokens, aligned.positions, strict=True):
        q = max(at["query"])
        with torch.no_grad(), capture(net, "blocks.*.attn.hook_pattern") as patterns:
            net(torch.tensor([ids]))
        layers = {int(name.split(".")[1]): pattern[0, :, q, : q + 1].tolist() for name, pattern in patterns.items()}
        found.append({(layer, head): row for layer, rows in layers.items() for head, row in enumerate(rows)})
    return found


def mass(row: list[float], positions: tuple[int, ...]) -> float:
    """Attention to a role."""
    return sum(row[position] for position in positions)


def gpt2_and_bridge(vocabulary: int = 100, std: float = 0.2, of_a_copy: bool = False) -> tuple[Any, Any]:
    """A small GPT-2 of the library and its bridge. In a bridge it returns no attention; one `of_a_copy` leaves it."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = dict(n_layer=2, n_head=2, n_embd=32, vocab_size=vocabulary, n_positions=32, initializer_range=std)
    config = GPT2Config(**sizes)
    config._attn_implementation = "eager"
    inner = GPT2LMHeadModel(config).eval()
    return inner, build_bridge_from_module(deepcopy(inner) if of_a_copy else inner, "GPT2LMHeadModel", hf_config=config)
