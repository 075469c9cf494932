"""Programs as actuators run them: one after the other, and no more of them while some that cannot be ended hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.policy import reasons
from gpuwarden_collectors.plugin.run import Process, Run, run

_TOLD = 300  # characters of what a program complains
_HANGING_MOST = 2


class Runs:
    """`kept`: bytes of what each writes. What was left hanging is remembered."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._hanging: list[Process] = []

    async def run(
        self, undone: str, command: Sequence[str], environment: Mapping[str, str], within: float, given: bytes = b""
    ) -> Run:
        """As `plugin_run.run`. `undone`: what then is not done. Raises ActuatorUnavailable if too many hang."""
        self._hanging = [process for process in self._hanging if not process.gone()]
        if len(self._hanging) >= _HANGING_MOST:
            raise ActuatorUnavailable(f"{undone}: {len(self._hanging)} earlier runs hang and cannot be ended")
        done = await run(command, environment, within, kept=self._kept, given=given)
        if done.left is not None:
            self._hanging.append(done.left)
        return done


def complaint(done: Run) -> str:
    """What went wrong with a run, and what the program itself says of it."""
    said = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")
    first = reasons.line(said.split("\n", 1)[0])[:_TOLD]
    what = done.error or f"exits with {done.exit_code}"
    return f"{what}: {first}" if first else what
