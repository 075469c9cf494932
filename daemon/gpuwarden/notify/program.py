"""Delivery to a site's program, which reads the message from its standard input; nothing of it is in the arguments.

Exit code 0: delivered. 75 (EX_TEMPFAIL), a signal or a timeout: retried later. 126, 127: barred. All others: refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpuwarden.actuators.subprocesses import complaint
from gpuwarden.config.notify import NotifyProgram
from gpuwarden.notify.delivery import DELIVERED, Delivery, Result
from gpuwarden.notify.queue import Message
from gpuwarden_collectors.plugin.plugin import plugin_environment
from gpuwarden_collectors.plugin.run import Process, run

NOT_NOW = (75,)
NOT_THERE = (126, 127)
"""Exit codes by which a shell reports that a program is not executable, or not found."""


class ProgramReceiver:
    def __init__(self, options: NotifyProgram, inherited: Mapping[str, str] = os.environ) -> None:
        self._options = options
        self._environment = plugin_environment(inherited)
        self._hanging: Process | None = None

    async def deliver(self, message: Message, *, again: bool) -> Delivery:  # noqa: ARG002 - it has the id
        program = self._options.command[0]
        if self._hanging is not None and not self._hanging.gone():
            return Delivery(Result.LATER, f"an earlier run of {program} hangs and cannot be ended")
        done = await run(
            self._options.command, self._environment, self._options.timeout, standard_input=f"{message.body}\n".encode()
        )
        self._hanging = done.left
        if done.exit_code == 0:
            return DELIVERED
        text = f"{program} {complaint(done)}"
        if done.exit_code in NOT_THERE:
            return Delivery(Result.BARRED, text)
        return Delivery(Result.LATER if done.exit_code is None or done.exit_code in NOT_NOW else Result.REFUSED, text)

    def release(self) -> None:
        """No-op: nothing is kept open."""
