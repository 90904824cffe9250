"""Many edits of one batch: the layers before an edit are computed once, answers at their positions only.

    prefix = prefix_of(model, tokens, sweep, at=positions)        the unedited pass of a batch, kept where edits start
    h, captured = prefix.run(edits)                               final normed streams [B, P, D] under one of them

    for captures in run_sweep(model, query, [{}, *sweep])         `models.hooks.run` under each edit

An edited pass starts at the layer of its first hook, or at the output z of that layer's heads if nothing before z is
edited. {} is the unedited pass. With positions `at`, the last layer computes keys and values everywhere and everything
else only at `at`. The exceptions are a block that is not `positionwise`, and an edit, a capture or a hook of that layer
that has to see every position. Results are those of one whole pass per edit, up to rounding.

Hooks that the caller attached to hook points and to modules fire in the layers that run. Those on modules that a sweep
takes apart are refused: the model, its layers, their attention, and the unembedding.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models import hooks
from streamscope.models.hooks import Captures, Edits, Query, edit, row_of
from streamscope.models.layers.attention import pick
from streamscope.models.layers.head import unembed
from streamscope.models.layers.residual import State, map_state
from streamscope.models.transformer import StreamTransformer

TOKENS_AT_ONCE, ELSEWHERE = 4096, 2**17
"""Tokens of a batch on a CPU, where a larger one is no faster, and on other devices."""
WIDEST = 384
"""Widest FFN for which a batch on a CPU has all its tokens; a wider one has as many fewer. A sweep of SmolLM2 (1,536)
takes 1.1 GB with 1,024 tokens and 1.8 with 4,096, in equal time."""
EMBED = -1
_ROWS = {row.name: i for i, row in enumerate(hooks.HOOKS)}
_Z, _FINAL = _ROWS["blocks.L.attn.hook_z"], _ROWS["ln_final.hook_scale"]
Keep = Callable[[str, Tensor], Any]
"""(hook name, activation of the batch) -> the value to keep."""
Start = tuple[int, bool]
"""The first layer that an edit changes (−1: the embedding, n_layers: the final norm), and whether only from z on."""


@cache
def start_of(name: str, n_layers: int) -> Start:
    """The start of an edit of one hook; of a hook that the table does not list, its layer or the embedding."""
    parts = name.split(".")
    if parts[0] == "blocks" and len(parts) > 2 and parts[1].isdigit():
        return int(parts[1]), _ROWS.get(".".join(("blocks.L", *parts[2:])), 0) >= _Z
    return (n_layers if _ROWS.get(name, 0) >= _FINAL else EMBED), False


def first_start(model: Any, edits: Edits) -> Start:
    """The start of a pass under some edits; `InputError` as `hooks.edit` raises it for names."""
    n = model.config.n_layers
    return min((start_of(name, n) for name, _ in hooks.resolve(model, edits)), default=(n + 1, False))


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
    blocks = sum(p.numel() for p in model.blocks.parameters())
    starts = [first_start(model, edits) if edits else (0, False) for edits in sweep]
    first = np.array([layer + from_z / 4 for layer, from_z in starts]).clip(0, n)
    return ((1 - first / n) * blocks + model.head.numel()) / (blocks + model.head.numel())


class Prefix:
    """The unedited pass of `tokens` [B, T], kept where the edits of `sweep` start, and the passes under them.

    at [B, P]: the wanted positions; None: all. names: hooks to capture, whose values are kept by `keep`. Without
    `streams` there is no h, and passes end with the layer of the last captured hook.

    Raises `InputError` in training mode, for unknown or observe-only hooks, for a caller's hook on a module that is
    taken apart, and for values that are not finite.
    """

    def __init__(
        self, model: StreamTransformer, tokens: Int[Tensor, "B T"], sweep: Iterable[Edits], *,
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
        shown = max((layer for layer, _ in self.starts.values()), default=EMBED)
        self.last = n if streams or not all(map(row_of, self.starts)) else shown
        """The last layer that runs, or n_layers: the final norm."""
        late = [point for name, point in model.hook_dict.items() if start_of(name, n)[0] >= n - 1]
        self.hooked_late = any(name.startswith((f"blocks.{n - 1}.", "ln_final")) for name in hooked)
        """Whether a hook of the caller, perhaps on a module, has to see every position of the last layer or norm."""
        is_quiet = not self.hooked_late and all(map(hooks.quiet, late))
        self.short = at is not None and is_quiet and shown < n - 1 and bool(self.blocks[-1].positionwise)
        """Whether the last layer may run at the positions only."""
        starting = {first_start(model, edits) for edits in sweep if edits}
        self.starting, self.starting_at_z = {layer for layer, _ in starting}, {layer for layer, z in starting if z}
        self.states: dict[int, State] = {}
        """The state before a layer in which an edit starts."""
        self.z: dict[int, Tensor] = {}
        """z of the heads of such a layer, at every position."""
        self.unedited = self._pass({}, set(), (EMBED, False), {})

    def run(self, edits: Edits) -> tuple[Any, dict[str, Any]]:
        """(final normed streams [B, P, D], or None without `streams`; captures) under edits that are in the sweep."""
        n, names = self.model.config.n_layers, {name for name, _ in hooks.resolve(self.model, edits)}
        start = min((start_of(name, n) for name in names), default=(n + 1, False))
        has_effect = self.last == n or start <= max(self.starts.values(), default=(EMBED, False))
        return self._pass(edits, names, start, self.unedited[1]) if edits and has_effect else self.unedited

    @torch.no_grad()
    def _pass(
        self, edits: Edits, names: set[str], start: Start, base_captures: Mapping[str, Any]
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """The pass from `start` on under edits of the hooks `names`; `base_captures` are those of the unedited one."""
        layer, n = start[0], self.model.config.n_layers
        captured, finite = dict(base_captures), list[bool]()
        listeners = [(name, partial(self._capture, name, captured, finite)) for name in self.starts]
        late = {name for name in names if row_of(name) is None or start_of(name, n)[0] >= n - 1}
        z_name = f"blocks.{n - 1}.attn.hook_z"
        short = self.short and late <= {z_name} and (bool(edits) or n not in self.starting)
        whole_z = z_name in names or n - 1 in self.starting_at_z  # an edit sees every position
        with edit(self.model, edits, must_fire=self.streams), hooks.attached(self.model, listeners):
            state = self.model.embed_tokens(self.tokens) if layer == EMBED else self.states[layer]
            for i in range(max(layer, 0), min(self.last + 1, n)):
                if i in self.starting:
                    self.states.setdefault(i, state)
                z = self.z.get(i) if start == (i, True) else None
                short_layer = short and i == n - 1
                state = self._short_layer(state, z, whole_z) if short_layer else self._layer(i, state, z)
            if n in self.starting and not short:
                self.states.setdefault(n, state)
            h = self._final(state, short) if self.last == n else None
        if not all(finite) or (h is not None and not hooks.is_finite(h)):
            raise hooks.not_finite(self.model, self.tokens, hooks.resolve(self.model, edits))
        return h if self.streams else None, captured

    def _layer(self, layer: int, state: State, z: Tensor | None) -> State:
        block = self.blocks[layer]

        def attend(x: Tensor, x_v: Tensor) -> Tensor:
            heads = block.heads(x, x_v) if z is None else z
            if layer in self.starting_at_z:
                self.z.setdefault(layer, heads)
            return block.write(block.attn.hook_z(heads))

        return block.around_mlp(block.around_attn(state, attend), block.feed_forward)

    def _short_layer(self, state: State, z: Tensor | None, whole_z: bool) -> State:
        """The last layer at the positions: keys and values everywhere, and z everywhere if `whole_z`."""
        block = self.blocks[-1]
        at_positions: Any = self.at
        heads = [] if z is None else [z]

        def only_heads(x: Tensor, x_v: Tensor) -> Tensor:
            heads.append(block.heads(x, x_v, None if whole_z else at_positions))
            return x.new_zeros(()).expand_as(x)

        if z is None:
            block.around_attn(state, only_heads)
        if block.layer in self.starting_at_z:
            self.z.setdefault(block.layer, heads[0])
        z_rows = pick(block.attn.hook_z(heads[0]), at_positions) if whole_z else heads[0]
        state = block.around_attn(map_state(lambda x: pick(x, at_positions), state), lambda x, x_v: block.write(z_rows))
        return block.around_mlp(state, block.feed_forward)

    def _final(self, state: State, short: bool) -> Float[Tensor, "B P D"]:
        """The normed stream at the wanted positions; hooks of the norm see every position."""
        x = self.model.readout(state)
        if self.at is None or short:
            return self.norm(x)
        whole = self.norm.listening or self.hooked_late
        return pick(self.norm(x), self.at) if whole else self.norm(pick(x, self.at))

    def _capture(self, name: str, captured: dict[str, Any], finite: list[bool], x: Tensor, hook: Any) -> None:
        finite.append(hooks.is_finite(x, name))
        captured[name] = self.keep(name, x)


class WholePasses:
    """`Prefix` of a model without segments (`interop.huggingface.bridged`): a whole pass under every edit."""

    def __init__(self, model: Any, tokens: Tensor, sweep: Iterable[Edits], *, names: Sequence[str] = (),
                 keep: Keep = lambda name, x: x.clone()) -> None:  # fmt: skip
        self.model, self.tokens, self.names, self.keep = model, tokens, names, keep

    def run(self, edits: Edits) -> tuple[Tensor, dict[str, Any]]:
        """(final normed streams, captures) under the edits."""
        model = self.model
        with edit(model, edits), hooks.capture(model, [*self.names, model.final]) as captured:
            model(self.tokens)
        return model.streams(captured[model.final]), {name: self.keep(name, captured[name]) for name in self.names}


def prefix_of(model: Any, tokens: Int[Tensor, "B T"], sweep: Iterable[Edits], **options: Any) -> Prefix | WholePasses:
    """The passes of a batch under the edits of a sweep; `options` are those of `Prefix`."""
    return (Prefix if hasattr(model, "segment") else WholePasses)(model, tokens, sweep, **options)


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
    parts = []
    for rows in hooks.batches([len(t) for t in query.tokens], batch_tokens):
        tokens = hooks.pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        positions = None if query.logits is None else hooks.pad([list(query.logits[i]) or [0] for i in rows])
        options: dict[str, Any] = {"names": query.hooks, "keep": partial(_cropped, query, rows)}
        parts.append((rows, Prefix(model, tokens, sweep, at=positions, streams=positions is not None, **options)))
    for member, edits in enumerate(sweep):
        values: dict[str, list[Any]] = {name: [None] * len(query.tokens) for name in parts[0][1].starts}
        streams: list[Any] = [None] * len(query.tokens)
        for rows, prefix in parts:
            h, captured = prefix.run(edits)
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


def _cropped(query: Query, rows: Sequence[int], name: str, x: Tensor) -> list[Tensor]:
    """Each prompt's part of an activation, without padding, at the query's positions."""
    positions: Sequence[Any] = query.positions or [None] * len(query.tokens)
    return [hooks.crop(name, x[b], len(query.tokens[i]), positions[i]) for b, i in enumerate(rows)]
