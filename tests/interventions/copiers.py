"""A model with hand-set weights that copies capitals, with a backup head that wakes up when the copier is gone.

Words come in two forms, "Rose" and "rose". Features are ±1 with mirrors, so LayerNorm leaves them as they are;
feature 1 says whether a word has two forms, feature 2 which of them it is (c = ±1), feature 3 starts as 1.

    copier L0.H1   looks at the word with two forms and adds δ c to feature 3 (−δ c to its mirror, feature 4)
    backup L1.H0   looks there too and adds κ c δ (1 − g) / s(c g δ): nothing while the copier works at g = 1

With x what was added to feature 3, the norm divides by s(x) = sqrt((38 + 2 (1 + x)²) / 40), and the readout gives
capital words a x / s(x), small ones −a x / s(x), all others 0. So log-odds of the right form = 2 a c x / s(x).
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from streamscope.instruments.prompts.suite import Prompt, Suite
from streamscope.models import build
from streamscope.models.config import LayerNorm
from streamscope.models.head_spec import Head
from tests.probes import planted

WORDS = ["rose", "bear", "king", "star", "red", "sun", "fox", "moon", "rain", "snow"]
OTHER = ["I", "see", "then", "again", "and", "now"]
VOCABULARY = ["<|endoftext|>", "<unk>", *OTHER, *WORDS, *(w.capitalize() for w in WORDS)]
A, DELTA = 1.5, 2.0

COPIER, BACKUP = Head(0, 1), Head(1, 0)
tokenizer = partial(planted.tokenizer, VOCABULARY)


def suite(words: int = 10, name: str = "copies") -> Suite:
    """Two prompts per word, one of each form; a word is a cluster."""
    prompts = []
    for i, word in enumerate(WORDS[:words]):
        for form in (word, word.capitalize()):
            text = " ".join(["I", "see", *["and"] * (i % 3), form, "then", "again"])
            at = text.index(form)
            roles = {"query": (len(text) - 5, len(text)), "target": (at, at + len(form))}
            other = word if form != word else word.capitalize()
            prompts.append(
                Prompt(
                    id=f"{name}-{form}", text=text, roles=roles, cluster=word, category="capitalization",
                    relation="capital" if form != word else "lower", coherent=f" {form}", incoherent=f" {other}",
                )
            )  # fmt: skip
    return Suite(name, tuple(prompts), "planted")


def model(backup: float = 0.0, delta: float = DELTA) -> Any:
    """The model of this file's docstring; `backup` is κ."""
    one = planted.model().config
    readout = replace(one.readout, norm=LayerNorm(eps=1e-12))
    net = build(replace(one, n_layers=2, d_vocab=len(VOCABULARY), readout=readout), tokenizer=tokenizer())
    two_forms = set(VOCABULARY[2 + len(OTHER) :])
    features = torch.ones(len(VOCABULARY), 20)
    features[:, 1] = torch.tensor([1.0 if w in two_forms else -1.0 for w in VOCABULARY])
    features[:, 2] = torch.tensor([1.0 if w in two_forms and w[0].isupper() else -1.0 for w in VOCABULARY])
    with torch.no_grad():
        net.embed.weight.copy_(torch.cat([features, -features], 1))
        for block in net.blocks:
            for part in (block.attn.q, block.attn.k, block.attn.v, block.attn.o, block.mlp.down):
                part.weight.zero_()
            block.attn.positions.slopes.zero_()
        for layer, head in (COPIER, BACKUP):
            at, row = net.blocks[layer].attn, 8 * head
            at.q.weight[row, 0], at.k.weight[row, 1] = math.sqrt(8), 400.0
        first, second = net.blocks[0].attn, net.blocks[1].attn
        first.v.weight[8, 2] = 1.0
        first.o.weight[3, 8], first.o.weight[23, 8] = delta, -delta
        second.v.weight[0, 2], second.v.weight[0, 3], second.v.weight[0, 4] = delta, -1.0, 1.0
        second.o.weight[3, 0], second.o.weight[23, 0] = backup, -backup
        net.unembed.weight.zero_()
        for i, word in enumerate(VOCABULARY):
            if word in two_forms:
                sign = 1.0 if word[0].isupper() else -1.0
                net.unembed.weight[i, 3], net.unembed.weight[i, 4] = sign * A, -sign * A
    return net


def scale(x: float) -> float:
    """s(x) of the docstring."""
    return math.sqrt((38 + 2 * (1 + x) ** 2) / 40)


def log_odds(x: float, c: int) -> float:
    """Log-odds of the right form after x was added to feature 3; c = 1 for a capital."""
    return 2 * A * c * x / scale(x)


def probability(x: float, c: int) -> float:
    """P(answer): ten words of each form, the others at logit 0."""
    u, n = A * x / scale(x), len(WORDS)
    return math.exp(c * u) / (n * math.exp(u) + n * math.exp(-u) + len(VOCABULARY) - 2 * n)
