"""KROM: Canon layers, and streams that hyper-connections mix."""
