"""Measure the effect of ablating a head on every token: the table for `features.predict_effects`.

    python -m interventions.token_effects --out effects.parquet            every head of the bundled LFA, one at a time
    python -m interventions.token_effects runs/pls --groups found --data valid.txt --out effects.parquet
    python -m interventions.token_effects runs/pls --heads L5.* top3:pds --max-tokens 20000 --out effects.parquet

One row per position with a next token in its document, in data order: document, position, token, target, unedited
`loss` of the target and `log_p` of the model's own prediction ŷ, and per edit `delta_loss_L5H4` = ln p(target) unedited
− edited and `delta_log_p_L5H4` = ln p(ŷ) edited − unedited, all in nats. The heads' outputs z are multiplied by
--scale; 0 removes them (LFA App. D; PLS §5.1). OUT-edits.parquet has the mean of every edit with 95 % intervals over
documents. For a gated model OUT-gates.parquet shows whether a head's gate predicts where its removal matters: |Δ loss|
at tokens above the gate's median in the document minus that below, and the same minus that by the next head's gate (DST
§2.6). With --modes (labels of `features.cluster`), OUT-modes.parquet compares modes in which a head's gate is low
throughout with its other modes (PLS §3.4): |Δ loss| relative to the head's mean. Memory does not grow with the number
of tokens, except for labels.
"""

from pathlib import Path
from typing import Any, ClassVar

from streamscope.cli.bounds import Names
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import HeadMap, Intervals


@instrument("token_effects", Tokens())
class TokenEffects(Instrument):
    heads: Names = ()
    """Heads, one at a time: L5.H4, L4.*, all, random3:7 (three, seed 7), top3:pds (three of the largest PDS).

    Default: all, unless --groups are given."""
    groups: Names = ()
    """Groups of heads: entity, anchor, semantic (those of PLS); found, those that `probes.head_groups` chooses by
    their attention in this model; heads: L5.H4+L5.H5, name=L4.*, top2:entity."""
    scale: float = 0.0
    """Factor for the heads' outputs."""
    modes: Path | None = None
    """Labels of `features.cluster` for the same model and data: compares effects in modes where a gate is low."""

    figures: ClassVar = (
        Intervals("delta_loss", "edits", label="edit", title="Mean loss increase of tokens from each edit"),
        Intervals("delta_log_p", "edits", label="edit",
                  title="Mean change of the prediction's log-probability from each edit"),
        HeadMap("delta_loss", "edits", title="Mean loss increase of tokens from scaling each head"),
        HeadMap("abs_delta_loss", "edits", title="Mean absolute change of the loss from scaling each head"),
    )  # fmt: skip
    quick: ClassVar = {"heads": ("L5.*",)}
    planted: ClassVar = (
        "tests/interventions/test_token_effects.py::test_a_head_that_matters_at_one_kind_of_position_only"
    )

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.token_effects import measure

        return measure


main = main_of(TokenEffects, __doc__)
