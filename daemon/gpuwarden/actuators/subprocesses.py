"""Programs of actuators: run one after the other, and no more of them while some hang and cannot be ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.policy import reasons
from gpuwarden_collectors.plugin.run import Process, Run, run

_SHOWN = 300  # characters of a program's error output
_HANGING_MOST = 2


class Runs:
    """Runs programs one after the other. `kept`: bytes of the output of each. Programs that hang are remembered."""

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
        """Run a program as `plugin_run.run` does. `undone`: the beginning of the error, "cannot …". Raises
        ActuatorUnavailable if too many hang.
        """
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
