"""What can be changed by hand in a forward pass, as JSON that holds no code, as arrays, and as edits.

    {"heads": {"L2.H3": {"scale": 0}, "L4.*": {"alpha": 4, "gate": "open"}},
     "streams": {"token": "everywhere"},
     "mixing": ["L3.v"], "h_res": ["L2.attn"], "canon": ["L0.a"],
     "latents": {"runs/dictionaries/blocks.3.hook_resid_post-s0": [17]}}

    scale     factor on the head's output z; 0 ablates the head, 1 changes nothing
    alpha     factor α on the head's scores before the softmax; above 1 sharpens its attention (DST §2.3)
    gate      "open" sets the head's gate to 1, "shut" to 0
    streams   the stream reads as 0: for the "unembedding" only, or "everywhere"
    mixing    projections whose mixing matrix becomes the identity
    h_res     hyper-connections whose mixing of the streams H_res becomes the identity
    canon     Canon layers that add nothing
    latents   latents that are removed at every position, by the folder of their dictionary, as by --edit FOLDER:17

Every key is optional. Heads and places are written as on the command line (`models.head_spec`). The live page sets the
same JSON, and `--edit FILE.json` of every instrument reads it. `controls` lists what a model has; `control_hooks` turns
arrays into edits, for a forward pass in torch and for the graph that the page runs.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamscope.cli import user_code
from streamscope.cli.disk import read_json, sha256
from streamscope.cli.errors import InputError, reading, unknown
from streamscope.models.config import Hyper, ModelConfig
from streamscope.models.dictionaries import WEIGHTS, dictionary_folder, read_dictionary, without_latents
from streamscope.models.head_spec import parse_heads, parse_parts
from streamscope.models.hooks import Edit, everywhere

EXAMPLE = '{"heads": {"L2.H3": {"scale": 0}}}'
KEYS = ("heads", "streams", "mixing", "h_res", "canon", "latents")
HEAD_KEYS = ("scale", "alpha", "gate")
OTHERS = ("alpha", "gate_keep", "gate_force", "stream_unembed", "stream_all", "mixing", "h_res", "canon")
"""The controls of our own models besides the scale of heads."""
GATES = {"open": 1.0, "shut": 0.0}
READERS = {"unembedding": "stream_unembed", "everywhere": "stream_all"}
"""Who reads the stream as 0, and the array that says it."""
BRIDGED = "this model runs in a bridge, which only shows attention and scales heads"


@dataclass(frozen=True)
class Control:
    """An array that changes the forward pass: its axes, their labels, and the value that changes nothing."""

    labels: tuple[tuple[str, ...], ...]
    """The names along each axis."""
    neutral: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.labels))

    def unchanged(self) -> Tensor:
        return torch.full(self.shape, self.neutral)


def identity_projections(config: ModelConfig) -> dict[str, str]:
    """{name: module in a block} of the projections whose mixing matrix has an identity: {"v": "attn"}."""
    return {
        path.partition(".")[2]: path.partition(".")[0]
        for path, spec, d_in, d_out in config.projections()
        if spec.mix is not None and d_in == d_out
    }


def stream_names(config: ModelConfig) -> tuple[str, ...]:
    """The parallel streams: token and context, s0, s1, …, or () for a single stream."""
    residual = config.residual
    return tuple(f"s{i}" for i in range(residual.n)) if isinstance(residual, Hyper) else residual.streams


def controls(config: Any) -> dict[str, Control | str]:
    """The arrays that a model takes, or the reason why it lacks one; `config` is its configuration."""
    layers = tuple(f"L{layer}" for layer in range(config.n_layers))
    heads = layers, tuple(f"H{head}" for head in range(config.n_heads))
    if not isinstance(config, ModelConfig):  # some families read scores before the hook, and would discard an edit
        return {"head_scale": Control(heads)} | dict.fromkeys(OTHERS, BRIDGED)
    gate, streams = config.attention.gate is not None, stream_names(config)
    projections, canon = tuple(identity_projections(config)), config.canon
    mixes = any(spec.mix is not None for _, spec, _, _ in config.projections())
    hyper = isinstance(config.residual, Hyper)
    no_mixing = "its mixing matrices are not square" if mixes else "this model has no mixing matrices"
    no_canon = "this model has no Canon layers" if canon is None else "its Canon layers replace their input"
    return {
        "head_scale": Control(heads),
        "alpha": Control(heads),
        "gate_keep": Control(heads) if gate else "this model has no gates",
        "gate_force": Control(heads, 0.0) if gate else "this model has no gates",
        "stream_unembed": Control((streams,)) if streams else "this model has one residual stream",
        "stream_all": Control((streams,)) if streams else "this model has one residual stream",
        "mixing": Control((layers, projections)) if projections else no_mixing,
        "h_res": Control((layers, ("attn", "mlp"))) if hyper else "this model has no hyper-connections",
        "canon": Control((layers, tuple(config.canon_widths()))) if canon and canon.residual else no_canon,
    }


# ---- JSON -> arrays ----------------------------------------------------------------------------


def control_values(data: Mapping[str, Any], config: Any) -> dict[str, Tensor]:
    """The arrays of the controls that the model has, as the JSON sets them; unchanged elsewhere."""
    have = controls(config)
    values = {name: control.unchanged() for name, control in have.items() if isinstance(control, Control)}

    def array(name: str, key: str) -> tuple[Tensor, Control]:
        control = have[name]
        if isinstance(control, str):
            raise InputError(f"{key} cannot be changed: {control}")
        return values[name], control

    if wrong := [key for key in data if key not in KEYS]:
        raise unknown("key of the edits", wrong[0], list(KEYS))
    for spec, head_data in _object(data, "heads").items():
        heads = parse_heads(spec, config.n_layers, config.n_heads)
        for key, value in _object({spec: head_data}, spec).items():
            if key == "gate":
                settings = {"gate_keep": 0.0, "gate_force": _choice(GATES, value, f"{spec}.gate")}
            elif key in HEAD_KEYS:
                settings = {"head_scale" if key == "scale" else "alpha": _number(value, f"{spec}.{key}", key)}
            else:
                raise unknown(f"key of {spec}", key, list(HEAD_KEYS))
            for name, number in settings.items():
                for layer, head in heads:
                    array(name, f"{spec}.{key}")[0][layer, head] = number
    for stream, reach in _object(data, "streams").items():
        target, control = array(_choice(READERS, reach, f"streams.{stream}"), f"stream {stream}")
        if stream not in control.labels[0]:
            raise unknown("stream", stream, list(control.labels[0]))
        target[control.labels[0].index(stream)] = 0.0
    for key in ("mixing", "h_res", "canon"):
        places = data.get(key, [])
        if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
            raise InputError(f'{key} must be a list of places, such as ["L2.attn"], got {places!r:.60}')
        if places:
            target, control = array(key, key)
            names = control.labels[1]
            for layer, name in parse_parts(places, config.n_layers, names, f"place of {key}"):
                target[layer, names.index(name)] = 0.0
    latents_of(data)
    return values


def latents_of(data: Mapping[str, Any]) -> dict[str, list[int]]:
    """The latents that the JSON removes, by the folder of their dictionary. Raises `InputError` for another form."""
    entries = _object(data, "latents")
    for folder, latents in entries.items():
        if not isinstance(latents, list) or not all(type(i) is int and i >= 0 for i in latents):
            raise InputError(f"latents of {folder} must be a list of numbers, such as [17], got {latents!r:.60}")
    return {folder: latents for folder, latents in entries.items() if latents}


def spelled_out(data: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The same edits with every head and place by its own name, L4.H0 and L4.H1 for L4.*, as the live page writes them.

    `data` has passed `control_values`.
    """
    result = dict(data)
    heads: dict[str, Any] = {}
    for spec, head_data in data.get("heads", {}).items():
        for layer, head in parse_heads(spec, config.n_layers, config.n_heads):
            name = f"L{layer}.H{head}"
            heads[name] = heads.get(name, {}) | head_data
    if heads:
        result["heads"] = heads
    for key in ("mixing", "h_res", "canon"):
        if data.get(key):
            control = controls(config)[key]
            assert isinstance(control, Control)
            places = parse_parts(data[key], config.n_layers, control.labels[1], f"place of {key}")
            result[key] = [f"L{layer}.{name}" for layer, name in places]
    return result


def _object(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{key} must be an object, got {value!r:.60}")
    return value


def _choice(choices: Mapping[str, Any], value: Any, where: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{where} must be {' or '.join(choices)}, got {value!r:.60}")
    return choices[value]


def _number(value: Any, where: str, key: str) -> float:
    limits = torch.finfo(torch.float32)  # beyond it a number is 0 or infinite in the array
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limits.max
    if not number or (key == "alpha" and value < limits.tiny):
        raise InputError(f"{where} must be a finite number{' above 0' if key == 'alpha' else ''}, got {value!r:.60}")
    return float(value)


# ---- arrays -> edits -----------------------------------------------------------------------------


def control_hooks(
    config: Any, values: Mapping[str, Tensor], neutral: Mapping[str, Tensor] | None = None
) -> dict[str, Edit]:
    """The edits of the hooks that `values` change: arrays by control, with any subset of the model's controls.

    A hook has one edit. Values are only read inside the edits, so `values` may be what a graph is traced with. With the
    arrays that change nothing, `neutral`, there are edits only in the layers where an array differs from its own there.
    """

    def changes(name: str, layer: int) -> bool:
        if neutral is None:
            return True
        a, b = values[name], neutral[name]
        return not torch.equal(a, b) if name in READERS.values() else not torch.equal(a[layer], b[layer])

    edits: dict[str, Edit] = {}
    for layer in range(config.n_layers):  # the gate's two arrays belong together
        acting = {
            name: value for name, value in values.items()
            if changes("gate_keep" if name == "gate_force" else name, layer)
        }  # fmt: skip
        edits |= {f"blocks.{layer}.{hook}": fn for hook, fn in _of_layer(config, acting, layer).items()}
    return edits


def _of_layer(config: Any, values: Mapping[str, Tensor], layer: int) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    if "head_scale" in values:
        edits["attn.hook_z"] = _scaled(values["head_scale"][layer][:, None])
    if "alpha" in values:
        edits["attn.hook_attn_scores"] = _scaled(values["alpha"][layer][:, None, None])
    if "gate_keep" in values:
        edits["attn.hook_gate"] = _scaled(values["gate_keep"][layer][:, None], values["gate_force"][layer][:, None])
    if "mixing" in values:
        for i, (name, module) in enumerate(identity_projections(config).items()):
            edits[f"{module}.hook_{name}_mix"] = _towards_identity(values["mixing"][layer, i])
    if "h_res" in values:
        for i, branch in enumerate(("attn", "mlp")):
            edits[f"{branch}_hc.hook_res"] = _towards_identity(values["h_res"][layer, i])
    if "canon" in values:
        for i, place in enumerate(config.canon_widths()):
            edits[f"canon_{place}.hook_conv"] = _scaled(values["canon"][layer, i])
    last = layer == config.n_layers - 1
    factors = {place: values["stream_all"] for place in ("pre", "mid") if "stream_all" in values}
    if last and (final := [values[name] for name in READERS.values() if name in values]):
        factors["post"] = final[0] * final[-1]  # 0 or 1
    for place, factor in factors.items():
        if isinstance(config.residual, Hyper):
            edits[f"hook_streams_{place}"] = _scaled(factor[:, None])
        else:
            for i, stream in enumerate(stream_names(config)):
                edits[f"hook_{stream}_{place}"] = _scaled(factor[i])
    return edits


def _scaled(factor: Tensor, plus: Tensor | None = None) -> Edit:
    @everywhere
    def edit(x: Tensor, hook: Any) -> Tensor:
        return x * factor.to(x) if plus is None else x * factor.to(x) + plus.to(x)

    return edit


def _towards_identity(keep: Tensor) -> Edit:
    @everywhere
    def edit(W: Tensor, hook: Any) -> Tensor:
        identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        return W * keep.to(W) + identity * (1 - keep.to(W))

    return edit


def edits_of(data: Mapping[str, Any], model: Any) -> dict[str, Edit]:
    """The edits of a model that the JSON asks for: only in the layers, and of the controls, that it changes."""
    edits = control_hooks(model.config, control_values(data, model.config), control_values({}, model.config))
    for folder, latents in latents_of(data).items():
        for hook, fn in without_latents(read_dictionary(folder, model), latents, model).items():
            edits[hook] = in_sequence(edits[hook], fn) if hook in edits else fn
    return edits


def in_sequence(first: Edit, then: Edit) -> Edit:
    return lambda x, hook: then(first(x, hook), hook)


# ---- edits from a user's own file, for `--edit` of every command that measures a model -----------------
#
#     edits.json                              edits saved in the live page
#     halve.py:halve@blocks.3.attn.hook_z     halve(value, hook) -> value, at a hook or a pattern of hooks
#     halve.py:edits                          edits(model) -> {hook or pattern: function(value, hook) -> value}
#     halve.py:EDITS                          such a dict itself
#     FOLDER:17 or FOLDER:3,17-19             latents of a dictionary are removed
#
# Every edit must fire, keep shape and dtype, leave its argument unchanged and return finite values (`hooks.edit`).
# Those of Python must also treat every row of a batch alike and be deterministic: instruments choose batches for
# speed, so otherwise results would depend on which texts share a batch.

MAKE_ONE = f"give an object such as {EXAMPLE}"
ROUNDING = 1e-3
"""Allowed difference between a row alone and in a batch, as a share of the largest value."""


def user_edits(model: Any, specs: Sequence[str]) -> dict[str, Edit]:
    """{hook or pattern: function} of all specs, in order; two edits of one hook act one after the other."""
    edits: dict[str, Edit] = {}
    for spec in specs:
        latents = user_code.latents_in(spec)
        if latents is not None:
            spec_edits: Mapping[str, Edit] = without_latents(read_dictionary(str(latents[0]), model), latents[1], model)
        elif spec.endswith(".json"):
            data = read_json(Path(spec), dict[str, Any], MAKE_ONE)
            with reading(spec):
                spec_edits = edits_of(data, model)
            if not spec_edits:
                raise InputError(f"{spec} changes nothing: give at least one edit, such as {EXAMPLE}")
        else:
            spec_edits = {hook: _checked(spec, fn) for hook, fn in _edits_of(model, spec).items()}
        for hook, fn in spec_edits.items():
            edits[hook] = in_sequence(edits[hook], fn) if hook in edits else fn
    return edits


def _edits_of(model: Any, spec: str) -> Mapping[str, Edit]:
    code, _, hook = spec.partition("@")
    member = user_code.member(code, lambda value: isinstance(value, Mapping) or _n_arguments(value) in (1, 2), "edit")
    path = user_code.split(code)[0]
    if isinstance(member, Mapping):
        edits: Any = member
    elif _n_arguments(member) == 2:
        if not hook:
            raise InputError(f"{spec} is a function of (value, hook): name the hook, as in {spec}@blocks.3.attn.hook_z")
        return {hook: member}
    else:
        try:
            edits = member(model)
        except Exception as error:
            raise InputError(f"{spec} failed: {user_code.error_line(error, path)}") from error
    if hook:
        raise InputError(f"{spec} names its own hooks: leave out @{hook}")
    if not isinstance(edits, Mapping) or not edits or not all(map(callable, edits.values())):
        raise InputError(f"{spec} gave {edits!r:.60}, not a dict of hook -> function(value, hook)")
    return edits


def _n_arguments(member: Any) -> int:
    """Number of required arguments of a function; 0 for other objects."""
    if not callable(member) or isinstance(member, type):
        return 0
    required = [p for p in inspect.signature(member).parameters.values() if p.default is p.empty]
    by_position = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required)
    return len(required) if by_position else 0


def _checked(spec: str, fn: Edit) -> Edit:
    """Wrap the function: errors become one line, and its first batch is compared with one of its rows run alone."""
    path, compared = user_code.split(spec.partition("@")[0])[0], False

    def call(x: Tensor, hook: Any) -> Any:
        try:
            return fn(x, hook)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{spec} failed at {hook.name}: {user_code.error_line(error, path)}") from error

    def edit(x: Tensor, hook: Any) -> Any:
        nonlocal compared
        if compared or len(x) < 2:
            return call(x, hook)
        compared, row = True, x[-1:].clone()  # before the edit sees the batch and perhaps changes it
        alone, y = call(row, hook), call(x, hook)
        if isinstance(y, Tensor) and y.shape == x.shape and not _same(alone, y[-1:]):  # others: `apply_edit`
            raise InputError(
                f"{spec} at {hook.name} gives another value for a row alone than in a batch; "
                "an edit must treat every row alike and be deterministic"
            )
        return y

    return edit


def _same(alone: Any, row: Tensor) -> bool:
    """Whether a row alone equals the row in the batch, up to rounding."""
    if not isinstance(alone, Tensor) or alone.shape != row.shape:
        return False
    finite = row.isfinite()
    scale = float(row[finite].abs().max()) if bool(finite.any()) else 0.0
    return torch.allclose(alone.to(row.dtype), row, rtol=0.0, atol=ROUNDING * scale, equal_nan=True)


def about_edits(specs: Sequence[str]) -> list[dict[str, str]]:
    """Spec and file sha256 of each edit, and of dictionaries that JSON names, for the record of a measurement."""
    files = [(spec, user_code.edit_file(spec)) for spec in specs]
    for spec in specs:
        if spec.endswith(".json"):
            folders = latents_of(read_json(Path(spec), dict[str, Any], MAKE_ONE))
            files += [(folder, dictionary_folder(folder) / WEIGHTS) for folder in folders]
    about = []
    for name, file in files:
        with reading(name):
            about.append({"edit": name, "sha256": sha256(file)})
    return about
