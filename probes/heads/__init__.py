"""Measure what each head looks at by position: previous token, first token, repeats, induction.

    python -m probes.heads runs/lfa
    python -m probes.heads runs/lfa --sequences 64 --length 40 --data valid.txt --out heads.parquet
    python -m probes.heads runs/lfa --no-texts                           random sequences only

Half of the prompts are BOS + r + r with r random tokens, in which meaning and grammar cannot help; the others are
texts. With A[i, j] the attention from position i to j (BOS is position 0) and n the length of r:

    previous    mean of A[i, i−1]     over i ≥ 2 (at i = 1 the previous token is BOS)
    first       mean of A[i, 0]       over i ≥ 2
    duplicate   mean of A[i, i−n]     over the second r: the same token, one repetition earlier
    induction   mean of A[i, i−n+1]   over the second r: the token that followed it (Olsson et al. 2022)

All are shares of attention, from 0 to 1. `uniform` is the score of uniform attention over positions ≤ i.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from streamscope.cli.bounds import Count, Only, Seed
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import instrument
from streamscope.instruments.data import Data, Documents
from streamscope.instruments.figures import HeadMap
from streamscope.probes.probe import Probe


@instrument("heads", Documents(max_documents=32))
class Heads(Probe):
    sequences: Count = 32
    """Number of random sequences BOS + r + r."""
    length: Annotated[int, Ge(2)] = 24
    """n, the number of tokens of r; all differ, so that the earlier place of a token is unique."""
    texts: bool = True
    """Also score texts, by the previous and the first token."""
    text_tokens: Annotated[int, Ge(3), Only("texts")] = 128
    """Texts are cut to this many tokens, including BOS."""
    seed: Seed = 0
    """Seed of the random sequences."""
    pool: Literal["tokens", "words", "trained"] = "tokens"
    """Source of r: all tokens but BOS; whole words (a space and two or more letters); or of these the ones that the
    documents have at least five times, because a head hardly finds what no text trained."""
    top: Count = 3
    """Number of heads to show per score; the file has all."""

    figures: ClassVar = (
        HeadMap("mean", each=("kind", "score"), title="Attention of each head by relative position"),
    )  # fmt: skip
    planted: ClassVar = "tests/probes/test_heads.py::test_planted_heads"

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        return {} if self.texts or self.pool == "trained" else {Documents: "--no-texts leaves texts out"}

    @staticmethod
    def body() -> Any:
        from streamscope.probes.heads import measure

        return measure


main = main_of(Heads, __doc__)
