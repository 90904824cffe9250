"""DST: two streams, one of tokens and one of their context, and four ways to mix heads."""
