"""Extract per-token features as parquet: trajectory, stability and active heads (PLS §2).

    python -m features.extract --out features.parquet                163 columns of the bundled LFA
    python -m features.extract runs/pls --data stories.txt --tier topk --max-tokens 50000 --out topk.parquet
    python -m features.extract runs/pls --raw --out f.parquet        and [x_t; x_e] of the last layer, in f-raw.parquet
    python -m features.extract runs/pls --raw blocks.*.hook_mlp_out --out f.parquet

One row for every position with a next token in its document: document, position, token and its id, target (the next
token), prediction (of the final layer), then the features. The file's metadata hold units, formulas and sources
(`features.store.read_features`; PLS App. B, C). Attention is effective attention: the head's gate, if any, is
multiplied in. A layer's prediction is read through its norm and the head (the logit lens for layers without
supervision). k* is the layer where the prediction settles: min k with argmax p^(ℓ) = ŷ for all ℓ ≥ k. OUT-depth.parquet
holds the share of tokens that settle at each layer, with 95 % intervals over documents (PLS Table 1).

Documents longer than the context are cut there and counted, so each row has its whole context. Memory does not grow
with the number of tokens. If a run is killed, the same command continues it.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

from streamscope.cli.bounds import Count, Names, Only, Share
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument, need_parts
from streamscope.instruments.data import Tokens
from streamscope.instruments.figures import Curve
from streamscope.models.head_spec import Head, parse_heads

Tier = Literal["core", "structural", "structural+position", "topk"]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature (PLS App. B, C). `None` means not applicable."""

    name: str
    component: str
    layer: int | None = None
    head: int | None = None
    rank: int | None = None
    """Rank among a head's weights, from 1."""
    unit: str
    formula: str
    source: str
    constant: bool = False
    """Zero by construction."""


FORMAT = 3
"""Version of the description of features in a file."""
INDEX = {
    "document": "int32", "position": "int32", "token_id": "int32", "token": "string", "target_id": "int32",
    "target": "string", "prediction_id": "int32", "prediction": "string",
}  # fmt: skip
"""Index columns of a feature table and their Arrow types."""
HEADS_OF = {"anchor": "H2-3", "entity": "H4-5"}
"""The paper's heads in the last layer (PLS B.4.1)."""


@instrument("extract", Tokens())
class Extract(Instrument):
    tier: Tier = "structural"
    """core: 5 summaries; structural: also each layer's prediction and each head's attention, 3L+1+4LH columns for L
    layers of H heads; +position: 4 more; topk: the k largest attention weights instead of the largest."""
    k: Annotated[Count, Only("tier", ("topk",))] = 5
    """Weights per head in tier topk."""
    kstar: Literal["author", "strict"] = "author"
    """k*, the first layer from which the prediction stays the same, for tokens that only the last layer predicts: L, as
    in the author's tables, or L−1, as in the formula."""
    target: Literal["final", "truth"] = "final"
    """The token whose probability is followed: the final prediction, or the true next token."""
    traj_prob: Literal["zeroed", "raw"] = "zeroed"
    """zeroed: 0 if a layer predicts another token, with the margin to the second-highest probability; raw: never
    zeroed, with the margin to the best other token."""
    kappa_target: Literal["truth", "final"] = "truth"
    """The token whose hits κ counts: κ is the longest run of consecutive layers that predict it."""
    logits_row: Literal["query", "next"] = "query"
    """Read logits at the query t_q, or one position later as in the author's code; the target is then the token after
    the next."""
    theta_entropy: Share = 0.1
    """Set entropy to 0 if the largest weight of the effective attention is below this."""
    theta_gate: Annotated[Share, Only("tier", ("topk",))] = 0.1
    """Set the k largest weights to 0 if the head's gate is below this."""
    gate_reduce: Literal["mean", "norm"] = "mean"
    """How a gate that is a vector becomes one number: mean, or root mean square."""
    window: Annotated[Count, Only("tier", ("structural+position", "topk"))] = 5
    """Number of keys before the query that local_mass sums over."""
    anchor_heads: Annotated[Names, Only("tier", ("core",))] = ()
    """Heads of anchor_mass; default: heads 2 and 3 of the last layer."""
    entity_heads: Annotated[Names, Only("tier", ("core",))] = ()
    """Heads of entity_mass; default: heads 4 and 5 of the last layer."""
    raw: tuple[str, ...] | None = None
    """Hooks (names or patterns) whose activations go to a second table; without names: the last layer's streams."""

    figures: ClassVar = (
        Curve("share", "depth", x="k_star", title="Share of tokens whose prediction settles at each layer"),
    )  # fmt: skip
    continues: ClassVar = True
    planted: ClassVar = "tests/features/test_reader.py::test_a_planted_head_and_a_planted_depth"

    def check(self, model: Any) -> None:
        """Raise `InputError` for a model in a bridge, because features read our own modules."""
        need_parts(model, self.name)

    def heads(self, group: str, n_layers: int, n_heads: int) -> list[Head]:
        """The heads of anchor_mass or entity_mass. Raises `InputError` if the default ones do not exist."""
        specs = getattr(self, f"{group}_heads") or (f"L{n_layers - 1}.{HEADS_OF[group]}",)
        try:
            return parse_heads(specs, n_layers, n_heads)
        except InputError as error:
            raise InputError(f"{error}; choose the heads of {group}_mass, for example --{group}-heads L1.H0") from None

    @staticmethod
    def body() -> ModuleType:
        from streamscope.features.extract import measure

        return measure


main = main_of(Extract, __doc__)
