"""Features of documents: forward pass (`reader`), statistics of attention and features (`formulas`)."""
