"""The exception that ends the test of a GPU without a result."""

from __future__ import annotations

from gpuwarden_collectors.active_test.facts import Obstacle


class Obstructed(Exception):  # noqa: N818 - mostly nobody's error: somebody else is on the GPU
    """The test of a GPU has ended without a result.

    `obstacle` is the kind of cause; the message names the step that failed, the GPU, the cause, and the remedy.
    """

    obstacle = Obstacle.FAILED_CALL

    def __init__(self, text: str, obstacle: Obstacle | None = None) -> None:
        super().__init__(text)
        if obstacle is not None:
            self.obstacle = obstacle
