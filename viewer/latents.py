"""A dictionary for the live page: what its latents raise, and which of them the edits remove."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.dictionaries import Dictionary, read_dictionary, without_latents
from streamscope.models.hooks import resolve
from streamscope.models.hooks.controls import BRIDGED, latents_of
from streamscope.models.layers.head import unembed
from streamscope.models.readout import chunk_rows

MOST = 5
"""Number of latents that the page names at a position, and of tokens that it names for each."""


@dataclass(frozen=True)
class PageDictionary:
    """A dictionary whose latents the page shows; the edits name it by its folder."""

    dictionary: Dictionary
    about: dict[str, Any]
    """What the page says of it: folder, hook and stream, and the tokens `raised` by each latent."""


def dictionary_for_page(model: Any, name: str, folder: str) -> PageDictionary:
    """The dictionary of a folder. Raises `InputError` as `models.dictionaries` does, and for a model in a bridge."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} takes no --dictionary: {BRIDGED}")
    dictionary = read_dictionary(folder, model).to(model.cfg.device)
    resolve(model, without_latents(dictionary, [0], model))  # hooks that the model has, and that can be changed
    about = {"folder": folder, "hook": dictionary.hook, "raised": raised_tokens(model, dictionary.W_dec).tolist()}
    return PageDictionary(dictionary, {**about, "stream": dictionary.stream * dictionary.stream[1:].isdigit()})


@torch.no_grad()
def raised_tokens(model: Any, directions: Float[Tensor, "F D"]) -> Int[Tensor, "F 5"]:
    """The tokens whose logits each direction raises most: centred as the final norm does, times its gain and the head.

    The norm's scale, which no direction has, does not change their order.
    """
    norm, tokens = model.ln_final, []
    for chunk in directions.split(chunk_rows(model.config.d_vocab)):
        groups = chunk.to(norm.weight).unflatten(-1, (norm.groups, -1))
        if norm.centred:
            groups = groups - groups.mean(-1, keepdim=True)
        tokens.append(unembed(groups.flatten(-2) * norm.weight, model.head).topk(MOST).indices)
    return torch.cat(tokens)


def latent_scale(shown: PageDictionary | None, edits: Mapping[str, Any]) -> dict[str, Tensor]:
    """The page's array of latents, 0 where one is removed; {} without a dictionary.

    Raises `InputError` for a dictionary that the page does not show, and for latents that it lacks.
    """
    scale = torch.ones(len(shown.dictionary.b_enc) if shown else 0)
    for folder, latents in latents_of(edits).items():
        if shown is None or folder != shown.about["folder"]:
            raise InputError(f"latents of {folder}: this page shows no such dictionary (--dictionary)")
        if max(latents) >= len(scale):
            raise InputError(f"latent {max(latents)} does not exist: {folder} has 0 to {len(scale) - 1}")
        scale[latents] = 0
    return {"latents": scale} if shown else {}
