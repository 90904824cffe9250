"""Reads a LoRA adapter of the PEFT library beside a model and merges it into the model's weights.

    W' = W + s B A        A [r, d_in], B [d_out, r]; s = α / r, or α / √r with use_rslora

Hu et al. 2021, "LoRA", arXiv 2106.09685, §4.1; Kalajdzievski 2023, "rsLoRA", arXiv 2312.03732. Everything else that an
adapter can do (DoRA, biases, embeddings, modules_to_save, other methods than LoRA) is refused by its name.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from streamscope.cli.disk import read_json
from streamscope.cli.errors import InputError, reading
from streamscope.models.interop.tables import opened

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # files of an adapter
AGAIN = "download it again"
REMEDY = "merge the adapter with PEFT (merge_and_unload) and save the model"
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
"""Values with which an adapter is plain LoRA; other initialisations (PiSSA, OLoRA, …) change W itself."""
NEUTRAL = {
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "task_type", "auto_mapping", "revision",
    "peft_version", "base_model_name_or_path", "inference_mode", "target_modules", "exclude_modules", "lora_dropout",
    "fan_in_fan_out", "layers_to_transform", "layers_pattern", "megatron_core", "eva_config", "loftq_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying",
}  # fmt: skip
"""Fields that are read, matter in training only, or repeat what the tensors say. Any other must be unset."""


class Config(TypedDict):
    """adapter_config.json: rank and α, and those of maps whose names end as a regular expression says."""

    r: int
    lora_alpha: float
    use_rslora: NotRequired[bool]
    rank_pattern: NotRequired[dict[str, int] | None]
    alpha_pattern: NotRequired[dict[str, float] | None]


Update = tuple[float, Tensor, Tensor]
"""s, B and A of a weight."""


def merged(weight: Tensor, update: Update, turned: bool) -> Tensor:
    """W' of a weight, in at least fp32; `turned` if it is stored as [d_in, d_out] (GPT-2)."""
    scale, b, a = update
    dtype = torch.promote_types(weight.dtype, torch.float32)
    delta = scale * b.to(dtype) @ a.to(dtype)
    delta = delta.mT if turned else delta
    if delta.shape != weight.shape:
        raise InputError(f"the update {list(delta.shape)} does not fit {list(weight.shape)}")
    return weight.to(dtype) + delta


def read_adapter(folder: Path, names: Collection[str], prefix: str) -> dict[str, Update]:
    """The updates in the adapter of a folder, by weight; {} without one. `names` are the model's, most with `prefix`.

    Raises `InputError` for anything but plain LoRA of these weights.
    """
    config, weights = folder / CONFIG, folder / WEIGHTS
    if not config.is_file():
        if weights.is_file():
            raise InputError(f"{folder} has no {CONFIG}, although it has {WEIGHTS}: complete the folder")
        return {}
    for name, value in read_json(config, dict[str, Any], AGAIN).items():
        if value not in PLAIN[name] if name in PLAIN else value and name not in NEUTRAL:
            raise InputError(f"{config}: {name} = {value!r} is not supported, only plain LoRA; {REMEDY}")
    fields = read_json(config, Config, AGAIN)
    if not weights.is_file():
        raise InputError(f"{folder} has no {WEIGHTS}, although it has {CONFIG}: complete the folder")
    with opened(weights) as file:
        tensors = {key.removeprefix("base_model.model."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    for name, x in tensors.items():
        if bad := int((~x.isfinite()).sum()):
            raise InputError(f"{weights}: {name} is not finite: {bad} of {x.numel()} values; {AGAIN}")
    with reading(weights, AGAIN):
        return dict(_updates(fields, tensors, names, prefix))


def _updates(
    fields: Config, tensors: Mapping[str, Tensor], names: Collection[str], prefix: str
) -> Iterator[tuple[str, Update]]:
    """(weight, (s, B, A)) of every map that an adapter holds."""
    for key in sorted(tensors):
        module = key.removesuffix(".lora_A.weight").removesuffix(".lora_B.weight")
        if module == key:
            raise InputError(f"{key} is not supported, only plain LoRA; {REMEDY}")
        names_ab = [f"{module}.lora_{x}.weight" for x in "AB"]
        if lacking := [name for name in names_ab if name not in tensors]:
            raise InputError(f"{lacking[0]} is missing; {AGAIN}")
        a, b = (tensors[name] for name in names_ab)
        places = (module, prefix + module, module.removeprefix(prefix))
        weight = next((f"{place}.weight" for place in places if f"{place}.weight" in names), None)
        if weight is None:
            raise InputError(f"it adapts {module}, which is no weight of its own in the model's files; {REMEDY}")
        rank = _of_pattern(fields.get("rank_pattern"), module, fields["r"])
        alpha = _of_pattern(fields.get("alpha_pattern"), module, fields["lora_alpha"])
        if a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank > 0:
            raise InputError(f"{key} {list(tensors[key].shape)} does not fit its rank {rank}")
        yield weight, (alpha / (rank**0.5 if fields.get("use_rslora") else rank), b, a)


def _of_pattern(pattern: Mapping[str, float] | None, module: str, default: float) -> float:
    """The value of the first regular expression that the end of a module's name matches, as in PEFT."""
    values = (value for key, value in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(values, default)
