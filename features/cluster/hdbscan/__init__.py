"""HDBSCAN* on features, exactly: near rows (`boxes`, `neighbours`), the tree of all rows (`hierarchy`), flat
clusters of it and new rows (`density`)."""
