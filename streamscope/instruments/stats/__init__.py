"""Statistics that every room shares: estimates, tests, corrections, cross-validation. No file here knows a model."""
