"""Facts about a model that every result carries, and checks that a model must pass before it is measured.

This module imports nothing heavy at its top.
"""

import hashlib
import json
from typing import Any

from streamscope.cli.errors import InputError


def readable(model: Any) -> Any:
    """`model`, or what instruments can read of a `TransformerBridge` that somebody booted.

    Raises `InputError` for a model of transformers or of TransformerLens that has other hooks.
    """
    home = type(model).__module__.split(".")[0]
    if type(model).__name__ == "TransformerBridge":
        from streamscope.models.interop.huggingface.bridged import adopt

        return adopt(model)
    if home in ("transformers", "transformer_lens"):
        raise InputError(
            f"a {type(model).__name__} of {home} has none of the hooks that are read here: write it with "
            "save_pretrained(FOLDER) and give 'hf:FOLDER', or boot a TransformerBridge"
        )
    return model


def title_of(model: Any) -> str:
    """What titles call a model: its preset, where it comes from, whether it is edited, or hooked by somebody."""
    from streamscope.models.checkpoint import STORIES, run_label
    from streamscope.models.hooks import edited_at, hooked_at

    name = getattr(getattr(model, "config", None), "name", type(model).__name__)
    run, edited = getattr(model, "run", None), ", edited" if edited_at(model) else ""
    edited += ", hooked" if hooked_at(model) else ""
    if run is None:
        read = getattr(model, "label", "")
        return f"{name} ({read}{edited})" if read else f"{name}{edited}"
    label = run_label(run)
    return f"{label}{edited}" if label.startswith(STORIES) else f"{name} ({label}{edited})"


def recipe_of(model: Any) -> dict[str, Any]:
    """What runs that are seeds of one recipe share; of a snapshot of a training its `step`, `training` and `tokens`."""
    if not hasattr(model, "to_dict"):
        return {"recipe": type(model).__name__, "step": None}
    from streamscope.cli.disk import Config, read_json
    from streamscope.models.checkpoint import run_label, snapshot_step
    from streamscope.models.training.config import tokens_seen

    whole = json.dumps(model.to_dict(), sort_keys=True, default=str)
    tokens = model.tokenizer.sha256 if model.tokenizer is not None else ""
    digest = hashlib.sha256((whole + tokens).encode()).hexdigest()[:16]
    run = getattr(model, "run", None)
    if run is None or (step := snapshot_step(run)) is None:
        return {"recipe": digest, "step": None}
    config = read_json(run / "config.json", Config)
    found = {"recipe": digest, "step": step, "training": run_label(run).rpartition("@")[0]}
    return found | ({"tokens": tokens_seen(config["training"], model.config.n_ctx, step)} if "data" in config else {})


def numerics_of(model: Any) -> dict[str, str | None]:
    """`dtype` of the weights, several with commas between; `autocast`: the dtype torch casts to, None where off."""
    weights = list(model.parameters()) if hasattr(model, "parameters") else []
    if not weights:
        return {"dtype": None, "autocast": None}
    import torch

    device = weights[0].device.type
    dtypes = {str(one.dtype).removeprefix("torch.") for one in weights}
    cast = str(torch.get_autocast_dtype(device)).removeprefix("torch.") if torch.is_autocast_enabled(device) else None
    return {"dtype": ", ".join(sorted(dtypes)), "autocast": cast}


def checkpoint_of(model: Any) -> dict[str, Any]:
    """The weights that were measured: run, preset, sha256 of the weights, layers and heads."""
    from streamscope.models.checkpoint import run_folder, run_label
    from streamscope.models.tensors import sha256

    run, config = getattr(model, "run", None), model.config
    shape = {"preset": config.name, "n_layers": config.n_layers, "n_heads": config.n_heads}
    if run is not None:
        folder = run_folder(run)
        return {"run": run_label(folder), "checkpoint": sha256(folder / "model.safetensors"), **shape}
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {"run": "", "checkpoint": digest.hexdigest(), **shape}


def need_streams(model: Any, name: str) -> None:
    """Raise `InputError` for a model without two parallel streams or more that mix."""
    if getattr(getattr(model.config, "residual", None), "n", 1) < 2:
        raise InputError(f"{name} measures parallel streams, which this model lacks: give one of kromhc, mhc, hc")


def need_parts(model: Any, name: str) -> None:
    """Raise `InputError` for a model in TransformerLens' bridge, for an instrument that reads our modules."""
    if not hasattr(model, "segment"):
        raise InputError(f"{name} reads our modules; {model.config.name} is in a TransformerBridge with hooks only")
