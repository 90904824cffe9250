"""Numbers as the papers print them, and their words, of the ledger of claims."""

from collections.abc import Mapping
from functools import cache

from streamscope.papers.claims import HERE
from streamscope.papers.claims.ledger import Row, read


@cache
def _rows() -> Mapping[str, Row]:
    return {claim.row["id"]: claim.row for claim in read(HERE)}


def printed(claim: str) -> float:
    """The number that a claim of the ledger prints; of 6.32% the 6.32."""
    return float(_rows()[claim]["printed"].rstrip("%").replace("−", "-"))


def quoted(claim: str) -> str:
    """The paper's words that a claim of the ledger quotes."""
    return _rows()[claim]["quote"]
