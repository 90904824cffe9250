"""The graph of a model that runs in the page: `engine.Watched` as ONNX, with the weights in their file's precision.

An export takes 10 to 110 seconds, so graphs are kept in the cache, by the content of the weights and of the code.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from streamscope.viewer.engine import Watched

OPSET = 20


def export(model: Any) -> onnx.ModelProto:
    """The graph of one of our models, for any number of tokens up to its context."""
    watched = Watched(model)
    tokens = torch.zeros(1, 7, dtype=torch.long)
    values = [one.unchanged() for one in watched.controls.values()]
    length = torch.export.Dim("T", min=2, max=model.config.n_ctx)
    shapes = {"tokens": {1: length}, "values": tuple({} for _ in values)}
    with torch.no_grad():
        program = torch.onnx.export(
            watched, (tokens, *values), dynamo=True, dynamic_shapes=shapes, opset_version=OPSET, verbose=False,
            input_names=["tokens", *watched.controls], output_names=watched.outputs,
        )  # fmt: skip
    assert program is not None
    graph = program.model_proto
    shrink(graph)
    return graph


def shrink(model: onnx.ModelProto) -> None:
    """Store every fp32 weight as bf16 where that loses nothing, and cast it in the graph."""
    graph, casts, kept = model.graph, [], []
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or array.size < 256 or (array.view(np.uint32) & 0xFFFF).any():
            kept.append(tensor)
            continue
        name = f"{tensor.name}_bf16"
        raw = (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        kept.append(helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, raw, raw=True))
        casts.append(helper.make_node("Cast", [name], [tensor.name], to=TensorProto.FLOAT))
    nodes = list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend([*casts, *nodes])


def write(model: Any, path: Path) -> None:
    """Write the graph of a model."""
    path.write_bytes(export(model).SerializeToString())
