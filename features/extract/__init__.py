"""Extract per-token features as parquet: trajectory, stability and active heads (PLS §2).

    python -m features.extract --out features.parquet                163 columns of the bundled LFA
    python -m features.extract runs/pls --data stories.txt --tier topk --max-tokens 50000 --out topk.parquet
    python -m features.extract runs/pls --raw --out f.parquet        and [x_t; x_e] of the last layer, in f-raw.parquet
    python -m features.extract runs/pls --raw blocks.*.hook_mlp_out --out f.parquet
    python -m features.extract runs/pls --out f.parquet --launch ray --workers 8      parts shared among workers

One row for every position with a next token in its document: document, position, token and its id, target (the next
token), prediction (the final layer's), then the features. Columns, units, formulas and sources are in the file's
metadata (`features.store.read_features`). Attention is effective attention, times the head's gate where it has one; a
layer's prediction is read through its norm and the head (the logit lens where layers are not supervised).
OUT-depth.parquet says how many tokens are settled by which layer, with 95 % intervals over documents (PLS Table 1).

Documents longer than the context are cut there and counted: what a row says is always said of a whole context.
Memory does not grow with the number of tokens. Killed, the same command goes on where it was, to the same file; with
--launch each part of the documents is read by one worker, in the same batches as alone.
"""

from typing import Annotated, Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Names, Only, Share
from streamscope.cli.errors import InputError
from streamscope.features.schema import Tier
from streamscope.instruments.about_model import need_parts
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import Curve
from streamscope.models.head_spec import Head, parse_heads

HEADS_OF = {"anchor": "H2-3", "entity": "H4-5"}
"""The paper's heads (PLS B.4.1), in the last layer."""


@instrument("extract", Tokens())
class Extract(Instrument):
    """Read of every token how it was processed: what each layer predicts, when that settles, which heads attend.

    k* = min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k; formulas of all features are in the file (PLS App. B, C).
    """

    tier: Tier = "structural"
    """core: 5 summaries; structural: 3L+1+4LH; +position: 4 more; topk: largest k weights in place of the peak."""
    k: Annotated[Count, Only("tier", "topk")] = 5
    """Weights per head of tier topk."""
    kstar: Literal["author", "strict"] = "author"
    """k* of a token that only the last layer gets right: L, as in the author's tables, or L−1, as in the formula."""
    target: Literal["final", "truth"] = "final"
    """The token whose probability is followed: the final prediction, or the token that comes."""
    traj_prob: Literal["zeroed", "raw"] = "zeroed"
    """zeroed: 0 where a layer predicts another token, the margin is to the second-highest probability; raw: never 0,
    the margin is to the best other token."""
    kappa_target: Literal["truth", "final"] = "truth"
    """The token that κ counts."""
    logits_row: Literal["query", "next"] = "query"
    """Logits at the query t_q, or one position later, as in the author's code."""
    theta_entropy: Share = 0.1
    """Entropy is 0 where the peak of Ã is below this."""
    theta_gate: Annotated[Share, Only("tier", "topk")] = 0.1
    """The k largest weights are 0 where the gate ḡ is below this."""
    gate_reduce: Literal["mean", "norm"] = "mean"
    """ḡ of a vector gate: mean, or root mean square."""
    window: Annotated[Count, Only("tier", "structural+position", "topk")] = 5
    """Keys before the query that local_mass sums."""
    anchor_heads: Names = ()
    """Heads of anchor_mass; default: heads 2 and 3 of the last layer."""
    entity_heads: Names = ()
    """Heads of entity_mass; default: heads 4 and 5 of the last layer."""
    raw: tuple[str, ...] | None = None
    """Hooks (names or patterns) whose activations go to a second table; --raw alone: the last layer's streams."""

    figures: ClassVar = (
        Curve("share", "depth", x="k_star", title="Share of tokens whose prediction settles at each layer"),
    )  # fmt: skip
    shared: ClassVar = True
    planted: ClassVar = "tests/features/test_reader.py::test_a_planted_head_and_a_planted_depth"

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model in a bridge: features read our parts."""
        need_parts(model, self.name)

    def heads(self, group: str, n_layers: int, n_heads: int) -> list[Head]:
        """The heads of anchor_mass or entity_mass; `InputError` where the default ones do not exist."""
        specs = getattr(self, f"{group}_heads") or (f"L{n_layers - 1}.{HEADS_OF[group]}",)
        try:
            return parse_heads(specs, n_layers, n_heads)
        except InputError as error:
            raise InputError(f"{error}; say which heads {group}_mass sums: --{group}-heads L1.H0") from None


main = main_of(Extract, __doc__)
