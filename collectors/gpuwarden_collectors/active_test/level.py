"""What a daemon knows of tests before there is any: how much one tests, and the name of its workers. Facts of tests are loaded with the first."""

from __future__ import annotations

from enum import StrEnum

WORKER = "gw-test"
"""Name of the process that tests a GPU, as Xids and /proc have it."""


class Level(StrEnum):
    """How much is tested. Each level does all that the one before it does."""

    GATE = "gate"
    QUICK = "quick"
    STANDARD = "standard"
