"""The verdict file, which tells shell scripts whether this node may take work. Format 1: one `key=value` per line.

`stamp` and `fresh_for` are whole seconds. `stamp` is CLOCK_BOOTTIME, as in /proc/uptime, so that a script detects a
stale verdict without starting a process; it is 0 before the first observation. `state` is the node's health,
`node_state` the worst finding that is not about one GPU or its links. `schedulable`, `excluded` and `breaker` are 0 or
1. `excluded_by` has actuators and causes, `reason` the first reasons, both separated by spaces. `gres.N` is the health
of the GPU with Slurm's index N (IDX, SLURM_JOB_GPUS), also when it is lost; `gpu.N` is that of NVML's index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwarden.health.gpu.jobs import order
from gpuwarden.health.model import Finding, Health, Severity
from gpuwarden.publish.files.healthy_mark import HealthyMark, mark_name
from gpuwarden.publish.files.writer import KeptFile
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp

FORMAT = 1
OF_A_GPU = ("gpu", "link")
_REASONS_MAX = 8
_VALUE_MAX = 200  # characters


def verdict_text(snapshot: Snapshot, now: Stamp) -> str:
    """Return the content of the file at `now`."""
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
    yield "breaker", int(bool(snapshot.enforced.breaker))
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
    """Render a value on one line, cut at `_VALUE_MAX` characters."""
    return " ".join(str(value)[:_VALUE_MAX].split())


class VerdictFile(KeptFile):
    """Writer of `verdict` in the run directory, in a thread, and of the mark of a healthy node.

    A failure is urgent, since a file with `healthy` must be replaced.
    """

    def __init__(self, run_dir: Path, clock: Clock = host_clock) -> None:
        self._clock = clock
        self._mark = HealthyMark(run_dir)
        super().__init__(run_dir / "verdict", clock)

    def publish(self, snapshot: Snapshot) -> None:
        urgent = snapshot.verdict.health is Health.FAILURE
        self.write(lambda: self._text(snapshot), urgent=urgent)

    def _text(self, snapshot: Snapshot) -> str:
        """Return the content, right before the write. Updates the mark first, which can be removed on a full disk."""
        now = self._clock()
        self._mark.show(mark_name(snapshot, now))
        return verdict_text(snapshot, now)
