"""Features of documents: the forward pass (`reader`), attention in numbers (`attention`), each feature (`formulas`)."""
