"""Runs programs of a step, each in its own process group with a deadline. One that cannot be killed is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpuwarden_collectors.dataclass import dataclass

_OUTPUT_MOST = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. `code` None: it did not start, or not end in time; `left`: PID, if it cannot be killed."""

    code: int | None
    output: str = ""
    problem: str = ""
    left: int = 0

    @property
    def why(self) -> str:
        """Return why it failed, in one line."""
        said = " ".join(self.output.split())[-300:]
        return self.problem or f"exit code {self.code}{f': {said}' if said else ''}"


def run(command: Sequence[str], within: float, environment: Mapping[str, str], held: int | None, grace: float) -> Ended:
    """Run a program for `within` seconds at most, and `grace` more for each signal. It keeps `held`, an open lock, as
    long as it lives.
    """
    output = os.memfd_create("output")  # no pipe: a child that outlives the program must not block the helper
    try:
        process = subprocess.Popen(  # noqa: S603 - the words are of tables and of the configuration
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=() if held is None else (held,),
        )
    except OSError as error:
        os.close(output)
        return Ended(code=None, problem=f"{command[0]} cannot be started: {error.strerror}")
    try:
        ended = _ended(process, within)
        text = os.pread(output, _OUTPUT_MOST, 0).decode("utf-8", "replace")
    finally:
        os.close(output)
    if ended:
        return Ended(code=process.returncode, output=text)
    slow = f"{os.path.basename(command[0])} did not end within {within:g} s"  # noqa: PTH119 - a text
    if _killed(process, grace):
        return Ended(code=None, output=text, problem=f"{slow} and was killed")
    hangs = f"{slow}, cannot be killed and was left (process {process.pid}): only a reboot ends it"
    return Ended(code=None, output=text, problem=hangs, left=process.pid)


def _killed(process: subprocess.Popen[bytes], grace: float) -> bool:
    """End a process with its group. Returns False if it hangs in the kernel."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        if _ended(process, grace):
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # processes that it left behind
            return True
    return False


def _ended(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True
