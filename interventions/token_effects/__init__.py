"""Measure the effect of ablating a head on every token: the table for `features.predict_effects`.

    python -m interventions.token_effects --out effects.parquet            every head of the bundled LFA, one at a time
    python -m interventions.token_effects runs/pls --groups found --data valid.txt --out effects.parquet
    python -m interventions.token_effects runs/pls --heads L5.* top3:pds --max-tokens 20000 --out effects.parquet

One row per position with a next token in its document, in the order of the data: document, position, token, target,
unedited `loss` of the target and `log_p` of the model's own prediction ŷ, and per edit
`delta_loss_L5H4` = ln p(target) unedited − edited, `delta_log_p_L5H4` = ln p(ŷ) edited − unedited, all in nats.
The outputs z of the heads are multiplied by --scale, 0 removes them (LFA App. D; PLS §5.1). OUT-edits.parquet has the
means of every edit, with 95 % intervals over documents. Of a gated model OUT-gates.parquet says whether a head's gate
tells where its removal matters: |Δ loss| at tokens above the median of its gate in the document minus that below, and
how much more than by the gate of the head beside it (DST §2.6). With --modes, the labels of `features.cluster`,
OUT-modes.parquet says the same of modes in which a head's gate is low throughout, beside its other modes (PLS §3.4):
|Δ loss| in parts of the head's mean. Memory does not grow with the number of tokens, labels apart.
"""

from pathlib import Path
from typing import ClassVar

from streamscope.cli.bounds import AnyNumber, Names
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import HeadMap, Intervals


@instrument("token_effects", Tokens())
class TokenEffects(Instrument):
    """Remove heads, and see at every token what it does to the loss and to the model's own prediction.

    delta_loss = ln p(target) unedited − edited; delta_log_p = ln p(prediction) edited − unedited (PLS §5.1, §5.4).
    """

    heads: tuple[str, ...] | None = None
    """Heads, each alone: L5.H4, L4.*, all, random3:7, top3:pds. --heads alone, or neither --heads nor --groups: all."""
    groups: Names = ()
    """Heads together: entity, anchor, semantic (PLS), found, or heads as L5.H4+L5.H5, name=L4.*, top2:entity."""
    scale: AnyNumber = 0.0
    """Factor on the heads' outputs."""
    modes: Path | None = None
    """Labels of `features.cluster` for tokens of the same model and data: effects where a gate is low in a mode."""

    figures: ClassVar = (
        Intervals("delta_loss", "edits", label="edit", title="Mean loss increase of tokens from each edit"),
        Intervals("delta_log_p", "edits", label="edit",
                  title="Mean change of the next token's log-probability from each edit"),
        HeadMap("delta_loss", "edits", title="Mean loss increase of tokens from ablating each head"),
        HeadMap("abs_delta_loss", "edits", title="Mean absolute change of the loss from ablating each head"),
    )  # fmt: skip
    quick: ClassVar = {"heads": ("L5.*",)}
    planted: ClassVar = (
        "tests/interventions/test_token_effects.py::test_a_head_that_matters_at_one_kind_of_position_only"
    )


main = main_of(TokenEffects, __doc__)
