"""Many edits of one batch: the layers before an edit are computed once, answers at their positions only.

    for h, captured in passes(model, tokens, [{}, *sweep], at=positions)    final normed streams [B, P, D] of each edit
    for captures in run_sweep(model, query, [{}, *sweep])                   `models.hooks.run` under each edit

An edited pass starts at the layer of its first hook, or at the output z of that layer's heads if nothing before z is
edited. {} is the unedited pass. With positions `at`, the last layer computes keys and values everywhere and everything
else only at `at`. The exceptions are a block that is not `positionwise`, and an edit, a capture or a hook of that layer
that has to see every position. Results are those of one whole pass per edit, up to rounding.

Hooks that the caller attached to hook points and to modules fire in the layers that run. Those on modules that a sweep
takes apart are refused: the model, its layers, their attention, and the unembedding.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.utils._pytree
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import hooks
from streamscope.models.hooks import Captures, Edits, Query, edit
from streamscope.models.hooks.points import any_hooks
from streamscope.models.layers.attention import pick
from streamscope.models.layers.head import unembed
from streamscope.models.layers.residual import State
from streamscope.models.transformer import StreamTransformer

TOKENS_AT_ONCE, ELSEWHERE = 4096, 2**17
"""Tokens of a batch on a CPU, where a larger one is no faster, and on other devices."""
WIDEST = 384
"""Widest FFN for which a batch on a CPU has all its tokens; a wider one has as many fewer. A sweep of SmolLM2 (1,536)
takes 1.1 GB with 1,024 tokens and 1.8 with 4,096, in equal time."""
TOGETHER = 1024
"""Tokens of the edits that share a pass on a CPU: up to 3 times as fast as one by one where prompts are few and short,
1.1 times in GPT-2 small's shape; 4,096 are slower than one by one."""
EMBED = -1
_ROWS = {row.name: i for i, row in enumerate(hooks.HOOKS)}
_Z, _FINAL = _ROWS["blocks.L.attn.hook_z"], _ROWS["ln_final.hook_scale"]
Keep = Callable[[str, Tensor], Any]
"""(hook name, activation of the batch) -> the value to keep."""
Outcome = tuple[Any, dict[str, Any]]
"""(final normed streams [B, P, D], or None where they are not wanted; {captured hook: kept value})"""
Start = tuple[int, bool]
"""The first layer that an edit changes (−1: the embedding, n_layers: the final norm), and whether only from z on."""


@cache
def place_of(name: str) -> tuple[int | None, int | None]:
    """The layer of a hook, None outside the blocks; and its row in the table, None where it is not listed."""
    parts = name.split(".")
    inside = parts[0] == "blocks" and len(parts) > 2 and parts[1].isdigit()
    return int(parts[1]) if inside else None, _ROWS.get(".".join(("blocks.L", *parts[2:])) if inside else name)


@cache
def start_of(name: str, n_layers: int) -> Start:
    """The start of an edit of one hook; of a hook that the table does not list, its layer or the embedding."""
    layer, row = place_of(name)
    if layer is not None:
        return layer, (row or 0) >= _Z
    return (n_layers if (row or 0) >= _FINAL else EMBED), False


def starts_of(model: Any, sweep: Sequence[Edits]) -> list[Start]:
    """Where the pass under each of the edits starts, n_layers + 1 for {}; `InputError` as `hooks.edit` raises it."""
    n = model.config.n_layers
    plans = [hooks.resolve(model, edits) for edits in sweep]
    return [min([start_of(name, n) for name, _ in plan], default=(n + 1, False)) for plan in plans]


def chunk_tokens(model: Any, device: str) -> int:
    """Tokens of a batch, at least 256."""
    if device != "cpu":
        return ELSEWHERE
    width = model.config.d_mlp if hasattr(model, "segment") else 4 * model.config.d_model
    return max(256, TOKENS_AT_ONCE * WIDEST // max(WIDEST, width))


def pass_shares(model: Any, sweep: Sequence[Edits]) -> Float[np.ndarray, " edits"]:
    """What each pass costs, in passes of the unedited model: the weights from its start on; three quarters of a layer
    follow its z."""
    if not hasattr(model, "segment"):
        return np.ones(len(sweep))
    n = model.config.n_layers
    blocks = sum(map(torch.numel, model.blocks.parameters()))
    layer, from_z = np.array(starts_of(model, sweep)).T
    first = np.where(layer > n, 0, layer + from_z / 4).clip(0, n)
    return ((1 - first / n) * blocks + model.head.numel()) / (blocks + model.head.numel())


def map_state(fn: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `fn` to every tensor of a state, for example `lambda x: x.repeat_interleave(8, dim=0)`."""
    return torch.utils._pytree.tree_map_only(Tensor, fn, state)


class Prefix:
    """The unedited pass of `tokens` [B, T], kept at `starts`, and the passes under edits that start there.

    at [B, P]: the wanted positions; None: all. names: hooks to capture, whose values are kept by `keep`. Without
    `streams` there is no h, and passes end with the layer of the last captured hook.

    Raises `InputError` in training mode, for unknown or observe-only hooks, for a caller's hook on a module that is
    taken apart, and for values that are not finite.
    """

    def __init__(
        self, model: StreamTransformer, tokens: Int[Tensor, "B T"], starts: Iterable[Start], *,
        at: Int[Tensor, "B P"] | None = None, names: Sequence[str] = (), keep: Keep = lambda name, x: x.clone(),
        streams: bool = True,
    ) -> None:  # fmt: skip
        if model.training:
            raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
        hooked = hooks.hooked_at(model)
        apart = rf"blocks\.\d+(\.attn)?|unembed|{type(model).__name__}"
        if skipped := [name for name in hooked if re.fullmatch(apart, name)]:
            raise InputError(
                f"the hook of yours at {skipped[0]} would not act, because a sweep of edits takes this module apart: "
                "attach it to a hook point, as model.add_hook('blocks.2.hook_attn_out', hook)"
            )
        model.check_tokens(tokens)
        self.model, self.tokens, self.keep, self.streams = model, tokens, keep, streams
        self.blocks: list[Any] = list(model.blocks)
        self.norm = model.ln_final
        self.at = None if at is None else at.to(tokens.device)
        n = model.config.n_layers
        self.starts = {name: start_of(name, n) for name in (hooks.match(model, names) if names else ())}
        shown = max(self.starts.values(), default=(EMBED, False))
        self.wanted = (n, True) if streams or None in [place_of(name)[1] for name in self.starts] else shown
        """An edit that starts later changes nothing that is wanted."""
        self.last = self.wanted[0]
        """The last layer that runs, or n_layers: the final norm."""
        late = [point for name, point in model.hook_dict.items() if start_of(name, n)[0] >= n - 1]
        self.hooked_late = any([name.startswith((f"blocks.{n - 1}.", "ln_final")) for name in hooked])
        """Whether a hook of the caller, perhaps on a module, has to see every position of the last layer or norm."""
        is_quiet = not self.hooked_late and all(map(hooks.quiet, late))
        self.short = at is not None and is_quiet and shown[0] < n - 1 and bool(self.blocks[-1].positionwise)
        """Whether the last layer may run at the positions only."""
        self.starting = {layer for layer, _ in starts}
        self.starting_at_z = {layer for layer, from_z in starts if from_z}
        self.states: dict[int, State] = {}
        """The state before a layer in which an edit starts."""
        self.z: dict[int, Tensor] = {}
        """z of the heads of such a layer, at every position."""
        self.unedited: Outcome = (None, {})
        (self.unedited,) = self.run([{}], (EMBED, False))

    @torch.no_grad()
    def run(self, members: Sequence[Edits], start: Start) -> list[Outcome]:
        """The outcome of each of `members`, which start at `start`, from one pass of as many copies of the batch."""
        layer, n, copies = start[0], self.model.config.n_layers, len(members)
        if start > self.wanted:
            return [self.unedited] * copies
        edits = hooks.on_copies(self.model, members)
        plan = hooks.resolve(self.model, edits)
        names = {name for name, _ in plan}
        captured = [dict(self.unedited[1]) for _ in members]
        finite = list[bool]()
        listeners = [(name, partial(self._capture, name, captured, finite)) for name in self.starts]
        late = {name for name in names if place_of(name)[1] is None or start_of(name, n)[0] >= n - 1}
        z_name = f"blocks.{n - 1}.attn.hook_z"
        short = self.short and late <= {z_name} and (bool(names) or n not in self.starting)
        whole_z = z_name in names or n - 1 in self.starting_at_z  # an edit sees every position
        at = None if self.at is None else self.at.repeat(copies, 1)
        tokens, state = self.tokens.repeat(copies, 1), self.states.get(layer)
        if copies > 1:
            state = map_state(lambda x: x.repeat(copies, *[1] * (x.ndim - 1)), state)
        with edit(self.model, edits, must_fire=self.streams), hooks.attached(self.model, listeners):
            if layer == EMBED:
                state = self.model.embed_tokens(tokens)
            for i in range(max(layer, 0), min(self.last + 1, n)):
                if i in self.starting:
                    self.states.setdefault(i, state)
                z = self.z[i].repeat(copies, 1, 1, 1) if start == (i, True) else None
                if short and i == n - 1:
                    state = self._short_layer(state, z, whole_z, at)
                elif z is not None or (i in self.starting_at_z and i not in self.z):
                    state = self._layer(i, state, z)
                else:
                    state = self.blocks[i](state)
            if n in self.starting and not short:
                self.states.setdefault(n, state)
            h = self._final(state, short, at) if self.last == n else None
        if not all(finite) or (h is not None and not hooks.is_finite(h)):
            raise hooks.not_finite(self.model, tokens, plan)
        streams = [None] * copies if h is None or not self.streams else h.tensor_split(copies)
        return list(zip(streams, captured, strict=True))

    def _layer(self, layer: int, state: State, z: Tensor | None) -> State:
        """A layer that an edit changes from z on, or whose z is kept for such edits."""
        block = self.blocks[layer]

        def attend(x: Tensor, x_v: Tensor) -> Tensor:
            heads = block.heads(x, x_v) if z is None else z
            if layer in self.starting_at_z:
                self.z.setdefault(layer, heads)
            return block.write(block.attn.hook_z(heads))

        return block.around_mlp(block.around_attn(state, attend), block.feed_forward)

    def _short_layer(self, state: State, z: Tensor | None, whole_z: bool, at: Any) -> State:
        """The last layer at the positions `at`: keys and values everywhere, and z everywhere if `whole_z`."""
        block = self.blocks[-1]
        heads = [] if z is None else [z]

        def only_heads(x: Tensor, x_v: Tensor) -> Tensor:
            heads.append(block.heads(x, x_v, None if whole_z else at))
            return x.new_zeros(()).expand_as(x)

        if z is None:
            block.around_attn(state, only_heads)
        if block.layer in self.starting_at_z:
            self.z.setdefault(block.layer, heads[0])
        z_rows = pick(block.attn.hook_z(heads[0]), at) if whole_z else heads[0]
        state = block.around_attn(map_state(lambda x: pick(x, at), state), lambda x, x_v: block.write(z_rows))
        return block.around_mlp(state, block.feed_forward)

    def _final(self, state: State, short: bool, at: Any) -> Float[Tensor, "B P D"]:
        """The normed stream at the wanted positions; hooks of the norm see every position."""
        x = self.blocks[-1].readout(state)
        if at is None or short:
            return self.norm(x)
        whole = self.norm.listening or self.hooked_late
        return pick(self.norm(x), at) if whole else self.norm(pick(x, at))

    def _capture(self, name: str, captured: list[Any], finite: list[bool], x: Tensor, hook: Any) -> None:
        finite.append(hooks.is_finite(x, name))
        for values, rows in zip(captured, x.tensor_split(len(captured)), strict=True):
            values[name] = self.keep(name, rows)


def passes(
    model: Any, tokens: Int[Tensor, "B T"], sweep: Sequence[Edits], *, names: Sequence[str] = (),
    keep: Keep = lambda name, x: x.clone(), **options: Any,
) -> Iterator[Outcome]:  # fmt: skip
    """The outcome of a batch under each member of `sweep`, in order.

    Neighbours that start at the same place run as one batch of up to `TOGETHER` tokens, unless the model has hooks of
    the caller, which would see the copies. `names`, `keep` and `options` are those of `Prefix`. A model without
    segments (`interop.huggingface.bridged`) runs a whole pass under every edit.
    """
    if not hasattr(model, "segment"):
        for edits in sweep:
            with edit(model, edits), hooks.capture(model, [*names, model.final]) as captured:
                model(tokens)
            yield model.streams(captured[model.final]), {name: keep(name, captured[name]) for name in names}
        return
    at_once = TOGETHER if tokens.device.type == "cpu" else ELSEWHERE
    size = 1 if any_hooks(model) else max(1, at_once // tokens.numel())
    starts = starts_of(model, sweep)
    prefix = Prefix(model, tokens, set(starts), names=names, keep=keep, **options)
    for start, group in itertools.groupby(range(len(sweep)), starts.__getitem__):
        members = list(group)
        for first in range(0, len(members), size):
            together = [sweep[i] for i in members[first : first + size]]
            try:
                outcomes = prefix.run(together, start)
            except InputError:  # alone, the member at fault is named
                outcomes = [prefix.run([edits], start)[0] for edits in together]
            yield from outcomes


def run_sweep(
    model: Any, query: Query, sweep: Sequence[Edits], *, batch_tokens: int = 8192,
    report: Callable[[int, int], None] = lambda member, tokens: None,
) -> Iterator[Captures]:  # fmt: skip
    """`run(model, query, edits)` for every member of `sweep`, in order; {} is the unedited model.

    Values equal those of `run` up to rounding, and edits see the same batches. Unchanged values are computed once and
    shared by the members, so do not change tensors in place. Models other than ours run once per member. `report` is
    called with the number of the member that has just finished, and its tokens. Raises `InputError` like `run`.
    """
    size = sum(map(len, query.tokens))
    if not hasattr(model, "segment"):
        for member, edits in enumerate(sweep):
            yield hooks.run(model, query, edits)
            report(member, size)
        return
    names, parts = hooks.match(model, query.hooks) if query.hooks else [], []
    for rows in hooks.batches([len(t) for t in query.tokens], batch_tokens):
        tokens = hooks.pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        at = None if query.logits is None else hooks.pad([list(query.logits[i]) or [0] for i in rows])
        keep = partial(hooks.crop, query, rows)
        parts.append((rows, passes(model, tokens, sweep, at=at, names=names, keep=keep, streams=at is not None)))
    for member in range(len(sweep)):
        values: dict[str, list[Any]] = {name: [None] * len(query.tokens) for name in names}
        streams: list[Any] = [None] * len(query.tokens)
        for rows, outcomes in parts:
            h, captured = next(outcomes)
            if silent := [name for name in values if name not in captured]:
                raise InputError(f"hooks that did not fire: {', '.join(silent[:5])}")
            for b, i in enumerate(rows):
                for name, rows_of in captured.items():
                    values[name][i] = rows_of[b]
                if h is not None and query.logits is not None:
                    streams[i] = h[b, : len(query.logits[i])]
        with torch.no_grad():
            logits = unembed(torch.cat(streams), model.head) if query.logits is not None else None
        yield Captures(values, None if logits is None else list(logits.split([len(h) for h in streams])))
        report(member, size)
