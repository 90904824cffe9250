"""Sparse dictionaries of a stream: which few of many directions add up to a state.

    z = JumpReLU(x W_enc + b_enc)           z_i = pre_i where pre_i > θ_i, else 0      x [D], z [F]
    x̂ = z W_dec + b_dec (+ x W_skip)        a transcoder's x̂ is the output of the part whose input is x

    dictionary = read_dictionary("runs/lfa-dictionaries/blocks.3.hook_context_post-s0")
    z = dictionary.encode(x); x̂ = dictionary.decode(z, x)

A folder is one of SAELens: cfg.json and sae_weights.safetensors. The architectures standard, topk, batchtopk, jumprelu,
transcoder and skip_transcoder are read, from a folder or hf:ID/FOLDER; written are jumprelu and the transcoders. A
folder of ours also names the weights of its model, and is refused for others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamscope.cli.disk import write_text
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.models.hooks import Edit, everywhere, match
from streamscope.models.tensors import read_tensors, weights_digest, write_tensors

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
ARCHITECTURES = ("standard", "topk", "batchtopk", "jumprelu", "transcoder", "skip_transcoder", "jumprelu_transcoder",
                 "jumprelu_skip_transcoder")  # fmt: skip
FOLDED = ("normalize_activations", "reshape_activations", "rescale_acts_by_decoder_norm")  # must be off
THRESHOLDS = ("threshold", "topk_threshold")
SAE_LENS = "6.54.0"  # the version whose format is written: its loader drops the hook of a file that names none
MAKE_ONE = "give a folder of `streamscope dictionaries`, of SAELens, or hf:ID/FOLDER"


@dataclass(frozen=True)
class Dictionary:
    """One dictionary; `hook` is read, `target` is rebuilt (the same but for a transcoder), of the stream `stream`."""

    W_enc: Float[Tensor, "D F"]
    b_enc: Float[Tensor, " F"]
    W_dec: Float[Tensor, "F D"]
    b_dec: Float[Tensor, " D"]
    threshold: Float[Tensor, " F"]
    W_skip: Float[Tensor, "D D"] | None = None
    k: int = 0
    """At most so many latents at a position; 0: as many as exceed their thresholds."""
    hook: str = ""
    target: str = ""
    stream: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        pre = x @ self.W_enc.to(x) + self.b_enc.to(x)
        z = torch.where(pre > self.threshold.to(x), pre, 0.0)
        if self.k and self.k < z.shape[-1]:
            largest = z.topk(self.k, -1)
            z = torch.zeros_like(z).scatter(-1, largest.indices, largest.values)
        return z

    def decode(self, z: Float[Tensor, "*rows F"], x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the latents add up to; `x` is the state that they are of, which a skip connection reads."""
        out = z @ self.W_dec.to(z) + self.b_dec.to(z)
        return out if self.W_skip is None else out + x @ self.W_skip.to(x)

    def rebuild(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """x̂ of the states x [..., D]."""
        return self.decode(self.encode(x), x)

    def stream_of(self, x: Tensor) -> Tensor:
        """Its stream in the activation of a hook: of parallel streams [..., N, D] one, else all."""
        return x[..., int(self.stream[1:]), :] if self.stream[1:].isdigit() else x

    def to(self, device: Any) -> "Dictionary":
        return replace(self, **{name: x.to(device) for name, x in self.weights().items()})

    def weights(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}


def read_dictionary(spec: str, model: Any = None) -> Dictionary:
    """The dictionary of a folder, for this model if one is given.

    Raises `InputError` for an architecture, activation or normalisation that is not read, a missing k or threshold,
    damaged weights, another width than the model's, and a dictionary of other weights.
    """
    folder = dictionary_folder(spec)
    with reading(folder / CONFIG, MAKE_ONE):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        architecture, metadata = str(config["architecture"]), {**config, **(config.get("metadata") or {})}
        activation, k = config.get("activation_fn_str") or "relu", 0
        if architecture not in ARCHITECTURES:
            raise unknown("architecture", architecture, list(ARCHITECTURES))
        if activation not in ("relu", "topk"):
            raise unknown("activation_fn_str", activation, ["relu", "topk"])
        for name in FOLDED:
            if (value := config.get(name) or "none") != "none":
                raise InputError(f"{name} {value} is not read: give a dictionary without it")
        if "topk" in (architecture, activation):
            k = int(config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k") or 0)
            if k < 1:
                raise InputError("it names no k of its topk: add it")
    W = {name: x.float() for name, x in read_tensors(folder / WEIGHTS, MAKE_ONE)[0].items()}
    with reading(folder / WEIGHTS, MAKE_ONE):
        D, F, out = *(*W["W_enc"].shape, 0)[:2], W["b_dec"].numel()
        sizes = {"W_enc": (D, F), "b_enc": (F,), "W_dec": (F, out), "b_dec": (out,), "W_skip": (out, D)}
        if wrong := [name for name, size in sizes.items() if name in W and W[name].shape != size]:
            raise InputError(f"{wrong[0]} has the shape {[*W[wrong[0]].shape]}, not {[*sizes[wrong[0]]]}")
        threshold = W.get("threshold", W.get("topk_threshold", torch.zeros(())))
        if W.keys().isdisjoint(THRESHOLDS) and ("jumprelu" in architecture or architecture == "batchtopk"):
            raise InputError(f"it has no threshold, which {architecture} needs: {MAKE_ONE}")
        others = W.keys() - {*sizes, *THRESHOLDS}  # such as a scaling_factor of ones, which changes nothing
        if unread := sorted(name for name in others if not (W[name] == 1).all()):
            raise InputError(f"{', '.join(unread)} is not read: give a dictionary without it")
        b_enc = W.get("b_enc", torch.zeros(F))
        if config.get("apply_b_dec_to_input", architecture == "standard") and "transcoder" not in architecture:
            b_enc = b_enc - W["b_dec"] @ W["W_enc"]
        hook, target, stream = (str(metadata.get(name) or "") for name in ("hook_name", "hook_name_out", "stream"))
        dictionary = Dictionary(
            W["W_enc"], b_enc, W["W_dec"], W["b_dec"], threshold.expand(F).clone(),
            W["W_skip"].T.contiguous() if "W_skip" in W else None, k, hook, target or hook, stream, metadata,
        )  # fmt: skip
    if model is not None:
        if len(dictionary.W_enc) != model.cfg.d_model:
            raise InputError(f"{spec} reads {len(dictionary.W_enc)} dimensions, the model has {model.cfg.d_model}")
        if metadata.get("weights_digest") and metadata["weights_digest"] != weights_digest(model):
            raise InputError(f"{spec}: this dictionary was trained on other weights; {MAKE_ONE}")
    return dictionary


def without_latents(dictionary: Dictionary, latents: Sequence[int], model: Any) -> dict[str, Edit]:
    """Edits that remove latents at every position: x ← x − Σ_j z_j W_dec[j], of the dictionary's stream.

    BOS is a position as well, though no dictionary of ours is trained on it. What the dictionary does not explain
    stays. A transcoder reads `hook` and changes `target`.
    """
    if max(latents) >= (n := len(dictionary.b_enc)):
        raise InputError(f"latent {max(latents)} does not exist: the dictionary has 0 to {n - 1}")
    match(model, [dictionary.hook, dictionary.target])
    dictionary, removed = dictionary.to(model.cfg.device), sorted(set(latents))
    return subtracting(dictionary, lambda z: z[..., removed] @ dictionary.W_dec[removed].to(z))


def subtracting(dictionary: Dictionary, part_of: Callable[[Tensor], Tensor]) -> dict[str, Edit]:
    """Edits that subtract `part_of(z)` [..., D], of the latents z [..., F] at a position, from the stream there. They
    raise `InputError` in a pass where the hook of a transcoder comes after its target."""
    source, target, memory = dictionary.hook, dictionary.target, dict[str, Tensor]()

    def read(x: Tensor, hook: Any) -> Tensor:
        memory["x"] = x
        return x

    def write(y: Tensor, hook: Any) -> Tensor:
        if source != target and not memory:
            raise InputError(f"{target} comes before {source}: of what is read later, nothing can be rebuilt there")
        x, new = y if source == target else memory.pop("x"), y.clone()
        dictionary.stream_of(new).sub_(part_of(dictionary.encode(dictionary.stream_of(x))))
        return new

    return {source: everywhere(read), target: everywhere(write)}


def dictionary_folder(spec: str) -> Path:
    """The folder of a dictionary; of hf:ID/FOLDER, in the cache. Raises `InputError` for another form."""
    if not spec.startswith("hf:"):
        return Path(spec).expanduser()
    from streamscope.models.interop.huggingface.convert import source_folder  # for these names only

    parts = spec[3:].split("/")
    if len(parts) < 2:
        raise InputError(f"{spec}: write hf:ORG/NAME/FOLDER")
    return source_folder("/".join(parts[:2])).joinpath(*parts[2:])


def write_dictionary(folder: Path, dictionary: Dictionary) -> None:
    """Write a folder that SAELens opens: a JumpReLU dictionary, or a transcoder with or without a skip connection.

    Raises `InputError` for a dictionary that keeps the k largest latents, which neither can say.
    """
    if dictionary.k:
        raise InputError(f"{folder}: a dictionary of the {dictionary.k} largest latents is not written: thresholds are")
    transcoder = dictionary.target != dictionary.hook
    tensors, skip = dictionary.weights(), ""
    if dictionary.W_skip is not None:
        tensors["W_skip"], skip = dictionary.W_skip.T, "skip_"  # theirs is [D out, D in]
    config = {
        "architecture": f"jumprelu_{skip}transcoder" if transcoder else "jumprelu",
        "d_in": len(dictionary.W_enc), "d_sae": len(dictionary.b_enc), "dtype": "float32", "device": "cpu",
        **({"d_out": dictionary.W_dec.shape[1]} if transcoder else {}), "apply_b_dec_to_input": False,
        "normalize_activations": "none", "reshape_activations": "none",
        "metadata": {
            **dictionary.about, "hook_name": dictionary.hook,
            **({"hook_name_out": dictionary.target} if transcoder else {}),
            "stream": dictionary.stream, "prepend_bos": True, "sae_lens_version": SAE_LENS,
            "streamscope_version": version("streamscope"),
        },
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS, tensors, {})
    write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
