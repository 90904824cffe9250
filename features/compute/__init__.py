"""Features of documents: forward pass (`reader`), statistics of attention (`attention`), features (`formulas`)."""
