"""Reads and writes circuits as the MIB benchmark has them: JSON, and .pt of tensors.

    r = Circuits(task="ioi").measure(model)
    r.save("circuit.json")                   {"cfg": …, "nodes": {"a0.h1": {"in_graph": …}}, "edges": {"a0.h1->m2": …}}
    r.save("circuit.pt")                     edges_scores and edges_in_graph [senders, readers], src_nodes, dst_nodes
    CircuitFile.read("circuit.json")         the edges, the sizes of the model, and f of each share of edges

Our scores have MIB's sign: how much minus the metric rises when the edge is patched. Models with other edges than GPT-2
have further names (`x3.mlp`, `a3.kv1<k>`, `a3`), which MIB's own code does not know. Our .pt files also say which pairs
of a sender and a reader are edges (real_edge_mask); without it, a file is read as that of a GPT-2. Both of our forms
add `faithfulness`, which MIB's own code skips: f of the best edges by size, for each share of the edges.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamscope.cli.disk import write_atomically, write_text
from streamscope.cli.errors import InputError
from streamscope.instruments.result import Result

CFG = ("n_layers", "n_heads", "parallel_attn_mlp", "d_model")
COLUMNS = ["edge", "score", "in_graph"]
CURVE = ["share", "edges", "f", "f_low", "f_high", "random"]


def export(result: Result, path: Path) -> list[Path]:
    """Write the circuit of a result. Raises `InputError` for several runs."""
    frame = result.tables.get("edges", result.table()).frame
    if "run" in frame or "mib" not in result.about:
        raise InputError(f"{path} holds the circuit of one run: give one run, or write .parquet")
    edges = frame.rename(columns={"in_circuit": "in_graph"}).assign(score=frame["chosen_by"])
    curve = result.tables["faithfulness"].frame.query("ranking == 'size'")
    write_circuit(edges, {name: result.about["mib"][name] for name in CFG}, path, curve)
    return [path]


def write_circuit(
    edges: pd.DataFrame, cfg: Mapping[str, Any], path: Path, faithfulness: pd.DataFrame | None = None
) -> None:  # fmt: skip
    """Write a frame of edges (edge, score, in_graph), and f for each share of edges, in the form of the suffix."""
    sender, reader = (edges["edge"].str.split("->").str[i] for i in (0, 1))
    in_circuit = edges["in_graph"].to_numpy(bool)
    inside = {*sender[in_circuit], *reader[in_circuit].str.partition("<")[0]}
    senders, readers = (
        list(known) if {*names} <= {*known} else list(dict.fromkeys(names))
        for names, known in zip((sender, reader), gpt2_parts(cfg), strict=True)
    )  # fmt: skip
    more: dict[str, Any] = {}
    if faithfulness is not None:  # JSON has no NaN
        curve = faithfulness[CURVE].astype(float)
        more["faithfulness"] = curve.astype(object).where(curve.notna(), None).to_dict("records")
    if path.suffix == ".json":
        nodes = {name: {"in_graph": name in inside} for name in dict.fromkeys([*senders, "logits"])}
        rows = zip(edges["edge"], edges["score"], in_circuit, strict=True)
        entries = {name: {"score": float(score), "in_graph": bool(in_graph)} for name, score, in_graph in rows}
        write_text(path, json.dumps({"cfg": dict(cfg), "nodes": nodes, "edges": entries, **more}))
        return
    places = [senders.index(name) for name in sender], [readers.index(name) for name in reader]
    scores = torch.zeros(len(senders), len(readers))
    in_graph, real = torch.zeros_like(scores, dtype=torch.bool), torch.zeros_like(scores, dtype=torch.bool)
    scores[places], in_graph[places] = torch.tensor(edges["score"].to_numpy(np.float32)), torch.tensor(in_circuit)
    real[places] = True
    file = {"cfg": dict(cfg), "src_nodes": senders, "dst_nodes": readers, "edges_scores": scores,
            "edges_in_graph": in_graph, "real_edge_mask": real,
            "nodes_in_graph": torch.tensor([name in inside for name in senders]), **more}  # fmt: skip
    write_atomically(path, lambda part: torch.save(file, part))


@dataclass(frozen=True)
class CircuitFile:
    cfg: Mapping[str, Any]
    """The sizes of the model: n_layers, n_heads, d_model, parallel_attn_mlp."""
    edges: pd.DataFrame
    """edge, score, in_graph."""
    faithfulness: pd.DataFrame
    """share, edges, f, f_low, f_high, random; without rows in a file that others wrote."""

    @classmethod
    def read(cls, path: str | Path) -> "CircuitFile":
        """Read a .json or .pt. Raises `InputError` for a file of another form."""
        path = Path(path)
        try:
            if path.suffix == ".pt":
                d = torch.load(path, weights_only=True)
                rows = _rows_of_matrix(d)
            else:
                d = json.loads(path.read_text(encoding="utf-8"))
                rows = [(name, float(entry["score"]), bool(entry["in_graph"])) for name, entry in d["edges"].items()]
            cfg = {name: d["cfg"][name] for name in CFG}
            curve = [{name: entry[name] for name in CURVE} for entry in d.get("faithfulness", [])]
            faithfulness = pd.DataFrame(curve, columns=CURVE, dtype=float)
        except Exception as error:  # torch's unpickler raises errors of its own
            raise InputError(f"{path} is no circuit of MIB's form ({' '.join(str(error).split())[:100]})") from None
        return cls(cfg, pd.DataFrame(rows, columns=COLUMNS), faithfulness)


def _rows_of_matrix(d: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    mask, (senders, readers) = d.get("real_edge_mask"), gpt2_parts(d["cfg"])
    if mask is None and not ({*d["src_nodes"]} <= {*senders} and {*d["dst_nodes"]} <= {*readers}):
        raise ValueError("it has parts that a GPT-2 has not, and no real_edge_mask")
    return [
        (f"{u}->{v}", float(d["edges_scores"][i, j]), bool(d["edges_in_graph"][i, j]))
        for j, v in enumerate(d["dst_nodes"])
        for i, u in enumerate(d["src_nodes"])
        if (senders[u] < readers[v] if mask is None else mask[i, j])
    ]


def gpt2_parts(cfg: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Senders and readers of a GPT-2 of these sizes in MIB's order, with stages: a reader reads the senders below its
    own."""
    heads, senders, readers = range(cfg["n_heads"]), {"input": -1}, dict[str, int]()
    for layer in range(cfg["n_layers"]):
        a, m = 2 * layer, 2 * layer + 1
        senders |= {f"a{layer}.h{h}": a for h in heads} | {f"m{layer}": m}
        readers |= {f"a{layer}.h{h}<{part}>": a for part in "qkv" for h in heads}
        readers[f"m{layer}"] = m - bool(cfg["parallel_attn_mlp"])
    return senders, {**readers, "logits": 2 * cfg["n_layers"]}
