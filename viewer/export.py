"""The graph of a model that runs in the page: `engine.Watched` as ONNX, with the weights in their file's precision.

    graph = graph_of(load("stories/lfa"))        an ONNX file; its inputs are tokens, rows of the lens, and controls

An export takes 10 to 110 seconds, most of it for the architecture. So the cache keeps the graph of an architecture
without its weights, by the content of the configuration and of our code; every run and snapshot of it fills in its own.
"""

import hashlib
import json
import logging
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
import torch
from onnx import TensorProto, helper, numpy_helper

from streamscope import models
from streamscope.cli.disk import read_bytes, write_atomically
from streamscope.cli.errors import InputError
from streamscope.text.cache import cache_root, cached
from streamscope.viewer import engine

OPSET = 20
SMALL = 256  # weights of fewer numbers are stored as they are


def graph_of(model: Any, *extras: Any) -> bytes:
    """The graph of one of our models, for any number of tokens from two up to its context; `extras` as in `Watched`.
    Raises `InputError` for a model in a bridge, whose forward pass is another library's."""
    if not hasattr(model, "segment"):
        raise InputError(
            f"{model.config.name} runs in a bridge, which only the server and the notebook show: drop --out"
        )
    watched = engine.Watched(model, *extras).eval()
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in watched.parameters()):
        watched = deepcopy(watched).float().cpu()  # as a page computes; the cache knows no other dtype
    graph = onnx.load_from_string(_skeleton(watched))
    _fill(graph, dict(watched.named_parameters()))
    return bytes(graph.SerializeToString())


def digest_of(watched: engine.Watched) -> str:
    """What the graph of a model depends on, besides weights: configuration, lens, dictionary, our code, libraries."""
    root = Path(models.__file__).parent
    files = [root / f"{name}.py" for name in ("decoder", "transformer", "dictionaries")]
    files += [Path(__file__).with_name(f"{name}.py") for name in ("engine", "export", "shown")]
    files += [file for part in ("config", "hooks", "layers") for file in (root / part).glob("*.py")]
    digest = hashlib.sha256()
    about = {**watched.model.to_dict(), "name": "", "lens": bool(watched.maps), "dictionary": None}
    if (d := watched.dictionary) is not None:
        about["dictionary"] = [len(d.b_enc), d.k, d.hook, d.target, d.stream]
    for text in (json.dumps(about, sort_keys=True), torch.__version__, onnx.__version__):
        digest.update(text.encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def _skeleton(watched: engine.Watched) -> bytes:
    """The graph of an architecture, whose weights are inputs; from the cache, else exported."""

    def build(folder: Path) -> None:
        name = watched.model.config.name
        about = f"{name}: preparing its graph, once for this architecture; this takes 10 to 110 seconds"
        print(about, file=sys.stderr, flush=True)
        content = _export(watched).SerializeToString()
        write_atomically(folder / "graph.onnx", lambda part: part.write_bytes(content))
        write_atomically(folder / "sha256", lambda part: part.write_text(hashlib.sha256(content).hexdigest()))

    def read(folder: Path) -> bytes:
        content = read_bytes(folder / "graph.onnx")
        if hashlib.sha256(content).hexdigest() != read_bytes(folder / "sha256").decode():
            raise InputError(f"{folder} is damaged")
        return content

    return cached(cache_root() / "viewer" / digest_of(watched), build, read)


def _export(watched: engine.Watched) -> onnx.ModelProto:
    """The graph without weights, after the optimiser: it cannot fold what is an input."""
    values = [control.unchanged() for control in watched.controls.values()]
    length, rows = torch.export.Dim("T", min=2, max=watched.model.config.n_ctx), torch.export.Dim("N")
    shapes = {"tokens": {1: length}, "lens_at": {0: rows}, "values": tuple({} for _ in values)}
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # what is not installed, in four lines
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                watched, (torch.zeros(1, 7, dtype=torch.long), torch.arange(5), *values), dynamo=True, optimize=False,
                dynamic_shapes=shapes, opset_version=OPSET, verbose=False,
                input_names=["tokens", "lens_at", *watched.controls], output_names=watched.outputs,
            )  # fmt: skip
    finally:
        log.setLevel(level)
    assert program is not None
    proto = program.model_proto
    graph, weights = proto.graph, {name for name, _ in watched.named_parameters()}
    initializers = [tensor for tensor in graph.initializer if tensor.name not in weights]
    missing = weights - {tensor.name for tensor in graph.initializer}
    assert all(".logvar." in name for name in missing), "a weight is not in the graph"  # read in training alone
    for tensor in graph.initializer:
        if tensor.name in weights:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    model = onnxscript.optimizer.optimize(proto)
    del model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    for entry in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del entry.metadata_props[:]  # where nodes came from is two thirds of a small graph
        entry.doc_string = ""
    return model


def _fill(model: onnx.ModelProto, weights: dict[str, torch.Tensor]) -> None:
    """Turn the inputs that are weights into constants: bf16 where that loses nothing, cast in the graph."""
    graph, casts = model.graph, []
    inputs = [value_info for value_info in graph.input if value_info.name not in weights]
    for name in [value_info.name for value_info in graph.input if value_info.name in weights]:
        weight = weights[name]
        array = weight.detach().float().cpu().contiguous().numpy()
        bits = array.view(np.uint32)
        if array.size < SMALL or (bits & 0xFFFF).any():
            graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        raw = (bits >> 16).astype("<u2").tobytes()
        graph.initializer.append(helper.make_tensor(f"{name}:bf16", TensorProto.BFLOAT16, array.shape, raw, raw=True))
        casts.append(helper.make_node("Cast", [f"{name}:bf16"], [name], to=TensorProto.FLOAT))
    nodes = list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend([*casts, *nodes])
