"""Every instrument on a random model of every family: what it measures is finite, or it is refused in one line."""

import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from streamscope.instruments.data import Tokens
from streamscope.instruments.registry import discover
from streamscope.interventions.patch import Patch
from streamscope.models import load
from tests.models.test_huggingface import CASES, theirs
from tests.tiny import refused

ROOT = Path(__file__).resolve().parents[2]
INSTRUMENTS = discover()
LACKING = {
    "contraction": "parallel streams", "dual_path": "has no HDPL projection", "latents": "has no HDPL projection",
    "mixing": "parallel streams", "mixing_monitor": "has no mixing matrices", "routing": "has no Kronecker",
    "streams": "has one residual stream",
}  # fmt: skip
"""What needs a part that these families do not have."""
BEHIND = dict.fromkeys(("abliterate", "direct_logit_attribution", "hydra", "patch"), "norms what a layer writes")
"""What needs heads that add up to the stream: not those of OLMo 2 and Gemma 2. `patch` refuses only its paths."""
OPTIONS: dict[str, dict[str, Any]] = {"patch": {"hooks": ("resid_pre", "z")}}
SIZES = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "max_position_embeddings": 128}


@pytest.fixture(scope="module", params=["gpt2", "pythia", "llama", "qwen3", "olmo2", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name, options = CASES[request.param]
    own = {"n_layer": 6, "n_head": 6, "n_positions": 128} if name == "GPT2" else SIZES
    folder = tmp_path_factory.mktemp("families") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMSCOPE_CACHE", str(folder.parent / "cache"))
        patch.setitem(CASES, request.param, (name, {**options, **own, "vocab_size": 2048}))
        theirs(request.param).save_pretrained(folder)
        shutil.copyfile(ROOT / "models/zoo/lfa/tokenizer.json", folder / "tokenizer.json")
        model = load(f"hf:{folder}")
        tokens = Tokens(data="stories:1:20", max_tokens=1500)
        for name, file in (("extract", "features"), ("token_effects", "effects")):
            INSTRUMENTS[name]().measure(model, tokens).save(folder / f"{file}.parquet")
        model.tables = {"features": (folder / "features.parquet",), "effects": folder / "effects.parquet"}
        yield model


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INSTRUMENTS))
def test_an_instrument_measures_or_refuses_in_one_line(name: str, model: Any) -> None:
    how = INSTRUMENTS[name](**{**INSTRUMENTS[name].quick, **OPTIONS.get(name, {})})
    given = [one.small() for one in how.takes]
    said = {"data": "stories:1:12", **model.tables}
    data = [replace(one, **{f.name: said[f.name] for f in fields(one) if f.name in said}) for one in given]
    lacking = {**LACKING, **(BEHIND if model.config.norm_place != "before" else {})}
    if model.config.attention.softcap:
        lacking["amplify"] = "caps its scores"
    if name in lacking:
        with refused(lacking[name]):
            how.measure(model, *data)
        if not isinstance(how, Patch):
            return
        how = replace(how, senders=())  # without paths it measures
    found = how.measure(model, *data)
    assert all(len(table.frame.columns) for table in found.tables.values()) and len(found.table().frame)
