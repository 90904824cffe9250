"""Names the packages of the wheel, and builds outside the clone: what an earlier build left would come into it."""

from tempfile import TemporaryDirectory

from setuptools import find_packages, setup

ROOMS = ("models", "probes", "interventions", "features", "viewer", "benchmarks")
"""In the clone they lie at the top, installed they are streamscope.ROOM; papers are in the clone alone."""
INNER = find_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")])

with TemporaryDirectory() as folder:
    setup(
        packages=[
            *find_packages(include=["streamscope", "streamscope.*"]),
            *(f"streamscope.{name}" for name in INNER),
            "streamscope.datasets",
        ],
        options={"build": {"build_base": folder}},
    )
