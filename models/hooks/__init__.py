"""Hooks: the table of all activations, and functions to read them, change them and run prompts.

    with capture(model, ["blocks.*.attn.hook_z"]) as captured:   names or patterns with *
        model(tokens)
    captured["blocks.3.attn.hook_z"]                             [B, T, H, K]

    with edit(model, {"blocks.3.attn.hook_z": lambda z, hook: z * 0.5}):
        model(tokens)

    captures = run(model, Query(tokens=prompts, hooks=("blocks.*.attn.hook_pattern",), logits=positions))

`table` lists every hook, `points` has those that differ from TransformerLens'. `capture_and_edit`
accepts our models and any HookedRootModule.
"""
# ruff: noqa: F401  (the names that this package offers)

from streamscope.models.hooks.capture_and_edit import (
    Captures,
    CleanCopies,
    Edit,
    Edits,
    Query,
    apply_edit,
    attached,
    batches,
    capture,
    check_fired,
    check_weights,
    crop,
    edit,
    edited_at,
    everywhere,
    hooked_at,
    is_finite,
    keeps_positions,
    match,
    not_finite,
    pad,
    resolve,
    run,
    time_axes,
)
from streamscope.models.hooks.points import (
    ObservePoint,
    OnDemand,
    eager_when_hooked,
    observe,
    quiet,
    read_point,
    resid_point,
)
from streamscope.models.hooks.table import HOOKS, Hook, concrete_shape, expected_hooks, row_of
