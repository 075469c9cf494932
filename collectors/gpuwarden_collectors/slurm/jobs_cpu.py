"""CPU times of processes, read once a minute, so that the facts of the passes between do not change."""

from __future__ import annotations

from collections.abc import Collection

from gpuwarden_collectors.slurm.jobs_process import Process

CPU_EVERY = 60.0
"""Seconds between two readings."""


class CpuTimes:
    """CPU times of processes.

    `at` is when they were read, in seconds of CLOCK_BOOTTIME; None before the first process.
    """

    def __init__(self) -> None:
        self.at: float | None = None
        self._seconds: dict[tuple[int, float], float] = {}

    def read(self, users: Collection[Process], now: float) -> None:
        if self.at is None or not 0.0 <= now - self.at < CPU_EVERY:
            self._seconds = {(user.pid, user.started): user.cpu for user in users}
            self.at = now if users else None

    def of(self, user: Process) -> float | None:
        """CPU seconds of a process; None if it started after the last reading."""
        return self._seconds.get((user.pid, user.started))
