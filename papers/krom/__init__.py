"""KROM: Canon layers, and hyper-connections whose streams are mixed by Kronecker factors."""
