"""Runs programs of actuators; refuses to start another while too many hang and cannot be killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.policy import reasons
from gpuwarden_collectors.plugin.run import Process, Run, run

_SHOWN = 300  # characters of a program's error output
_HANGING_MOST = 2


class Runs:
    """Runs programs and remembers hung ones. `kept`: bytes of the output of each."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._hanging: list[Process] = []

    async def run(
        self,
        undone: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        within: float,
        standard_input: bytes = b"",
    ) -> Run:
        """Run a program as `plugin.run.run` does. `undone`: start of the error text. Raises ActuatorUnavailable."""
        self._hanging = [process for process in self._hanging if not process.gone()]
        if len(self._hanging) >= _HANGING_MOST:
            raise ActuatorUnavailable(f"{undone}: {len(self._hanging)} earlier runs hang and cannot be ended")
        done = await run(command, environment, within, kept=self._kept, standard_input=standard_input)
        if done.left is not None:
            self._hanging.append(done.left)
        return done


def complaint(done: Run) -> str:
    """Return how a run failed, and the first line of its error output."""
    output = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")
    first = reasons.line(output.split("\n", 1)[0])[:_SHOWN]
    failure = done.error or f"exits with {done.exit_code}"
    return f"{failure}: {first}" if first else failure
