"""Chance that draws the least, and keeps what it was asked for."""

from __future__ import annotations

import random


class Earliest(random.Random):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return a
