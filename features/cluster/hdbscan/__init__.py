"""HDBSCAN* on features, exact: near rows (`boxes`, `neighbours`), the tree of all rows (`hierarchy`), flat clusters and
labels for new rows (`density`)."""
