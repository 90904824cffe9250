"""FLOPs of a model by formula and peak FLOPs of devices, for the model FLOPs utilisation (MFU).

    MFU = tokens per second · training FLOPs per token / peak FLOPs per second

A multiply-add counts as two. Only matrix products count, not norms, activations and softmaxes. As in PaLM's MFU,
attention counts all n keys (4 n H d_h per layer), without subtracting the causal half.
"""

from streamscope.models.layers.gate import HeadGate
from streamscope.models.layers.hdpl import HdplProjection
from streamscope.models.layers.hyper_mixing import HyperConnection
from streamscope.models.layers.projections import Projection
from streamscope.models.transformer import StreamTransformer

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 FLOPs per second of the tensor cores with fp32 accumulation, from NVIDIA's data sheets (SXM versions)."""


def peak_flops(device: str) -> float | None:
    """Peak FLOPs per second of a device by its name from `torch.cuda.get_device_name`; None if unknown."""
    return next((peak for name, peak in PEAKS.items() if name in device), None)


def flops_per_token(model: StreamTransformer, n: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token of a sequence of n tokens (default: the context), by part: projections, scores and A V,
    the head (2 D V), gates, hyper-connections."""
    c = model.config
    n = n or c.n_ctx
    out = {
        "projections": sum(m.flops() for m in model.modules() if isinstance(m, Projection)),
        "attention": 4 * n * c.n_heads * c.d_head * c.n_layers,
        "head": 2 * c.d_model * c.d_vocab,
        "gates": sum(2 * m.weight.numel() for m in model.modules() if isinstance(m, HeadGate)),
        "hyper-connections": sum(m.flops() for m in model.modules() if isinstance(m, HyperConnection)),
    }
    return {part: flops for part, flops in out.items() if flops or part not in ("gates", "hyper-connections")}


def training_flops_per_token(model: StreamTransformer, n: int | None = None) -> dict[str, int]:
    """FLOPs of a training step per token, by part: three times the forward pass (one product forward, two backward, one
    of them for the gradient of the weight, which a frozen one does not need).

    The head counts once per supervised layer. HDPL's log σ² is only computed in training. The constant permutation
    matrices of mHC-lite need no gradient.
    """
    c = model.config
    out = {part: 3 * flops for part, flops in flops_per_token(model, n).items()}
    frozen = [m for m in model.modules() if not any(p.requires_grad and p.ndim > 1 for p in m.parameters())]
    out["projections"] -= sum(m.flops() for m in frozen if isinstance(m, Projection))
    supervision = c.readout.supervision
    if not model.unembed.weight.requires_grad:
        out["head"] -= out["head"] // 3
    out["head"] *= 1 + (len(supervision.layer_weights(c.n_layers)) if supervision is not None else 0)
    out["projections"] += sum(3 * 2 * m.d_in * m.rank for m in model.modules() if isinstance(m, HdplProjection))
    for m in model.modules():
        if isinstance(m, HyperConnection):
            out["hyper-connections"] -= m.constant_flops()
    return out
