"""The names that options of circuits take."""

from typing import Literal, get_args

Contrast = Literal["auto", "corrupt", "clue", "noun", "order"]
Method = Literal["exact", "eap", "eap-ig", "eap-ig-activations", "acdc", "random"]
Metric = Literal["logit-difference", "log-odds", "kl", "loss"]
METHODS: tuple[Method, ...] = get_args(Method)
Points = Literal["left", "right", "midpoint"]
