"""Small models with weights written by hand, in which the edges that compute the answer are known.

`datasets/planted` holds the specification and the card, `models` builds them. An edge is true if patching it in the
model without noise changes the metric of a pair.
"""
