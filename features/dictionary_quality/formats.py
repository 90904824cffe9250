"""Writes transcoders in circuit-tracer's format: `config.yaml`, and beside it `layer_L.safetensors` for every layer L.

    z = JumpReLU(x W_encᵀ + b_enc), x̂ = z W_dec + b_dec + x W_skipᵀ     W_enc [F, D], W_dec [F, D], W_skip [D, D]

JumpReLU keeps what exceeds `activation_function.threshold` [F]. Hooks are named without their layer. Source:
circuit-tracer 0.5, `transcoder/single_layer_transcoder.py`.
"""

from pathlib import Path

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError
from streamscope.cli.terminal import yaml
from streamscope.cli.user_code import latents_in
from streamscope.instruments.result import Result
from streamscope.models.dictionaries import read_dictionary
from streamscope.models.tensors import write_tensors


def export(result: Result, path: Path) -> list[Path]:
    """Write the transcoders of a result. Raises `InputError` for other dictionaries, and unless they are of one pair of
    hooks in every layer from 0 on."""
    folders = [(latents_in(spec, complete=True) or (spec, []))[0] for spec in result.about["options"]["dictionary"]]
    transcoders = {(d.hook, d.target): d for d in (read_dictionary(str(folder)) for folder in folders)}
    if plain := [hook for (hook, target), d in transcoders.items() if hook == target or d.k]:
        raise InputError(f"circuit-tracer reads transcoders with thresholds: the dictionary of {plain[0]} is none")
    source, target = next((tuple(hook.split(".", 2)[2] for hook in hooks) for hooks in transcoders), ("", ""))
    layers = [(f"blocks.{layer}.{source}", f"blocks.{layer}.{target}") for layer in range(len(folders))]
    if not folders or set(layers) != set(transcoders):
        raise InputError("circuit-tracer reads transcoders of one pair of hooks, of every layer from 0 on: give these")
    files = {path.with_name(f"layer_{layer}.safetensors"): transcoders[hooks] for layer, hooks in enumerate(layers)}
    for file, d in files.items():
        skip = {} if d.W_skip is None else {"W_skip": d.W_skip.T}
        write_tensors(file, {"W_enc": d.W_enc.T, "W_dec": d.W_dec, "b_enc": d.b_enc, "b_dec": d.b_dec,
                             "activation_function.threshold": d.threshold, **skip}, {})  # fmt: skip
    config = {"model_kind": "transcoder_set", "model_name": str(d.about.get("model_name", "")),
              "feature_input_hook": source, "feature_output_hook": target}  # fmt: skip
    write_text(path, "".join(f"{name}: {yaml(value)}\n" for name, value in config.items()))
    return [path, *files]
