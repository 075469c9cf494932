"""How much a test of a GPU tests. Apart from its facts, which a daemon loads only once there are any."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """How much is tested. Each level does all that the one before it does."""

    GATE = "gate"
    QUICK = "quick"
    STANDARD = "standard"
