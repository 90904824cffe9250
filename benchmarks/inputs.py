"""Random tokens for benchmarks, as tensors and as token shards."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streamscope.cli.disk import sha256
from streamscope.text.shards import FORMAT, TokenShards


def random_tokens(d_vocab: int, rows: int, length: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Inputs and next tokens [rows, length], drawn uniformly with seed 0."""
    tokens = torch.randint(d_vocab, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def write_shards(folder: Path, tokens: np.ndarray, starts: np.ndarray, d_vocab: int) -> TokenShards:
    """Token shards with these documents: document i is tokens[starts[i]:starts[i + 1]]."""
    tokens.astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "starts.npy", starts)
    sizes = {name: (folder / name).stat().st_size for name in ("tokens.bin", "starts.npy")}
    sums = {name: sha256(folder / name) for name in sizes}
    meta = {"format": FORMAT, "bytes": sizes, "sha256": sums, "dtype": "uint16", "d_vocab": d_vocab, "pad_id": 0}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return TokenShards(folder)
