"""The type checker of the tests: beartype with Python's numeric tower, where an int is a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
