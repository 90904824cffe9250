"""Many edits of one batch in one pass: what edits share is computed once, and what they change together.

    for arrived in Trajectories(model, tokens, [{}, *sweep], at=positions):
        arrived.edits, arrived.h                who shares a row of h; h [rows, B, P, D], after the final norm

A trajectory is the batch [B, T] under edits that have done the same so far; it splits where they begin to differ
(`stages`). So an edit costs only what comes after its first hook, edits of two heads share the pass of their
first head, and {} is the unedited pass. Trajectories at the same layer run as one batch of up to `budget` tokens, the
deepest layer first, so memory does not grow with the sweep.

When only positions `at` matter, the last layer computes keys and values everywhere and all else there: unless its block
is not `positionwise`, or an edit or a hook of that layer has to see every position.

An edit sees its own copy [B, …] of the batch at every position, as in `models.hooks.run`: results are those of one
pass per edit, up to rounding. Edits must be pure: equal functions of equal arguments run once. Hooks that somebody else
attached to points see the copies of a chunk as one batch, and only once what trajectories share; an edit among them
acts on all. Hooks on modules do not fire.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamscope.cli.errors import InputError
from streamscope.models.hooks import Edits, attached, check_fired, is_finite, match, not_finite, quiet, row_of
from streamscope.models.layers.attention import pick
from streamscope.models.layers.residual import Block, State, map_state
from streamscope.models.sweep.copies import Copies, Copy, Keep
from streamscope.models.sweep.grouping import (
    CaptureChain,
    LayerTask,
    Trajectory,
    grouped,
    joined,
    key,
    side_by_side,
    within,
)
from streamscope.models.sweep.stages import EMBED, FFN, HEADS, POST, STAGES, WRITE, Plan, stage_of
from streamscope.models.transformer import StreamTransformer

BUDGET = {"cpu": 4096}
"""Tokens per chunk by device: a larger batch is no faster on a CPU."""
BUDGET_ELSEWHERE = 2**17
STEADY = 4
"""A product of fewer rows rounds otherwise than the same rows in a larger product."""


@dataclass(frozen=True)
class Arrived:
    """Trajectories at the end: their edits, final normed streams (None when not asked for), captures."""

    edits: list[list[int]]
    h: Float[Tensor, "rows B P D"] | None
    found: list[dict[str, Any]]


class Trajectories:
    """The passes of `tokens` [B, T] under each of `sweep`; iterate once. The first member arrives first.

    `at` [B, P]: the positions wanted, all without it. `names`: hooks to capture, kept through `keep`. Without `streams`
    there is no h, and passes end behind the last captured hook.

    Raises `InputError` in training mode, for unknown or observe-only hooks, positions outside the rows and edits of
    another shape, for values that are not finite under an edit, and at the end of the iteration for an edit that never
    fired, if its place was reached.
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
        self.names = match(model, names) if names else []
        used = {name for plan in self.plans for name in plan.functions}.union(self.names)
        self.points = [name for name in model.hook_dict if name in used]
        self.copies = Copies(self.plans, tokens.shape[0], self.names, keep)
        self.chunk = max(1, (budget or BUDGET.get(tokens.device.type, BUDGET_ELSEWHERE)) // max(1, tokens.numel()))
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
        """By layer, z of the last copy of a chunk: the next chunk may go on with it."""

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

    def __iter__(self) -> Iterator[Arrived]:
        end = self.last * STAGES
        alone = all(quiet(p) for n, p in self.model.hook_dict.items() if self._stage(n) >= end)
        shows = any(self._stage(name) >= end for name in self.names)
        self._short = alone and not shows and self.at is not None and bool(self.model.blocks[self.last].positionwise)
        self._heads_only = alone and self.stop == end
        queues: dict[tuple[int, str], deque[LayerTask]] = {}
        self._queue(queues, -1, Trajectory(None, CaptureChain()), list(range(len(self.plans))))
        while queues:
            layer, kind = place = max(queues)
            tasks = [queues[place].popleft() for _ in range(min(self.chunk, len(queues[place])))]
            if not queues[place]:
                del queues[place]
            trails, state, h = self._run(layer, kind, tasks)
            if layer == self.last:
                self._check_finite(tasks, h)
                yield Arrived([task.edits for task in tasks], h, [chain.captured() for chain in trails])
                continue
            for i, (task, chain) in enumerate(zip(tasks, trails, strict=True)):
                own = map_state(partial(self._rows, index=[i]), state)
                self._queue(queues, layer + 1, Trajectory(own, chain), task.edits)
        reached = {name for plan in self.plans for name, stage in plan.stages.items() if stage <= self.stop}
        check_fired([name for name in self.points if name in reached - self.copies.fired])

    def _check_finite(self, tasks: Sequence[LayerTask], h: Tensor | None) -> None:
        """Raise `InputError` for final streams that are not finite, with the edits and the first hook that shows it."""
        if h is None or is_finite(h):
            return
        task = next(task for task, x in zip(tasks, h, strict=True) if not is_finite(x))
        functions = self.plans[task.edits[0]].functions
        raise not_finite(self.model, self.tokens, [(name, fn) for name, some in functions.items() for fn in some])

    def _stage(self, name: str) -> int:
        return stage_of(name, self.model.config.n_layers)

    # ---- who goes together ---------------------------------------------------------------------

    def _queue(
        self, queues: dict[tuple[int, str], deque[LayerTask]], layer: int, path: Trajectory, edits: list[int]
    ) -> None:
        """Split a trajectory by what its edits do in a layer (−1: the embedding)."""
        stages = [EMBED] if layer < 0 else [layer * STAGES + s for s in (HEADS, WRITE, FFN, POST)]
        if layer == self.last:
            stages = stages[:1] if self._heads_only else [*stages, self.final]
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        for e in edits:
            groups.setdefault(tuple(self.plans[e].keys.get(s) for s in stages), []).append(e)
        tasks = [LayerTask(path, groups[keys], keys) for keys in side_by_side(list(groups))]
        kinds = [self._kind(layer, task) for task in tasks]
        for kind, task in zip(kinds, tasks, strict=True):
            kind = "z" if kind == "at" and "z" in kinds else kind
            queues.setdefault((layer, kind), deque()).append(task)

    def _kind(self, layer: int, task: LayerTask) -> str:
        """What has to run: the "whole" layer, its "heads", all "at" positions, or "z" everywhere, the rest there."""
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
    def _run(self, layer: int, kind: str, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State, Tensor | None]:
        """The trajectories after a layer, and, after the last, their final streams."""
        ends = layer == self.last and kind != "heads" and self.stop == self.final
        stages = {EMBED} if layer < 0 else {layer * STAGES + s for s in (HEADS, WRITE, FFN, POST)}
        stages |= {self.final} if ends else set()
        here = [name for name in self.points if self._stage(name) in stages or row_of(name) is None]
        with attached(self.model, self.copies.hooks(here, [task.edits[0] for task in tasks])):
            if layer < 0:
                trails = self._show([[task] for task in tasks], [CaptureChain(task.path.chain) for task in tasks])
                state = self.model.embed_tokens(self.tokens.repeat(len(tasks), 1))
            else:
                run = self._whole if kind == "whole" else partial(self._partly, kind)
                trails, state = run(self.model.blocks[layer], tasks)  # type: ignore[arg-type]
            h = self._final(kind, len(tasks), state) if ends else None
        return trails, state, h if self.streams else None

    def _whole(self, block: Block, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State]:
        """A layer at every position: each stage once for what is the same up to it."""
        written, fed = grouped(tasks, 2), grouped(tasks, 3)
        read, z, nodes = self._begin(block.layer, tasks)
        which = within([group[0] for group in written], read)
        mids = [CaptureChain(nodes[i]) for i in which]

        def attend(x: Tensor, x_v: Tensor) -> Tensor:
            new = range(len(z), len(read))
            if new:
                first = [which.index(i) for i in new]
                x_new = self._rows(x, first)
                self._show(read[new.start :], nodes[new.start :])
                z.extend(block.heads(x_new, x_new if x_v is x else self._rows(x_v, first)).split(self.copies.batch))
            self._kept[block.layer] = tasks[-1], z[-1], nodes[-1]
            self._show(written, mids)
            return block.write(block.attn.hook_z(torch.cat([z[i] for i in which])))

        self._show(written, mids)
        state = block.around_attn(joined([group[0].path.state for group in written]), attend)
        copies, whose = within(tasks, written), within(tasks, fed)
        inner = [CaptureChain(mids[copies[whose.index(i)]]) for i in range(len(fed))]
        ends = [CaptureChain(inner[i]) for i in whose]

        def feed_forward(x: Tensor) -> Tensor:
            self._show(fed, inner)
            y = block.feed_forward(self._rows(x, [whose.index(i) for i in range(len(fed))]))
            self._show([[task] for task in tasks], ends)
            return self._rows(y, whose)

        self._show([[task] for task in tasks], ends)
        return ends, block.around_mlp(map_state(partial(self._rows, index=copies), state), feed_forward)

    def _partly(self, kind: str, block: Block, tasks: list[LayerTask]) -> tuple[list[CaptureChain], State]:
        """The last layer where not all of it is wanted; the state at `at`. Nobody listens but to z."""
        read, z, nodes = self._begin(block.layer, tasks, kept=kind == "z")
        new = slice(len(z), len(read))

        def only_heads(x: Tensor, x_v: Tensor) -> Tensor:
            at = self._at(len(read[new])) if kind == "at" else None
            z.extend(block.heads(x, x_v, at).split(self.copies.batch))
            return x.new_zeros(()).expand_as(x)

        if read[new]:
            self._show(read[new], nodes[new])
            block.around_attn(joined([group[0].path.state for group in read[new]]), only_heads)
        which = within(tasks, read)
        trails = self._show([[task] for task in tasks], [CaptureChain(nodes[i]) for i in which])
        if kind == "heads":
            return trails, None
        if kind == "z":
            self._kept[block.layer] = tasks[-1], z[-1], nodes[-1]
        heads = torch.cat([z[i] for i in which])
        if kind == "z":
            heads = pick(block.attn.hook_z(heads), self._at(len(tasks)))
        states = [map_state(lambda x: pick(x, self._at(1)), group[0].path.state) for group in read]
        state = block.around_attn(joined([states[i] for i in which]), lambda x, x_v: block.write(heads))
        return trails, block.around_mlp(state, block.feed_forward)

    def _final(self, kind: str, n: int, state: State) -> Float[Tensor, "rows B P D"]:
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
        """Tasks by HEADS stage, z of the first at every position if the last chunk ended with it, and their trails."""
        read = grouped(tasks, 1)
        z, nodes = [], [CaptureChain(group[0].path.chain) for group in read]
        before = self._kept.get(layer) if kept else None
        if before is not None and key(before[0], 1) == key(tasks[0], 1):
            z, nodes[0] = [before[1]], before[2]
        return read, z, nodes

    def _show(self, groups: Sequence[Sequence[LayerTask]], trails: list[CaptureChain]) -> list[CaptureChain]:
        """Say what the copies in the next tensors are: one per group, which its edits share; `trails` again."""
        self.copies.rows = [Copy(group[0].edits, chain.found) for group, chain in zip(groups, trails, strict=True)]
        return trails

    def _rows(self, x: Tensor, index: Sequence[int]) -> Tensor:
        """Copies of the batch by index; `x` itself for all of them."""
        parts = x.split(self.copies.batch)
        if list(index) == list(range(len(parts))):
            return x
        return parts[index[0]] if len(index) == 1 else torch.cat([parts[i] for i in index])

    def _at(self, n: int) -> Int[Tensor, "n_B P"]:
        """The wanted positions of n copies of the batch."""
        assert self.at is not None
        return self.at.repeat(n, 1)
