"""LFA: an architecture whose attention values come from a token stream that no layer changes."""
