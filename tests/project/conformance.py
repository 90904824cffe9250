"""What other tools do on our models: a table of presets and calls, every cell of which was run and compared.

    python -m tests.project.conformance             which cells are not as docs/conformance.json has them
    python -m tests.project.conformance --write     writes that file anew

A check runs a tool's call on a random tiny model of a preset and compares what it gives with a plain computation. A
cell is "yes"; "no: " and the one line that our error says, or what stands in the way; "fails: " and an exception of
any other kind; or "not run: " and why. The page of the documentation is made of the file (docs/pages.py).
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformer_lens import HookedRootModule, head_detector, patching
from transformer_lens.hook_points import HookPoint

from streamscope import InputError, build
from streamscope.models.config.presets import PRESETS
from streamscope.models.hooks import Query, edit, run
from streamscope.models.interop.export.write import export
from streamscope.models.transformer import StreamTransformer
from streamscope.text.stories import documents
from streamscope.text.tokenizer import Tokenizer
from tests.hooks import test_nnsight
from tests.probes.planted import gpt2_and_bridge
from tests.tiny import randomise

FILE = Path(__file__).resolve().parents[2] / "docs" / "conformance.json"
TOOLS = ("transformer-lens", "nnsight", "transformers")
"""Packages whose versions the table names."""
TEXTS = ("Lily had a red ball.", "Tom saw Lily. Tom saw Lily.")
TIGHT = dict(rtol=0, atol=1e-9)
LOOSE = dict(rtol=0, atol=2e-5)


@dataclass
class Case:
    """A random tiny model of a preset in double precision, with a tokenizer, and what the checks take of it."""

    preset: str
    tokenizer: Tokenizer

    @cached_property
    def model(self) -> StreamTransformer:
        """Every parameter random, norms and biases too, so that a check sees who leaves them out."""
        return randomise(build(self.preset, "tiny", tokenizer=self.tokenizer, d_vocab=300, init_std=0.2).double())

    @cached_property
    def tokens(self) -> Tensor:
        """[2, 6] ids."""
        return torch.randint(1, 300, (2, 6), generator=torch.Generator().manual_seed(1))

    @cached_property
    def cache(self) -> Any:
        """Every activation of the tokens, as TransformerLens keeps them."""
        return self.model.run_with_cache(self.tokens, names_filter=lambda name: True)[1]

    @cached_property
    def exported(self) -> Any:
        """The export of the model, opened by transformers."""
        self.folder = tempfile.TemporaryDirectory()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        run, out = Path(self.folder.name) / "run", Path(self.folder.name) / "exported"
        self.model.float().save(run)
        list(export(str(run), out))
        opened = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
        self.words = AutoTokenizer.from_pretrained(out, trust_remote_code=True)
        self.model.double()
        return opened.double()

    def hooked(self, name: str, fn: Callable[[Tensor], Tensor | None], *, loss: bool = False) -> Tensor:
        """Logits (or the loss) with a plain hook of torch on the output of a module: the independent way."""
        handle = self.model.get_submodule(name).register_forward_hook(lambda module, inputs, output: fn(output))
        try:
            return self.model(self.tokens, return_type="loss") if loss else self.model(self.tokens)
        finally:
            handle.remove()

    def inputs(self, name: str) -> tuple[Tensor, ...]:
        """What a module is given, by a plain hook of torch."""
        found: list[tuple[Tensor, ...]] = []
        handle = self.model.get_submodule(name).register_forward_pre_hook(lambda module, args: found.append(args))
        self.model(self.tokens)
        handle.remove()
        return found[0]

    def greedy(self, ids: Tensor, n: int) -> Tensor:
        """[1, T + n]: the model asked anew for each token."""
        for _ in range(n):
            ids = torch.cat([ids, self.model(ids)[:, -1:].argmax(-1)], 1)
        return ids


CHECKS: dict[str, Callable[[Case], Any]] = {}
"""Tool and call -> what fails unless the call does what it should, or returns why it was not run."""


def check(tool: str, call: str) -> Callable[[Callable[[Case], Any]], Callable[[Case], Any]]:
    """Register a row; two of one name would hide one."""

    def register(fn: Callable[[Case], Any]) -> Callable[[Case], Any]:
        assert f"{tool}: {call}" not in CHECKS, call
        return CHECKS.setdefault(f"{tool}: {call}", fn)

    return register


def cell(row: str, case: Case) -> str:
    """What a check says."""
    try:
        return CHECKS[row](case) or "yes"
    except InputError as error:
        return f"no: {error}"
    except Exception as error:  # told in the table
        return f"fails: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def same(a: Tensor, b: Tensor, **how: Any) -> None:
    """Raise unless two tensors are the same."""
    torch.testing.assert_close(a, b, **(how or TIGHT))


# ---- TransformerLens ---------------------------------------------------------------------------

LENS = "TransformerLens"

EQUAL: dict[str, Callable[[Case], tuple[Tensor, Tensor]]] = {
    "stop_at_layer": lambda case: (case.model(case.tokens, stop_at_layer=1), case.cache["resid_pre", 1]),
    "start_at_layer": lambda case: (case.model(case.cache["resid_pre", 1], start_at_layer=1), case.model(case.tokens)),
    "W_pos": lambda case: (case.model.W_pos[:6].expand(2, -1, -1), case.cache["hook_pos_embed"]),
    "W_O, b_O": lambda case: (
        torch.einsum("bthk,hkd->btd", case.cache["z", 1], case.model.W_O[1]) + case.model.b_O[1],
        case.cache["attn_out", 1],
    ),
    "cache.accumulated_resid(apply_ln=True)": lambda case: (
        (case.cache.accumulated_resid(apply_ln=True)[1:] @ case.model.W_U).movedim(0, 2),
        case.model.layer_logits(case.tokens),
    ),
    "cache.decompose_resid()": lambda case: (case.cache.decompose_resid().sum(0), case.cache["resid_post", 1]),
    "cache.get_full_resid_decomposition()": lambda case: (
        case.cache.get_full_resid_decomposition().sum(0),
        case.cache["resid_post", 1],
    ),
    "cache.stack_head_results()": lambda case: (
        case.cache.stack_head_results()[4:].sum(0) + case.model.b_O[1],
        case.cache["attn_out", 1],
    ),
    "cache.logit_lens()": lambda case: (case.cache.logit_lens().values[-1], case.model(case.tokens)[:, -1]),
}
"""Call -> two ways to one tensor."""
for call, both in EQUAL.items():
    check(LENS, call)(lambda case, both=both: same(*both(case)))


@check(LENS, 'model("text"), model([texts], return_type="loss")')
def _(case: Case) -> None:
    model = case.model
    rows = [model.to_tokens(text) for text in TEXTS]
    each = [torch.nn.functional.cross_entropy(model(row)[0, :-1], row[0, 1:], reduction="sum") for row in rows]
    same(model(TEXTS[0]), model(rows[0]))
    same(model(list(TEXTS), return_type="loss"), sum(each) / sum(row.shape[1] - 1 for row in rows), rtol=1e-5, atol=0)


@check(LENS, "model.run_with_cache(tokens, names_filter=…)")
def _(case: Case) -> None:
    seen: list[Tensor] = []
    logits = case.hooked("blocks.1.attn.hook_z", seen.append)
    out, cache = case.model.run_with_cache(case.tokens, names_filter=["blocks.1.attn.hook_z"])
    same(out, logits)
    same(cache["z", 1], seen[0])


@check(LENS, "model.run_with_hooks(fwd_hooks=…)")
def _(case: Case) -> None:
    off, name = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None].double(), "blocks.1.attn.hook_z"
    out = case.model.run_with_hooks(case.tokens, fwd_hooks=[(name, lambda z, hook: z * off)])
    same(out, case.hooked(name, lambda z: z * off))


@check(LENS, "model.run_with_cache(incl_bwd=True)")
def _(case: Case) -> None:
    seen: list[Tensor] = []
    loss = case.hooked("blocks.1.attn.hook_z", seen.append, loss=True)
    options: dict[str, Any] = {"return_type": "loss", "incl_bwd": True, "names_filter": "*hook_z"}
    _, cache = case.model.run_with_cache(case.tokens, **options)
    case.model.zero_grad()
    same(cache["blocks.1.attn.hook_z_grad"], torch.autograd.grad(loss, seen[0])[0])


@check(LENS, "W_E, W_U, b_U")
def _(case: Case) -> None:
    stream = case.model.ln_final(case.cache["resid_post", 1])
    same(stream @ case.model.W_U + case.model.b_U, case.model(case.tokens))
    same(case.model.W_E[case.tokens], case.cache["hook_embed"])


@check(LENS, "W_Q, W_K, W_V, b_Q …")
def _(case: Case) -> None:
    weights = [(case.model.W_Q, case.model.b_Q), (case.model.W_K, case.model.b_K), (case.model.W_V, case.model.b_V)]
    x, x_v = case.inputs("blocks.1.attn")[:2]
    maps = [torch.einsum("btd,hdk->bthk", y, w[1]) + b[1] for y, (w, b) in zip((x, x, x_v), weights, strict=True)]
    if "canon_b" in case.model.blocks[1]._modules:
        joined = case.model.blocks[1].canon_b(torch.cat([m.flatten(2) for m in maps], -1))
        maps = [part.unflatten(-1, (4, 8)) for part in joined.chunk(3, -1)]
    for name, m in zip("qkv", maps, strict=True):
        same(m, case.cache[name, 1])


@check(LENS, "W_in, W_gate, W_out, b_in, b_out")
def _(case: Case) -> None:
    same(case.cache["post", 1] @ case.model.W_out[1] + case.model.b_out[1], case.cache["mlp_out", 1])
    block, x = case.model.blocks[1], case.inputs("blocks.1.mlp")[0]
    made = [x @ case.model.W_in[1] + case.model.b_in[1]]
    if case.model.W_gate is not None:
        made.insert(0, x @ case.model.W_gate[1])
    names = ["hook_pre", "hook_pre_linear"][: len(made)]
    if "canon_d" in block._modules:
        made = list(block.canon_d(torch.cat(made, -1)).chunk(len(made), -1))
    for name, x in zip(names, made, strict=True):
        same(x, case.cache[f"blocks.1.mlp.{name}"])


@check(LENS, "QK")
def _(case: Case) -> None:
    """At one position, where rotary positions cancel out."""
    circuit, x = case.model.QK[1, :], case.inputs("blocks.1.attn")[0]
    scores = torch.einsum("btd,hde,bte->bht", x, circuit.AB, x) / 8**0.5
    same(scores, case.cache["attn_scores", 1].diagonal(dim1=-2, dim2=-1))


@check(LENS, "OV")
def _(case: Case) -> None:
    circuit, x = case.model.OV[1, :], case.inputs("blocks.1.attn")[1]
    results = torch.einsum("bhqk,bkd,hde->bqhe", case.cache["pattern", 1], x, circuit.AB)
    same(results.sum(2) + case.model.b_O[1], case.cache["attn_out", 1])


@check(LENS, "hook_result")
def _(case: Case) -> None:
    same(case.cache["result", 1].sum(2) + case.model.b_O[1], case.cache["attn_out", 1])
    same(case.cache["result", 1], torch.einsum("bthk,hkd->bthd", case.cache["z", 1], case.model.W_O[1]))


@check(LENS, "cache.accumulated_resid(layer=1, apply_ln=True)")
def _(case: Case) -> None:
    read: list[Tensor] = []
    case.hooked("blocks.1.ln1", read.append)
    same(case.cache.accumulated_resid(layer=1, apply_ln=True)[-1], read[-1])


@check(LENS, "cache.stack_neuron_results(2)")
def _(case: Case) -> None:
    neurons = case.cache.stack_neuron_results(2)
    same(neurons[len(neurons) // 2 :].sum(0) + case.model.b_out[1], case.cache["mlp_out", 1])


def _attributed(case: Case, stack: Callable[[Any], Tensor]) -> None:
    """The parts of a stack add up to the logits of a token, and to the difference of two, but for the norm's bias."""
    right, wrong, rows, parts = torch.tensor([7, 9]), torch.tensor([30, 2]), torch.arange(2), stack(case.cache)
    logits = (case.model(case.tokens) - case.model.logit_bias).transpose(1, 2)
    same(case.cache.logit_attrs(parts, right).sum(0), logits[rows, right])
    same(case.cache.logit_attrs(parts, right, wrong).sum(0), logits[rows, right] - logits[rows, wrong])


STACKS: dict[str, Callable[[Any], Tensor]] = {
    "decompose_resid()": lambda cache: cache.decompose_resid(),
    "stack_head_results(incl_remainder=True)": lambda cache: cache.stack_head_results(incl_remainder=True),
    "accumulated_resid()": lambda cache: cache.accumulated_resid()[-1:],
}
for call, stack in STACKS.items():
    check(LENS, f"cache.logit_attrs(cache.{call}, tokens)")(lambda case, stack=stack: _attributed(case, stack))


@check(LENS, 'all_composition_scores("Q")')
def _(case: Case) -> None:
    """One pair by hand, the norm as what it does to each unit vector but for its scale."""
    (first, second), norms = case.model.blocks, []
    for block, name in ((first, "ln1_v" if hasattr(first, "ln1_v") else "ln1"), (second, "ln1")):
        norm = getattr(block, name)
        centre = torch.eye(32 // norm.groups).double() - (norm.groups / 32 if norm.centred else 0)
        norms.append(torch.block_diag(*[centre] * norm.groups) * norm.weight)
    v = torch.eye(32).double() if case.model.config.residual.value_path == "raw" else norms[0]
    ov = v @ first.attn.W_V[1] @ first.attn.W_O[1]
    qk = norms[1] @ second.attn.W_Q[2] @ second.attn.W_K[2].T @ norms[1].T
    same(case.model.all_composition_scores("Q")[0, 1, 1, 2], (ov @ qk).norm() / ov.norm() / qk.norm())


def _patched(case: Case, sweeps: list[tuple[str, str, tuple[Any, ...], tuple[int, int]]]) -> None:
    """A number of every sweep of `transformer_lens.patching` is that of a patch made by torch's own hook."""
    clean, corrupted = case.cache, case.tokens.roll(1, 0)
    other = replace(case)
    other.model, other.tokens = case.model, corrupted

    def metric(logits: Tensor) -> Tensor:
        return logits[0, -1, 3] - logits[0, -1, 8]

    for sweep, point, index, at in sweeps:
        name = f"blocks.1.{point}"

        def patch(x: Tensor, name: str = name, index: Any = index) -> Tensor:
            x = x.clone()
            x[index] = clean[name][index]
            return x

        with torch.no_grad():
            table = getattr(patching, f"get_act_patch_{sweep}")(case.model, corrupted, clean, metric)
            same(table[at].double(), metric(other.hooked(name, patch)), rtol=1e-4, atol=1e-6)


POSITION, HEAD = (slice(None), 3), (slice(None), slice(None), 2)
PATCHED: dict[str, list[tuple[str, str, tuple[Any, ...], tuple[int, int]]]] = {
    "resid_pre": [("resid_pre", "hook_resid_pre", POSITION, (1, 3))],
    "attn_out, …_mlp_out": [(part, f"hook_{part}", POSITION, (1, 3)) for part in ("attn_out", "mlp_out")],
    "attn_head_out_all_pos, …_q, …_v": [
        (f"attn_head_{part}_all_pos", f"attn.hook_{point}", HEAD, (1, 2))
        for part, point in (("out", "z"), ("q", "q"), ("v", "v"))
    ],
    "attn_head_pattern_all_pos": [("attn_head_pattern_all_pos", "attn.hook_pattern", (slice(None), 2), (1, 2))],
}
for call, sweeps in PATCHED.items():
    check(LENS, f"patching.get_act_patch_{call}")(lambda case, sweeps=sweeps: _patched(case, sweeps))


@check(LENS, "patching.get_act_patch_direct_path")
def _(case: Case) -> None:
    patching.get_act_patch_direct_path(
        case.model, case.tokens.roll(1, 0), case.cache, case.cache, lambda logits: logits.sum(), 0, 1, verbose=False
    )


@check(LENS, 'head_detector.detect_head(model, "text", "previous_token_head")')
def _(case: Case) -> None:
    """With its measure `mul`: the share of attention that goes to the previous token."""
    found = head_detector.detect_head(case.model, TEXTS[1], "previous_token_head", error_measure="mul")
    ids = case.model.to_tokens(TEXTS[1])
    pattern = case.model.patterns(ids)[0]  # [layers, heads, T, T]
    share = pattern.diagonal(-1, -2, -1).sum(-1) / pattern.sum((-1, -2))
    same(found.double(), share, rtol=1e-4, atol=1e-6)


# ---- nnsight -----------------------------------------------------------------------------------

SIGHT = "nnsight"
OF_NNSIGHT = {
    "trace: .output of every point that always fires": test_nnsight.check_reading,
    "trace: hook_attn_scores, hook_pattern": test_nnsight.check_patterns,
    "trace: setting .output, in place too": test_nnsight.check_setting,
    ".grad inside backward": test_nnsight.check_gradients,
    "several invokes (a subclass joins them)": test_nnsight.check_batched_invokes,
    ".source of attention": test_nnsight.check_source,
    "tracer.cache()": test_nnsight.check_on_demand_in_a_cache,
    "setting the readout of the streams, hook_resid_post": test_nnsight.check_setting_the_readout,
}
for call, of_preset in OF_NNSIGHT.items():
    check(SIGHT, call)(lambda case, of_preset=of_preset: of_preset(case.preset))


# ---- what collects activations, and what reads Hugging Face models -----------------------------


@check("SAELens", "the call of its ActivationsStore, made here")
def _(case: Case) -> None:
    """SAELens is not installed: this is the call that it makes for a hook of layer 0, and what it does with it."""
    for name in ("blocks.0.hook_resid_post", "blocks.0.attn.hook_z"):
        options: dict[str, Any] = {"names_filter": [name], "stop_at_layer": 1, "prepend_bos": False}
        found = case.model.run_with_cache(case.tokens, **options)[1][name]
        same(found.reshape(2, 6, -1), case.cache[name].flatten(2))


EXPORT = "transformers, on an export"


@check(EXPORT, "AutoModelForCausalLM: logits")
def _(case: Case) -> None:
    same(case.exported(case.tokens).logits, case.model(case.tokens), **LOOSE)


@check(EXPORT, "generate")
def _(case: Case) -> None:
    """Greedy, against the model here asked anew for each token."""
    rows = case.exported.generate(case.tokens[:1], max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    expected = case.greedy(case.tokens[:1], 4)
    assert torch.equal(rows, expected), f"{rows.tolist()} is not {expected.tolist()}"


@check(EXPORT, "output_hidden_states=True")
def _(case: Case) -> None:
    states = case.exported(case.tokens, output_hidden_states=True).hidden_states
    for layer in range(2):
        same(states[layer], case.cache["resid_pre", layer], **LOOSE)
    same(states[2] @ case.model.W_U, case.model(case.tokens), **LOOSE)


@check("sparsify", "hooks on base_model, as its trainer sets them, made here")
def _(case: Case) -> None:
    """sparsify is not installed: it finds the one list of n layers in the base model and hooks a layer of it."""
    base = case.exported.base_model
    layers = [m for m in base.modules() if isinstance(m, torch.nn.ModuleList)]
    layers = [m for m in layers if len(m) == case.exported.config.num_hidden_layers]
    assert len(layers) == 1, f"{len(layers)} lists of layers, not one"
    seen: list[Any] = []
    handle = layers[0][0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    case.exported(case.tokens)
    handle.remove()
    out = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    if case.model.config.residual.streams:
        raise InputError("a layer returns several streams, of which sparsify would take the first")
    same(out, case.cache["resid_post", 0], **LOOSE)


HARNESS = "lm-evaluation-harness"


@check(HARNESS, "the calls of HFLM's loglikelihood, made here")
def _(case: Case) -> None:
    """Both parts encoded, padded on the right without a mask, log-softmax of the logits at the continuation."""
    model, rows = case.exported, []
    for context, continuation in (("Lily had", " a red ball."), ("Tom saw Lily.", " Tom")):
        ids = case.words(context + continuation)["input_ids"]
        rows.append((ids, len(case.words(context)["input_ids"])))
    batch = torch.zeros(2, max(len(ids) for ids, _ in rows) - 1, dtype=torch.long)
    for row, (ids, _) in enumerate(rows):
        batch[row, : len(ids) - 1] = torch.tensor(ids[:-1])
    with torch.no_grad():
        scores = model(batch.to(model.device)).logits.log_softmax(-1)
    for row, (ids, start) in enumerate(rows):
        picked = scores[row, start - 1 : len(ids) - 1].gather(-1, torch.tensor(ids[start:])[:, None])
        losses = case.model(torch.tensor([ids]), return_type="loss", loss_per_token=True)
        same(picked.sum(), -losses[0, start - 1 :].sum(), **LOOSE)


@check(HARNESS, "the call of HFLM's generate_until, made here")
def _(case: Case) -> None:
    """A batch padded on the left with its mask, greedy, with a cache asked for."""
    model = case.exported
    rows = [case.words(text)["input_ids"] for text in ("Lily had a red", "Tom")]
    longest = max(map(len, rows))
    batch = torch.tensor([[case.words.pad_token_id] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    options: dict[str, Any] = {"do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
    found = model.generate(input_ids=batch, attention_mask=mask, max_length=longest + 3, **options)[:, longest:]
    for row, new in zip(rows, found, strict=True):
        ids = case.greedy(torch.tensor([row]), 3)
        assert torch.equal(ids[0, len(row) :], new), f"{new.tolist()} is not {ids[0, len(row) :].tolist()}"


@check(HARNESS, "HFLM itself")
def _(case: Case) -> str:
    return f"not run: {'lm_eval is not installed' if find_spec('lm_eval') is None else 'no check is written'}"


# ---- what fails in silence elsewhere -----------------------------------------------------------


class Silent(NamedTuple):
    """Something that a peer does in silence, and that is one line here. Both are code that is run."""

    title: str
    peer: str
    """Code with `bridge`, `Small`, `tokens`, `torch`, that runs through and sets `shown`."""
    ours: str
    """Code with `model`, `tokens`, `torch`, `edit`, `run`, `Query`, that raises `InputError`."""


SILENT = [
    Silent(
        "a filter that matches no hook",
        '_, cache = bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_patern"))\n'
        'shown = f"a cache of {len(cache)} activations"',
        'model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_patern"))',
    ),
    Silent(
        "a misspelt name, on a HookedRootModule",
        '_, cache = Small().run_with_cache(tokens, names_filter=["hook_patern"])\n'
        'shown = f"a cache of {len(cache)} activations"',
        'model.run_with_cache(tokens, names_filter=["blocks.0.attn.hook_patern"])',
    ),
    Silent(
        "a hook that never fires",
        'hook = ("blocks.1.hook_resid_post", lambda x, hook: x * 0)\n'
        "out = bridge.run_with_hooks(tokens, fwd_hooks=[hook], stop_at_layer=1)\n"
        'shown = f"the same as without it: {torch.equal(out, bridge(tokens, stop_at_layer=1))}"',
        'with edit(model, {"blocks.1.attn.hook_z": lambda z, hook: z * 0}):\n    model(tokens, stop_at_layer=1)',
    ),
    Silent(
        "an activation asked for that is not computed",
        '_, cache = bridge.run_with_cache(tokens, names_filter=["blocks.1.hook_resid_post"], stop_at_layer=1)\n'
        'shown = f"a cache of {len(cache)} activations"',
        'model.run_with_cache(tokens, names_filter=["blocks.1.attn.hook_z"], stop_at_layer=1)',
    ),
    Silent(
        "an edit that returns another shape",
        'hook = ("blocks.0.hook_attn_out", lambda x, hook: x[:, :1])\n'
        "out = bridge.run_with_hooks(tokens, fwd_hooks=[hook])\n"
        'shown = f"logits {list(out.shape)}: position 0 was written to all"',
        'with edit(model, {"blocks.0.hook_attn_out": lambda x, hook: x[:, :1]}):\n    model(tokens)',
    ),
    Silent(
        "an edit that returns nothing",
        "def halve(x, hook):\n    x * 0.5\n"
        'out = bridge.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_attn_out", halve)])\n'
        'shown = f"the same as without it: {torch.equal(out, bridge(tokens))}"',
        "def halve(x, hook):\n    x * 0.5\n"
        'with edit(model, {"blocks.0.hook_attn_out": halve}):\n    model(tokens)',
    ),
    Silent(
        "an edit after which values are not finite",
        'hook = ("blocks.0.hook_attn_out", lambda x, hook: x / 0)\n'
        "out = bridge.run_with_hooks(tokens, fwd_hooks=[hook])\n"
        'shown = f"{int(out.isnan().sum())} of {out.numel()} logits are NaN"',
        'with edit(model, {"blocks.0.hook_attn_out": lambda x, hook: x / 0}):\n    model(tokens)',
    ),
    Silent(
        "a layer to stop at that does not exist",
        'out = bridge(tokens, stop_at_layer=7)\nshown = f"the logits of all layers, {list(out.shape)}"',
        "model(tokens, stop_at_layer=7)",
    ),
    Silent(
        "the loss of a single token",
        'shown = f"a loss of {float(bridge(tokens[:, :1], return_type=\'loss\').detach())}"',
        'model(tokens[:, :1], return_type="loss")',
    ),
    Silent(
        "dropout that is on",
        "bridge.train()\n_, one = bridge.run_with_cache(tokens)\n_, two = bridge.run_with_cache(tokens)\n"
        'bridge.eval()\nname = "blocks.1.hook_resid_post"\n'
        'shown = f"two caches of the same tokens, equal: {torch.equal(one[name], two[name])}"',
        'model.train()\nrun(model, Query(tokens=tokens, hooks=("hook_embed",)))',
    ),
]  # fmt: skip


class Small(HookedRootModule):
    """An embedding with a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hook_embed = torch.nn.Embedding(100, 4), HookPoint()
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.hook_embed(self.embed(tokens))


def silences() -> list[dict[str, str]]:
    """Every silent failure with what its code gives there, and what it says here."""
    (_, theirs), tokens = gpt2_and_bridge(), torch.arange(12).reshape(2, 6)
    rows = []
    for one in SILENT:
        names: dict[str, Any] = {"bridge": theirs, "Small": Small, "tokens": tokens, "torch": torch}
        with torch.no_grad():
            exec(one.peer, names)
        ours = {"model": build("std-t", "tiny"), "tokens": tokens, "torch": torch}
        try:
            exec(one.ours, {**ours, "edit": edit, "run": run, "Query": Query})
        except InputError as error:
            said = str(error)
        else:
            raise AssertionError(f"{one.title}: nothing was said")
        rows.append({"what": one.title, "peer": one.peer, "shown": names["shown"], "ours": one.ours, "says": said})
    return rows


# ---- the table ---------------------------------------------------------------------------------


def tokenizer() -> Tokenizer:
    """One that fits the tiny models."""
    return Tokenizer.train(documents(0, 60), 300)


def table() -> dict[str, Any]:
    """The whole: versions, cells by preset, and silent failures."""
    words, cells = tokenizer(), {}
    for preset in PRESETS:
        case = Case(preset, words)
        cells[preset] = {row: cell(row, case) for row in CHECKS}
    return {"versions": {tool: version(tool) for tool in TOOLS}, "cells": cells, "silent": silences()}


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """A line for each version, cell and silent failure that is not as it was."""

    def lines(table: dict[str, Any]) -> dict[str, Any]:
        cells = {f"{preset}: {row}": one for preset, rows in table["cells"].items() for row, one in rows.items()}
        silent = {f"{row['what']}: {part}": one for row in table["silent"] for part, one in row.items()}
        return {**table["versions"], **cells, **silent}

    new, old = lines(now), lines(before)
    return [f"{at}: {new.get(at)!r}, not {old.get(at)!r}" for at in {**old, **new} if new.get(at) != old.get(at)]


def main() -> None:
    """Write the file, or say what differs from it; exit code 1 where something does."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    now = table()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif found := differences(now, json.loads(FILE.read_text(encoding="utf-8"))):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
