"""Two prompts of random tokens as a pair, both ways, and a planted model in which one head moves the answer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.interventions.patch.pairs import PatchPair
from streamscope.models import build
from tests.probes import planted
from tests.tiny import randomise

CLEAN = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(4))
PAIRS = [
    PatchPair(
        id=f"p{i}", cluster=f"p{i}", clean=tuple(CLEAN[i].tolist()), corrupt=tuple(CLEAN[1 - i].tolist()),
        answers=(3,), foils=(8,), places={str(p): (p,) for p in range(5)},
    )
    for i in (0, 1)
]  # fmt: skip


def make(preset: str, **overrides: Any) -> Any:
    return randomise(build(preset, "tiny", init_std=0.2, **overrides).double().eval(), std=0.2)


def odds(logits: Tensor) -> float:
    return float(logits[0, -1, 3] - logits[0, -1, 8])


def one_head_moves_it() -> Any:
    """The planted model; its head "semantic" (L0.H1) looks at the tool and writes which one, nothing else writes."""
    model = planted.model()
    bits, tools = -torch.ones(len(planted.VOCABULARY), 6), [planted.VOCABULARY.index(w) for w in planted.TOOLS]
    bits[tools] += 2 * torch.eye(6)  # each tool has a feature of its own
    block = model.blocks[0]
    with torch.no_grad():
        model.embed.weight[:, 3:9], model.embed.weight[:, 23:29] = bits, -bits
        model.unembed.weight.zero_()
        model.unembed.weight[tools, 9:15] = bits[tools]
        for j in range(6):
            block.attn.v.weight[8 + j] = 0
            block.attn.v.weight[8 + j, 3 + j] = 1
            block.attn.o.weight[9 + j, 8 + j] = 5
    return model.double()


def suite_of_the_corpus(
    path: Path, nouns: Sequence[str] = ("cat", "dog", "bird", "red", "big", "tree", "blue")
) -> Path:
    """A file of minimal pairs in the words of the tiny corpus: each noun and the next one, in both orders."""
    rows = []
    for i, (a, b) in enumerate(zip(nouns, (*nouns[1:], nouns[0]), strict=True)):
        for order, (x, y) in (("target_first", (a, b)), ("target_last", (b, a))):
            text = f"the {x} and the {y} sat on it. the"
            roles = {"target": a, "distractor": b, "query": " it"}
            at = {r: (text.index(w) + (r == "query"), text.index(w) + len(w)) for r, w in roles.items()}
            row = {"id": f"{i}-{order}", "text": text, "roles": at, "pair": str(i), "order": order}
            rows.append({**row, "category": "competing-nouns", "coherent": f" {a}", "incoherent": f" {b}"})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
