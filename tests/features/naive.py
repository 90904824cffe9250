"""The features of PLS App. B.5 and C once more, token by token and key by key, in plain Python."""

import math
from itertools import groupby
from typing import Any

import numpy as np
import torch

from streamscope.features.extract import Extract
from streamscope.models.hooks import capture


def naive_features(model: Any, ids: list[int], options: Extract) -> list[dict[str, float]]:
    """One dictionary per row: column name -> value."""
    L, H, n_ctx = model.config.n_layers, model.config.n_heads, model.config.n_ctx
    tokens = torch.tensor([ids[: min(len(ids) - 1, n_ctx)]])
    gates = [name for name in model.hook_dict if name.endswith("attn.hook_gate")]
    with torch.no_grad(), capture(model, ["blocks.*.attn.hook_pattern", "blocks.*.hook_resid_post", *gates]) as found:
        model(tokens)
        states = [found[f"blocks.{i}.hook_resid_post"][0] for i in range(L)]
        logits = [model.layer_norm(i)(x[None])[0] @ model.head.T for i, x in enumerate(states)]
    later = 1 if options.logits_row == "next" else 0
    rows = []
    for q in range(tokens.shape[1] - later):
        truth = ids[q + later + 1]
        p = [z[q + later].double().softmax(-1).tolist() for z in logits]
        predicted = [max(range(len(x)), key=x.__getitem__) for x in p]
        row = trajectory(p, predicted, truth, options)
        row["k_star"], row["kappa"] = float(k_star(predicted, options)), float(kappa(predicted, truth, options))
        attention = [[effective(found, layer, h, q, options) for h in range(H)] for layer in range(L)]
        stable = min(int(row["k_star"]), L - 1)
        for where, at in (("stable", stable), ("final", L - 1)):
            for layer in range(L):
                for h in range(H):
                    a, g = attention[layer][h]
                    on = layer == at
                    peak = max(a, default=0.0)
                    row[f"head_act_{where}_L{layer}H{h}"] = peak if on else 0.0
                    row[f"head_ent_{where}_L{layer}H{h}"] = entropy(a) if on and peak >= options.theta_entropy else 0.0
                    largest = sorted(a, reverse=True) + [0.0] * options.k
                    for r in range(options.k):
                        shown = on and g >= options.theta_gate
                        row[f"topk_{where}_L{layer}H{h}_r{r + 1}"] = largest[r] if shown else 0.0
            row[f"attn_span_{where}"], row[f"local_mass_{where}"] = geometry(attention[at], q, options.window)
        row["processing_depth"], row["confidence"] = row["k_star"], max(p[-1])
        for group in ("anchor", "entity"):
            if getattr(options, f"{group}_heads"):
                heads = options.heads(group, L, H)
                row[f"{group}_mass"] = sum(max(attention[x.layer][x.head][0], default=0.0) for x in heads)
        row["context_span"] = row["attn_span_final"]
        rows.append(row)
    return rows


def trajectory(p: list[list[float]], predicted: list[int], truth: int, options: Extract) -> dict[str, float]:
    target = predicted[-1] if options.target == "final" else truth
    row, probs = {}, []
    for layer, x in enumerate(p):
        order = sorted(x, reverse=True)
        if options.traj_prob == "zeroed":
            value = x[target] if predicted[layer] == target else 0.0
            margin = value - order[1]
        else:
            value = x[target]
            margin = value - max(v for i, v in enumerate(x) if i != target)
        row[f"traj_prob_L{layer}"], row[f"traj_margin_L{layer}"] = value, margin
        if layer > 0:
            row[f"traj_drop_L{layer}"] = max(0.0, probs[-1] - value)
        probs.append(value)
    return row


def k_star(predicted: list[int], options: Extract) -> int:
    n = len(predicted)
    found = min(k for k in range(n) if all(predicted[i] == predicted[-1] for i in range(k, n)))
    return n if options.kstar == "author" and found == n - 1 else found


def kappa(predicted: list[int], truth: int, options: Extract) -> int:
    target = truth if options.kappa_target == "truth" else predicted[-1]
    runs = groupby(x == target for x in predicted)
    return max((len(list(run)) for hit, run in runs if hit), default=0)


def effective(found: Any, layer: int, head: int, q: int, options: Extract) -> tuple[list[float], float]:
    """Ã[q, :q] and the gate's ḡ."""
    pattern = found[f"blocks.{layer}.attn.hook_pattern"][0, head, q]
    g = 1.0
    if f"blocks.{layer}.attn.hook_gate" in found:
        gate = found[f"blocks.{layer}.attn.hook_gate"][0, q, head].double().tolist()
        mean, norm = sum(gate) / len(gate), math.sqrt(sum(x * x for x in gate) / len(gate))
        g = mean if options.gate_reduce == "mean" else norm
    return [g * float(pattern[k]) for k in range(q)], g


def entropy(a: list[float]) -> float:
    total = sum(a)
    return -sum(x / total * math.log(x / total) for x in a if x > 0) if total > 0 else 0.0


def geometry(heads: list[tuple[list[float], float]], q: int, window: int) -> tuple[float, float]:
    attention, back = np.array([a for a, _ in heads]).reshape(len(heads), q), q - np.arange(q)
    mass = attention.sum()
    return (attention @ back).sum() / mass if mass > 0 else 0.0, attention[:, back <= window].sum()
