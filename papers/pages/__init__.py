"""The pages of results and the interactive page of claims, made of the ledger and the result tables."""
