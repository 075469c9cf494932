"""All checks of the doctor, each with its own deadline: one that hangs becomes a row, and delays none of the others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from gpuwarden.base.threads import detached
from gpuwarden.config.model import Config
from gpuwarden.doctor import (
    host,
    jobs,
    kubernetes,
    pod,
    pod_labels,
    prometheus,
    running,
    system,
    termination,
    unit,
    web,
)
from gpuwarden.doctor.row import Check, Row, fail
from gpuwarden.doctor.running import Running
from gpuwarden.doctor.slurm import SlurmDoctor
from gpuwarden.feature import parts

HOST_WITHIN = 10.0
NVML_WITHIN = 45.0
DCGM_WITHIN = 45.0
METADATA_WITHIN = 20.0
"""Two requests and two tokens, of `termination.<cloud>.timeout` (5 s at most) and 1 s."""
SLURM_WITHIN = 90.0
KUBERNETES_WITHIN = 60.0

_Run = Callable[[Running, Config], Awaitable[list[Row]]]


def _thread(check: Callable[[Config], Iterator[Row]]) -> _Run:
    return lambda _, config: _threaded(lambda: list(check(config)))


def _thread_with(check: Callable[[Running, Config], Iterator[Row]]) -> _Run:
    return lambda daemon, config: _threaded(lambda: list(check(daemon, config)))


def _loop(check: Callable[[Config], Awaitable[list[Row]]]) -> _Run:
    return lambda _, config: check(config)


async def _slurm(_: Running, config: Config) -> list[Row]:
    return await SlurmDoctor(config.slurm, os.uname().nodename, config.run.dir, config.state.dir).rows()


_OF_FEATURES: dict[str, Check] = {
    name: check for feature in parts("doctor").values() for name, check in feature.CHECKS.items()
}
_CHECKS: dict[str, tuple[float, _Run]] = {
    "unit": (HOST_WITHIN, _thread(unit.unit)),
    "pod": (HOST_WITHIN, _thread(pod.pod)),
    "versions": (HOST_WITHIN, _thread(system.versions)),
    "rights": (HOST_WITHIN, _thread_with(system.permissions)),
    "clock": (HOST_WITHIN, _thread(system.clock)),
    "driver": (HOST_WITHIN, _thread(host.driver)),
    "nvml": (NVML_WITHIN, _loop(host.nvml)),
    "pci": (HOST_WITHIN, _thread(host.pci)),
    "kernel log": (HOST_WITHIN, _thread(host.kernel_log)),
    "dcgm": (DCGM_WITHIN, _loop(host.dcgm)),
    "folders": (HOST_WITHIN, _thread(host.folders)),
    "port": (HOST_WITHIN, _thread_with(running.port)),
    "web": (HOST_WITHIN, _thread(web.web)),
    "scrapes": (HOST_WITHIN, _thread_with(running.scraped)),
    "prometheus": (HOST_WITHIN, _thread(prometheus.prometheus)),
    "job socket": (HOST_WITHIN, _thread(jobs.job_socket)),
    "job signals": (HOST_WITHIN, _thread(jobs.job_signals)),
    "container labels": (HOST_WITHIN, _thread(jobs.container_labels)),
    "metadata service": (METADATA_WITHIN, _loop(termination.metadata)),
    "shutdown budget": (HOST_WITHIN, _loop(termination.shutdown_budget)),
    "slurm": (SLURM_WITHIN, _slurm),
    "kubernetes": (KUBERNETES_WITHIN, _loop(kubernetes.kubernetes)),
    "pod labels": (HOST_WITHIN, pod_labels.pod_labels),
    **{name: (check.within, _loop(check.run)) for name, check in _OF_FEATURES.items()},
}
"""Seconds and check by name, in the order of the output."""
_AREAS = {"slurm": "slurm", "kubernetes": "kubernetes", **{name: check.area for name, check in _OF_FEATURES.items()}}
"""Checks whose rows have an area of their own, with that; the others are about the host."""


async def examine(config: Config, daemon: Running) -> list[Row]:
    """Everything at once, in the order of the table. Takes at most `SLURM_WITHIN`."""
    checks = (_in_time(name, seconds, check(daemon, config)) for name, (seconds, check) in _CHECKS.items())
    return [row for rows in await asyncio.gather(*checks) for row in rows]


async def _threaded(check: Callable[[], list[Row]]) -> list[Row]:
    return await detached("doctor", check)


async def _in_time(name: str, seconds: float, running: Awaitable[list[Row]]) -> list[Row]:
    try:
        async with asyncio.timeout(seconds):
            rows = await running
    except TimeoutError:
        found = f"no response within {seconds:.0f} s"
        rows = [fail(name, found, "find out what hangs: a file system, the driver or the controller")]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        rows = [
            fail(
                name, f"the check failed: {type(error).__name__}: {error}", "file an issue: this is a bug in gpuwarden"
            )
        ]
    return [replace(row, area=_AREAS.get(name, row.area)) for row in rows]
