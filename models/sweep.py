"""Many edits of one batch in few passes: what edits share is computed once.

    measure_rows(model, tokens, [{}, *sweep], measure)       `measure` of the final streams under each edit
    run_sweep(model, query, [{}, *sweep])                    `models.hooks.run` under each edit
    Trajectories(model, tokens, [{}, *sweep], at=positions)  the passes that both use

A trajectory is the batch [B, T] under edits that have been equal so far; it splits where they begin to differ. So an
edit costs only what follows its first hook, edits of two heads share the pass of their first head, and {} is the
unedited pass. Trajectories at the same layer run as one batch of up to `budget` tokens, the deepest layer first, so
memory does not grow with the sweep.

With positions `at`, the last layer computes keys and values everywhere and everything else only at `at`. The exceptions
are a block that is not `positionwise`, and an edit or a hook of that layer that has to see every position.

An edit sees its own copy [B, …] of the batch at every position, as in `models.hooks.run`: results are those of one
pass per edit, up to rounding. Edits must be pure: equal functions of equal arguments run once. Hooks that the caller
attached to hook points see the copies of a chunk as one batch, and a shared part of trajectories once; if such a hook
edits, it edits all copies. Hooks on modules do not fire.

The order of the file: the stage at which a hook acts (`stage_of`, `Plan`), the edits that share a layer (`LayerTask`),
the passes (`Trajectories`), and the functions that use them (`measure_rows`, `run_sweep`).
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
import torch.utils._pytree
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import (
    HOOKS,
    Captures,
    Edit,
    Edits,
    Query,
    apply_edit,
    attached,
    batches,
    capture,
    check_fired,
    crop,
    edit,
    is_finite,
    match,
    not_finite,
    pad,
    quiet,
    resolve,
    row_of,
    run,
)
from streamscope.models.layers.attention import pick
from streamscope.models.layers.head import unembed
from streamscope.models.layers.residual import Block, State, map_state
from streamscope.models.transformer import StreamTransformer

BUDGET = {"cpu": 4096}
"""Tokens per chunk by device: a larger batch is no faster on a CPU."""
BUDGET_ELSEWHERE = 2**17
WIDEST = 384
"""Widest FFN for which a chunk on a CPU has all `BUDGET` tokens; a wider one has as many fewer. A sweep of SmolLM2
(1,536) takes 1.1 GB with 1,024 tokens and 1.8 with 4,096, in equal time."""
STEADY = 4
"""Least rows of a product: fewer rows round differently than the same rows in a larger product."""
HELD = 2**19
"""Largest tokens · hooks · edits whose captures are in memory at the same time."""

# ---- the stage of a hook --------------------------------------------------------------------------

EMBED, HEADS, WRITE, FFN, POST = -1, 0, 1, 2, 3
"""The stages of a forward pass, in order, from the table of hooks: EMBED, then for every layer L

    4 L + HEADS    up to z, the input of the output projection
    4 L + WRITE    z, the projection, the stream after attention
    4 L + FFN      the FFN
    4 L + POST     the stream that leaves the layer

then 4 n_layers, the final norm. An edit changes nothing before its stage, so edits share the stages before it."""
STAGES = 4
"""Stages of a layer."""

_ROWS = [row.name for row in HOOKS]
_AFTER = max(i for i, name in enumerate(_ROWS) if name.startswith("blocks.L.")) + 1
_STARTS = {
    WRITE: _ROWS.index("blocks.L.attn.hook_z"),
    FFN: _ROWS.index("blocks.L.hook_resid_mid") + 1,
    POST: _ROWS.index("blocks.L.hook_mlp_out") + 1,
}


def layer_of(name: str) -> int | None:
    """L of a hook of layer L; None outside the blocks."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" and len(parts) > 2 and parts[1].isdigit() else None


@cache
def stage_of(name: str, n_layers: int) -> int:
    """The first stage that an edit of the hook changes; of a hook that the table does not list, the start of its layer
    or the embedding."""
    layer, row = layer_of(name), row_of(name)
    place = 0 if row is None else _ROWS.index(row.name)
    if layer is None:
        return n_layers * STAGES if place >= _AFTER else EMBED
    return layer * STAGES + max((stage for stage, start in _STARTS.items() if place >= start), default=HEADS)


def chunk_tokens(model: Any, device: str) -> int:
    """Tokens per chunk, at least 256."""
    budget = BUDGET.get(device, BUDGET_ELSEWHERE)
    width = model.config.d_mlp if hasattr(model, "segment") else 4 * model.config.d_model
    return budget if device != "cpu" else max(256, budget * WIDEST // max(WIDEST, width))


class Plan:
    """The edits of one member of a sweep, hook by hook and stage by stage. Raises `InputError` like `hooks.edit`."""

    def __init__(self, model: Any, edits: Edits) -> None:
        self.edits = edits
        self.functions: dict[str, list[Edit]] = {}
        """By full hook name, in the order in which they apply."""
        self.stages: dict[str, int] = {}
        """Hook -> stage."""
        self.keys: dict[int, tuple[Hashable, ...]] = {}
        """Stage -> key of its edits; equal keys stand for equal edits."""
        for name, fn in resolve(model, edits):
            stage = stage_of(name, model.config.n_layers)
            self.functions.setdefault(name, []).append(fn)
            self.stages[name] = stage
            self.keys[stage] = (*self.keys.get(stage, ()), (name, identity(fn)))
        self.anywhere = any(row_of(name) is None for name in self.functions)
        """Whether some hook is not in the table and may fire at any place from its stage on."""


def pass_shares(model: Any, plans: Sequence[Plan]) -> Float[np.ndarray, " plans"]:
    """What each member costs after the members before it, in passes of the unedited model: the weights that follow its
    first edit."""
    if not hasattr(model, "segment"):
        return np.ones(len(plans))
    end = model.config.n_layers * STAGES
    blocks = sum(p.numel() for p in model.blocks.parameters())
    first = np.array([max(0, min(plan.stages.values(), default=0)) for plan in plans])
    return ((1 - first / end) * blocks + model.head.numel()) / (blocks + model.head.numel())


def identity(value: Any) -> Hashable:
    """Equal for functions that are equal by construction: partial applications of equal values, or one object."""
    if isinstance(value, partial):
        return partial, identity(value.func), identity(value.args), identity(sorted(value.keywords.items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(identity(v) for v in value)
    if isinstance(value, bool | int | float | str | None):
        return type(value), value
    return "object", id(value)


# ---- edits that share a layer -------------------------------------------------------------------------


@dataclass(eq=False)
class CaptureChain:
    """The captures of a trajectory after those of the chain `before`, which several trajectories may share."""

    before: "CaptureChain | None" = None
    found: dict[str, Any] = field(default_factory=dict)

    def captured(self) -> dict[str, Any]:
        """{hook name: kept value}, from the embedding on."""
        return {**(self.before.captured() if self.before is not None else {}), **self.found}


@dataclass(eq=False)
class Trajectory:
    """A trajectory before a layer: its state [B, …] (None: before the embedding) and its captures."""

    state: State
    chain: CaptureChain


@dataclass(eq=False)
class LayerTask:
    """The next layer of a trajectory, for those of its edits that are equal in it: `keys`, stage by stage."""

    trajectory: Trajectory
    edits: list[int]
    keys: tuple[Hashable, ...]


def key(task: LayerTask, depth: int) -> tuple[int, tuple[Hashable, ...]]:
    """Equal for tasks that are equal in the first `depth` stages of their layer."""
    return id(task.trajectory), task.keys[:depth]


def group_tasks(tasks: Sequence[LayerTask], depth: int) -> list[list[LayerTask]]:
    """Groups of neighbours that are equal in the first `depth` stages of their layer."""
    return [list(group) for _, group in groupby(tasks, partial(key, depth=depth))]


def group_indices(tasks: Sequence[LayerTask], groups: Sequence[Sequence[LayerTask]]) -> list[int]:
    """The group of each task."""
    place = {id(task): i for i, group in enumerate(groups) for task in group}
    return [place[id(task)] for task in tasks]


def sort_by_prefix(keys: Sequence[tuple[Hashable, ...]]) -> list[tuple[Hashable, ...]]:
    """Keys in the order of their first, then of their second parts, and so on, parts in order of appearance."""
    seen: dict[Hashable, int] = {}
    for key in keys:
        for depth in range(1, len(key) + 1):
            seen.setdefault(key[:depth], len(seen))
    return sorted(keys, key=lambda key: [seen[key[:depth]] for depth in range(1, len(key) + 1)])


def concatenate_states(states: Sequence[State]) -> State:
    """States one after the other along the batch."""
    if len(states) == 1:
        return states[0]
    return torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *states)


# ---- the passes ---------------------------------------------------------------------------------------

Kind = Literal["whole", "z", "at", "heads"]
"""How much of a layer runs. "whole" is all of it at every position. The last layer may need less: "z" is z everywhere
and the rest at the wanted positions, "at" everything there except keys and values, "heads" only attention, for
captures."""
Keep = Callable[[str, Tensor], Any]
"""(hook name, activation of one copy of the batch) -> the value to keep."""


@dataclass(frozen=True)
class Arrival:
    """Finished trajectories: their edits, final normed streams (None without `streams`), captures."""

    edits: list[list[int]]
    h: Float[Tensor, "rows B P D"] | None
    found: list[dict[str, Any]]


class Trajectories:
    """The passes of `tokens` [B, T] under each of `sweep`; iterate once. The first member arrives first.

    `at` [B, P]: the wanted positions; None: all. `names`: hooks to capture, whose values are kept by `keep`. Without
    `streams` there is no h, and passes end after the last captured hook.

    Raises `InputError` in training mode, for unknown or observe-only hooks, positions outside the rows, edits of
    another shape, and values that are not finite. At the end of the iteration it raises one for an edit that never
    fired although its stage ran.
    """

    def __init__(
        self,
        model: StreamTransformer,
        tokens: Int[Tensor, "B T"],
        sweep: Sequence[Edits | Plan],
        *,
        at: Int[Tensor, "B P"] | None = None,
        names: Sequence[str] = (),
        keep: Keep = lambda name, x: x.clone(),
        streams: bool = True,
        budget: int | None = None,
    ) -> None:
        if model.training:
            raise InputError("the model is in training mode, where dropout is on: call model.eval() first")
        model.check_tokens(tokens)
        self.model, self.tokens, self.streams = model, tokens, streams
        self.plans = [e if isinstance(e, Plan) else Plan(model, e) for e in sweep]
        self.names, self.keep = set(match(model, names) if names else ()), keep
        used = self.names.union(*(plan.functions for plan in self.plans))
        self.points = [name for name in model.hook_dict if name in used]
        self.fired: set[str] = set()
        """Hooks at which an edit acted."""
        self.batch = tokens.shape[0]
        self.copies: list[tuple[int, dict[str, Any]]] = []
        """Per copy of the batch in the next tensors: a member of the sweep, whose edits equal those of all members that
        share the copy, and the dictionary for its captures."""
        self.chunk = max(1, (budget or chunk_tokens(model, tokens.device.type)) // max(1, tokens.numel()))
        self.at: Tensor | None = None
        self.wanted = None
        if at is not None:
            self.at, self.wanted = self._positions(at)
        n = model.config.n_layers
        self.final = self.stop = n * STAGES
        """The stage of the final norm, and the last stage of these passes."""
        if not streams and all(map(row_of, self.names)) and not any(plan.anywhere for plan in self.plans):
            self.stop = max((stage_of(name, n) for name in self.names), default=EMBED)
        self.last = min(max(self.stop, 0) // STAGES, n - 1)
        self._kept: dict[int, tuple[LayerTask, Tensor, CaptureChain]] = {}
        """By layer, z of the last copy of a chunk, which the next chunk may reuse."""

    def _positions(self, at: Tensor) -> tuple[Tensor, int]:
        """`at` counted from 0, with copies of its last column until a product has enough rows; its columns."""
        n = self.tokens.shape[1]
        if at.ndim != 2 or at.shape[0] != self.tokens.shape[0] or not at.numel():
            raise InputError(
                f"positions {list(at.shape)} for tokens {list(self.tokens.shape)}: give [batch, positions]"
            )
        if not -n <= int(at.min()) <= int(at.max()) < n:
            raise InputError(f"a position is outside a sequence of {n} tokens")
        copies = max(0, -(-STEADY // at.shape[0]) - at.shape[1])
        return torch.cat([at, at[:, -1:].expand(-1, copies)], 1).to(self.tokens.device) % n, at.shape[1]

    def __iter__(self) -> Iterator[Arrival]:
        end = self.last * STAGES
        alone = all(quiet(p) for n, p in self.model.hook_dict.items() if self._stage(n) >= end)
        shows = any(self._stage(name) >= end for name in self.names)
        self._short = alone and not shows and self.at is not None and bool(self.model.blocks[self.last].positionwise)
        self._heads_only = alone and self.stop == end
        queues: dict[tuple[int, Kind], deque[LayerTask]] = {}
        self._queue(queues, -1, Trajectory(None, CaptureChain()), list(range(len(self.plans))))
        while queues:
            layer, kind = place = max(queues)
            tasks = [queues[place].popleft() for _ in range(min(self.chunk, len(queues[place])))]
            if not queues[place]:
                del queues[place]
            chains, state, h = self._run(layer, kind, tasks)
            if layer == self.last:
                self._check_finite(tasks, h)
                yield Arrival([task.edits for task in tasks], h, [chain.captured() for chain in chains])
                continue
            for i, (task, chain) in enumerate(zip(tasks, chains, strict=True)):
                own = map_state(partial(self._rows, index=[i]), state)
                self._queue(queues, layer + 1, Trajectory(own, chain), task.edits)
        reached = {name for plan in self.plans for name, stage in plan.stages.items() if stage <= self.stop}
        check_fired([name for name in self.points if name in reached - self.fired])

    def _check_finite(self, tasks: Sequence[LayerTask], h: Tensor | None) -> None:
        """Raise `InputError` for final streams that are not finite, with the edits and the first hook that shows it."""
        if h is None or is_finite(h):
            return
        task = next(task for task, x in zip(tasks, h, strict=True) if not is_finite(x))
        functions = self.plans[task.edits[0]].functions
        raise not_finite(self.model, self.tokens, [(name, fn) for name, some in functions.items() for fn in some])

    def _stage(self, name: str) -> int:
        return stage_of(name, self.model.config.n_layers)

    # ---- splitting -----------------------------------------------------------------------------

    def _queue(
        self, queues: dict[tuple[int, Kind], deque[LayerTask]], layer: int, trajectory: Trajectory, edits: list[int]
    ) -> None:
        """Split a trajectory by its edits in a layer (−1: the embedding)."""
        stages = [EMBED] if layer < 0 else [layer * STAGES + s for s in (HEADS, WRITE, FFN, POST)]
        if layer == self.last:
            stages = stages[:1] if self._heads_only else [*stages, self.final]
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        for e in edits:
            groups.setdefault(tuple(self.plans[e].keys.get(s) for s in stages), []).append(e)
        tasks = [LayerTask(trajectory, groups[keys], keys) for keys in sort_by_prefix(list(groups))]
        kinds = [self._kind(layer, task) for task in tasks]
        for kind, task in zip(kinds, tasks, strict=True):
            shared: Kind = "z" if kind == "at" and "z" in kinds else kind
            queues.setdefault((layer, shared), deque()).append(task)

    def _kind(self, layer: int, task: LayerTask) -> Kind:
        """The part of the layer that a single task needs."""
        if layer != self.last:
            return "whole"
        if self._heads_only:
            return "heads"
        plan = self.plans[task.edits[0]]
        here = [name for name, stage in plan.stages.items() if stage >= layer * STAGES]
        if not self._short or plan.anywhere or any(name != f"blocks.{layer}.attn.hook_z" for name in here):
            return "whole"
        return "z" if here else "at"

    # ---- the passes ----------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self, layer: int, kind: Kind, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State, Tensor | None]:
        """The trajectories after a layer, and, after the last, their final streams."""
        ends = layer == self.last and kind != "heads" and self.stop == self.final
        stages = {EMBED} if layer < 0 else {layer * STAGES + s for s in (HEADS, WRITE, FFN, POST)}
        stages |= {self.final} if ends else set()
        here = [name for name in self.points if self._stage(name) in stages or row_of(name) is None]
        with attached(self.model, self._hooks(here, [task.edits[0] for task in tasks])):
            if layer < 0:
                chains = self._set_copies(
                    [[task] for task in tasks], [CaptureChain(task.trajectory.chain) for task in tasks]
                )
                state = self.model.embed_tokens(self.tokens.repeat(len(tasks), 1))
            else:
                run = self._whole if kind == "whole" else partial(self._partly, kind)
                chains, state = run(self.model.blocks[layer], tasks)  # type: ignore[arg-type]
            h = self._final(kind, len(tasks), state) if ends else None
        return chains, state, h if self.streams else None

    def _whole(self, block: Block, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State]:
        """Run a layer at every position, each stage once for all tasks that are equal up to it.

        Tasks that are equal up to z form a group of `read`, up to the FFN's input one of `written`, up to its output
        one of `fed`. `which` and `whose` map the copies of a tensor to their group in the stage before.
        """
        written, fed = group_tasks(tasks, 2), group_tasks(tasks, 3)
        read, z, nodes = self._begin(block.layer, tasks)
        which = group_indices([group[0] for group in written], read)
        mids = [CaptureChain(nodes[i]) for i in which]

        def attend(x: Tensor, x_v: Tensor) -> Tensor:
            new = range(len(z), len(read))
            if new:
                first = [which.index(i) for i in new]
                x_new = self._rows(x, first)
                self._set_copies(read[new.start :], nodes[new.start :])
                z.extend(block.heads(x_new, x_new if x_v is x else self._rows(x_v, first)).split(self.batch))
            self._kept[block.layer] = tasks[-1], z[-1], nodes[-1]
            self._set_copies(written, mids)
            return block.write(block.attn.hook_z(torch.cat([z[i] for i in which])))

        self._set_copies(written, mids)
        state = block.around_attn(concatenate_states([group[0].trajectory.state for group in written]), attend)
        copies, whose = group_indices(tasks, written), group_indices(tasks, fed)
        inner = [CaptureChain(mids[copies[whose.index(i)]]) for i in range(len(fed))]
        ends = [CaptureChain(inner[i]) for i in whose]

        def feed_forward(x: Tensor) -> Tensor:
            self._set_copies(fed, inner)
            y = block.feed_forward(self._rows(x, [whose.index(i) for i in range(len(fed))]))
            self._set_copies([[task] for task in tasks], ends)
            return self._rows(y, whose)

        self._set_copies([[task] for task in tasks], ends)
        return ends, block.around_mlp(map_state(partial(self._rows, index=copies), state), feed_forward)

    def _partly(self, kind: Kind, block: Block, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State]:
        """Run the needed part of the last layer; returns the state at `at`. Only z has listeners."""
        read, z, nodes = self._begin(block.layer, tasks, kept=kind == "z")
        new = slice(len(z), len(read))

        def only_heads(x: Tensor, x_v: Tensor) -> Tensor:
            at = self._at(len(read[new])) if kind == "at" else None
            z.extend(block.heads(x, x_v, at).split(self.batch))
            return x.new_zeros(()).expand_as(x)

        if read[new]:
            self._set_copies(read[new], nodes[new])
            block.around_attn(concatenate_states([group[0].trajectory.state for group in read[new]]), only_heads)
        which = group_indices(tasks, read)
        chains = self._set_copies([[task] for task in tasks], [CaptureChain(nodes[i]) for i in which])
        if kind == "heads":
            return chains, None
        if kind == "z":
            self._kept[block.layer] = tasks[-1], z[-1], nodes[-1]
        heads = torch.cat([z[i] for i in which])
        if kind == "z":
            heads = pick(block.attn.hook_z(heads), self._at(len(tasks)))
        states = [map_state(lambda x: pick(x, self._at(1)), group[0].trajectory.state) for group in read]
        state = block.around_attn(concatenate_states([states[i] for i in which]), lambda x, x_v: block.write(heads))
        return chains, block.around_mlp(state, block.feed_forward)

    def _final(self, kind: Kind, n: int, state: State) -> Float[Tensor, "rows B P D"]:
        """The normed stream at the wanted positions."""
        x, norm = self.model.readout(state), self.model.ln_final
        if self.at is None or kind in ("at", "z"):
            h = norm(x)
        else:  # the hooks of the norm see every position
            h = pick(norm(x), self._at(n)) if norm.listening else norm(pick(x, self._at(n)))
        return h.unflatten(0, (n, -1))[:, :, : self.wanted]

    def _begin(
        self, layer: int, tasks: list[LayerTask], *, kept: bool = True
    ) -> tuple[list[list[LayerTask]], list[Tensor], list[CaptureChain]]:
        """Tasks by HEADS stage; z of the first at every position if the last chunk ended with it; their captures."""
        read = group_tasks(tasks, 1)
        z, nodes = [], [CaptureChain(group[0].trajectory.chain) for group in read]
        before = self._kept.get(layer) if kept else None
        if before is not None and key(before[0], 1) == key(tasks[0], 1):
            z, nodes[0] = [before[1]], before[2]
        return read, z, nodes

    def _rows(self, x: Tensor, index: Sequence[int]) -> Tensor:
        """Copies of the batch by index; `x` itself for all of them."""
        parts = x.split(self.batch)
        if list(index) == list(range(len(parts))):
            return x
        return parts[index[0]] if len(index) == 1 else torch.cat([parts[i] for i in index])

    def _at(self, n: int) -> Int[Tensor, "n_B P"]:
        """The wanted positions of n copies of the batch."""
        assert self.at is not None
        return self.at.repeat(n, 1)

    # ---- hooks: a tensor is [copies · batch, …], copy after copy -------------------------------

    def _set_copies(self, groups: Sequence[Sequence[LayerTask]], chains: list[CaptureChain]) -> list[CaptureChain]:
        """Record the copies in the next tensors, one per group, and return `chains`."""
        self.copies = [(group[0].edits[0], chain.found) for group, chain in zip(groups, chains, strict=True)]
        return chains

    def _hooks(self, points: Sequence[str], edits: Sequence[int]) -> list[tuple[str, Callable[..., Tensor | None]]]:
        """The hooks to attach to the points for these members of the sweep: their edits, then the captures."""
        edited = {name for e in edits for name in self.plans[e].functions}
        hooks: list[tuple[str, Callable[..., Tensor | None]]] = []
        hooks += [(name, partial(self._edit, name)) for name in points if name in edited]
        return hooks + [(name, partial(self._capture, name)) for name in points if name in self.names]

    def _edit(self, name: str, x: Tensor, hook: Any) -> Tensor | None:
        parts, some = [], False
        for (member, _), part in zip(self.copies, self._parts(name, x), strict=True):
            for fn in self.plans[member].functions.get(name, ()):
                part, some = apply_edit(name, fn, part, hook), True
            parts.append(part)
        if not some:
            return None
        self.fired.add(name)
        return torch.cat(parts)

    def _capture(self, name: str, x: Tensor, hook: Any) -> None:
        for (member, found), part in zip(self.copies, self._parts(name, x), strict=True):
            if not is_finite(part, name):
                edited = self.plans[member].functions
                under = f"under the edit of {', '.join(edited)}" if edited else "in the unedited model"
                raise InputError(f"{name} is not finite {under}")
            found[name] = self.keep(name, part)

    def _parts(self, name: str, x: Tensor) -> Sequence[Tensor]:
        if x.shape[0] != self.batch * len(self.copies):
            raise InputError(f"{name} fired with {x.shape[0]} rows where {self.batch} · {len(self.copies)} run")
        return x.split(self.batch)


# ---- measurements of many edits -----------------------------------------------------------------------

Measure = Callable[[Tensor, dict[str, Any]], np.ndarray]
"""(final normed streams [B, P, D], captures) -> an array, of the same shape for all members."""


def _whole_passes(
    model: Any,
    tokens: Int[Tensor, "B T"],
    sweep: Sequence[Edits | Plan],
    *,
    names: Sequence[str] = (),
    keep: Callable[[str, Tensor], Any] = lambda name, x: x.clone(),
    budget: int | None = None,
) -> Iterator[Arrival]:
    """`Trajectories` for a model without segments (`interop.huggingface.bridged`): one pass per member."""
    for at, one in enumerate(sweep):
        with edit(model, one.edits if isinstance(one, Plan) else one), capture(model, [*names, model.final]) as found:
            model(tokens)
        h = model.streams(found[model.final])[None]
        yield Arrival([[at]], h, [{name: keep(name, found[name]) for name in names}])


def measure_rows(
    model: Any,
    tokens: Int[Tensor, "B T"],
    sweep: Sequence[Edits | Plan],
    measure: Measure,
    *,
    done: Callable[[Sequence[int]], None] = lambda members: None,
    **options: Any,
) -> Float[np.ndarray, "members ..."]:
    """`measure` of every member of `sweep`, called once per trajectory, first for the first member.

    So `measure` may keep the values of the first member, such as the unedited model, to compare the others with them.
    `done` is called with the members that have just finished. `options` are those of `Trajectories`, which
    also lists the errors.
    """
    values: np.ndarray | None = None
    passes = Trajectories if hasattr(model, "segment") else _whole_passes
    for arrived in passes(model, tokens, sweep, **options):
        assert arrived.h is not None
        for members, h, found in zip(arrived.edits, arrived.h, arrived.found, strict=True):
            value = np.asarray(measure(h, found))
            if values is None:
                values = np.zeros((len(sweep), *value.shape))
            values[members] = value
            done(members)
    assert values is not None
    return values


def run_sweep(
    model: Any, query: Query, sweep: Sequence[Edits], *, batch_tokens: int = 8192, budget: int | None = None,
    done: Callable[[Sequence[int], int], None] = lambda members, tokens: None,
) -> Iterator[Captures]:  # fmt: skip
    """`run(model, query, edits)` for every member of `sweep`, in order; {} is the unedited model.

    Values equal those of `run` up to rounding, and edits see the same batches. Unchanged values are computed once and
    shared by the members, so do not change tensors in place. `HELD` limits the members computed at a time; `budget` is
    that of `Trajectories`. Models other than ours run once per member. `done` is called with the members that have just
    finished a batch and its padded tokens. Raises `InputError` like `run`; an edit after
    everything that the query needs does not run.
    """
    if not hasattr(model, "segment"):
        for at, edits in enumerate(sweep):
            yield run(model, query, edits)
            done([at], sum(map(len, query.tokens)))
        return
    names = match(model, query.hooks) if query.hooks else []
    plans = [Plan(model, edits) for edits in sweep]
    size = max(8, HELD // (sum(map(len, query.tokens)) * max(1, len(names))))
    for first in range(0, len(plans), size):
        yield from _run_plans(model, query, names, plans[first : first + size], first, batch_tokens, budget, done)


def _run_plans(
    model: Any, query: Query, names: list[str], plans: list[Plan], first: int, batch_tokens: int, budget: int | None,
    done: Callable[[Sequence[int], int], None],
) -> Iterator[Captures]:  # fmt: skip
    """The captures of `plans`, members of the sweep from `first` on, all computed before the first is returned."""
    n = len(query.tokens)
    kept: list[dict[str, list[Any]]] = [{name: [None] * n for name in names} for _ in plans]
    streams: list[list[Any]] = [[None] * n for _ in plans]
    for rows in batches([len(t) for t in query.tokens], batch_tokens):
        tokens = pad([list(query.tokens[i]) for i in rows]).to(model.cfg.device)
        at = None if query.logits is None else pad([list(query.logits[i]) or [0] for i in rows])
        keep = partial(_cropped, query, rows)
        options: dict[str, Any] = {"names": names, "keep": keep, "streams": at is not None, "budget": budget}
        for arrived in Trajectories(model, tokens, plans, at=at, **options):
            for r, edits in enumerate(arrived.edits):
                silent = [name for name in names if name not in arrived.found[r]]
                if silent:
                    raise InputError(f"hooks that did not fire: {', '.join(silent[:5])}")
                for b, i in enumerate(rows):
                    for e in edits:
                        for name in names:
                            kept[e][name][i] = arrived.found[r][name][b]
                        if arrived.h is not None and query.logits is not None:
                            streams[e][i] = arrived.h[r, b, : len(query.logits[i])].clone()
                done([first + e for e in edits], tokens.numel())
    for hooks, h in zip(kept, streams, strict=True):
        yield Captures(hooks, None if query.logits is None else _logits(model, h))


def _cropped(query: Query, rows: Sequence[int], name: str, x: Tensor) -> list[Tensor]:
    """Each prompt's part of an activation, without padding, at the query's positions."""
    wanted = query.positions
    return [crop(name, x[b], len(query.tokens[i]), wanted[i] if wanted else None) for b, i in enumerate(rows)]


@torch.no_grad()
def _logits(model: Any, h: list[Tensor]) -> list[Tensor]:
    """Logits [P, V] of every prompt's final streams [P, D]."""
    return list(unembed(torch.cat(h), model.head).split([len(one) for one in h]))
