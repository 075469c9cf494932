"""The verdict file: what a shell script reads to know whether this node may take work. Format 1, design: one `key=value` a line.

`stamp` and `fresh_for` are whole seconds; `stamp` is CLOCK_BOOTTIME, which /proc/uptime shows too, so that a script tells a
fresh verdict from a stale one without starting a process. It is 0 before the first observation. `state` is the node's health,
`node_state` the worst finding that is not about one GPU or its links. `schedulable`, `excluded` and `breaker` are 0 or 1,
`excluded_by` says where and for what, `reason` the first reasons, both with spaces between. `gres.N` is the health of the GPU
that Slurm counts as N (IDX, SLURM_JOB_GPUS), which stays in the list when it is lost; `gpu.N` that of NVML's index.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwarden.background import BackgroundWriter
from gpuwarden.health.gpu_jobs import order
from gpuwarden.health.model import Finding, Severity
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp

FORMAT = 1
OF_A_GPU = ("gpu", "link")
_REASONS_MAX = 8
_VALUE_MAX = 200  # characters
_STALLED = 5.0  # seconds after which a write that hangs is reported


def verdict_text(snapshot: Snapshot, now: Stamp) -> str:
    """The whole file as it is true at `now`."""
    return "".join(f"{key}={_value(value)}\n" for key, value in _fields(snapshot, now))


def _fields(snapshot: Snapshot, now: Stamp) -> Iterator[tuple[str, object]]:
    service, verdict = snapshot.service, snapshot.verdict
    yield "format", FORMAT
    yield "boot_id", service.boot_id
    yield "stamp", 0 if snapshot.observed is None else int(snapshot.observed.boottime)
    yield "fresh_for", math.ceil(service.fresh_for)
    yield "mode", service.mode
    yield "simulated", int(service.simulated)
    yield "state", snapshot.health(now).value
    yield "schedulable", int(snapshot.schedulable(now))
    yield "excluded", int(bool(snapshot.excluded_by))
    yield "breaker", int(bool(snapshot.acted.breaker))
    yield "reason", " ".join(verdict.reasons[:_REASONS_MAX])
    yield "node_state", _node_state(verdict.findings)
    yield "excluded_by", " ".join(snapshot.excluded_by)
    yield from _gres(snapshot)
    for gpu in verdict.gpus:
        if gpu.index is not None:
            yield f"gpu.{gpu.index}", gpu.health.value


def _gres(snapshot: Snapshot) -> Iterator[tuple[str, object]]:
    health = {gpu.slot: gpu.health.value for gpu in snapshot.verdict.gpus}
    minors = () if snapshot.jobs is None else snapshot.jobs.minors
    listed = () if snapshot.nvml is None else snapshot.nvml.gpus
    for index, slot in enumerate(order(health, {facts.slot: facts for facts in listed}, minors)):
        if slot in health:
            yield f"gres.{index}", health[slot]


def _node_state(findings: Iterable[Finding]) -> str:
    worst = {
        finding.severity for finding in findings if finding.key.subject.kind not in OF_A_GPU and not finding.shadow
    }
    return next((severity.value for severity in (Severity.FAILURE, Severity.WARNING) if severity in worst), "healthy")


def _value(value: object) -> str:
    """On one line, whatever it came from."""
    return " ".join(str(value)[:_VALUE_MAX].split())


class VerdictFile:
    """Keeps `verdict` in the run directory up to date, in a thread; of several snapshots that wait, the newest is written."""

    def __init__(self, run_dir: Path, clock: Clock = host_clock) -> None:
        self._path = run_dir / "verdict"
        self._clock = clock
        self._error = ""
        self._writer = BackgroundWriter(
            "verdict", 1, newest_wins=True, on_error=self._failed, clock=lambda: clock().boottime
        )

    def publish(self, snapshot: Snapshot) -> None:
        self._writer.submit(lambda: self._write(snapshot))

    def trouble(self, now: Stamp) -> str:
        """Why the file is not up to date; empty if it is."""
        stalled = self._writer.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot write {self._path}: no answer for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - says False at the deadline, which is no error here
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the thread; False if it hangs. Blocks: after `flush`, or where no loop runs."""
        return self._writer.close(timeout)

    def _write(self, snapshot: Snapshot) -> None:
        replace_file(self._path, verdict_text(snapshot, self._clock()), mode=0o644)
        self._error = ""

    def _failed(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        self._error = f"cannot write {self._path}: {why}; check that the directory is writable and has room"


def replace_file(path: Path, text: str, *, mode: int) -> None:
    """Readers see the old text or the new one, whole. The directory is made where it is missing. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    temporary.replace(path)
