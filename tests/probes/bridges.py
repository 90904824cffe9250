"""A small GPT-2 of the library, and TransformerLens' bridge around it."""

from copy import deepcopy
from typing import Any

import torch


def gpt2_and_bridge(vocabulary: int = 100, std: float = 0.2, of_a_copy: bool = False) -> tuple[Any, Any]:
    """The library's model and its bridge. In a bridge it returns no attention; one `of_a_copy` leaves it alone."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = dict(n_layer=2, n_head=2, n_embd=32, vocab_size=vocabulary, n_positions=32, initializer_range=std)
    config = GPT2Config(**sizes)
    config._attn_implementation = "eager"
    inner = GPT2LMHeadModel(config).eval()
    return inner, build_bridge_from_module(deepcopy(inner) if of_a_copy else inner, "GPT2LMHeadModel", hf_config=config)
