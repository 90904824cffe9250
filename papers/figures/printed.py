"""Numbers as the papers print them, of the ledger of claims."""

from functools import cache

from streamscope.papers.claims import HERE
from streamscope.papers.claims.ledger import read


@cache
def _cells() -> dict[str, str]:
    return {claim.row["id"]: claim.row["printed"] for claim in read(HERE)}


def printed(claim: str) -> float:
    """The number that a claim of the ledger prints; of 6.32% the 6.32."""
    return float(_cells()[claim].rstrip("%").replace("−", "-"))
