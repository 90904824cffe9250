"""Builds outside the clone: a `build/` that stays there would bring modules that are gone into the next wheel."""

from tempfile import TemporaryDirectory

from setuptools import setup

with TemporaryDirectory() as folder:
    setup(options={"build": {"build_base": folder}})
