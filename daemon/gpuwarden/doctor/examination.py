"""All checks of the doctor, each with its own deadline: a check that hangs becomes a row and delays no other check."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuwarden.config.model import Config
from gpuwarden.doctor import host, jobs, pod, prometheus, running, system, termination, unit, web
from gpuwarden.doctor.check import Check, in_loop, in_thread, in_thread_with
from gpuwarden.doctor.row import Row, fail
from gpuwarden.doctor.running import Running
from gpuwarden.features import parts

NVML_WITHIN = 45.0
DCGM_WITHIN = 45.0
METADATA_WITHIN = 20.0
"""Seconds: enough for two requests of at most 5 s (`termination.<cloud>.timeout`) and two token requests of 1 s."""


_CHECKS: dict[str, Check] = {
    "unit": Check(in_thread(unit.unit)),
    "pod": Check(in_thread(pod.pod)),
    "versions": Check(in_thread(system.versions)),
    "rights": Check(in_thread_with(system.permissions)),
    "clock": Check(in_thread(system.clock)),
    "driver": Check(in_thread(host.driver)),
    "nvml": Check(in_loop(host.nvml), NVML_WITHIN),
    "pci": Check(in_thread(host.pci)),
    "kernel log": Check(in_thread(host.kernel_log)),
    "dcgm": Check(in_loop(host.dcgm), DCGM_WITHIN),
    "folders": Check(in_thread(host.folders)),
    "port": Check(in_thread_with(running.port)),
    "web": Check(in_thread(web.web)),
    "scrapes": Check(in_thread_with(running.scraped)),
    "prometheus": Check(in_thread(prometheus.prometheus)),
    "job socket": Check(in_thread(jobs.job_socket)),
    "actuators": Check(in_thread_with(running.actuators)),
    "metadata service": Check(in_loop(termination.metadata), METADATA_WITHIN),
    "shutdown budget": Check(in_loop(termination.shutdown_budget)),
    **{name: check for feature in parts("doctor").values() for name, check in feature.CHECKS.items()},
}
"""Checks by name, in the order of the output."""


async def examine(config: Config, daemon: Running) -> list[Row]:
    """Run all checks concurrently and return their rows by area. Takes at most the longest deadline of a check."""
    checks = (_in_time(name, check, daemon, config) for name, check in _CHECKS.items())
    all_rows = [row for rows in await asyncio.gather(*checks) for row in rows]
    areas = list(dict.fromkeys(row.area for row in all_rows))
    return sorted(all_rows, key=lambda row: areas.index(row.area))


async def _in_time(name: str, check: Check, daemon: Running, config: Config) -> list[Row]:
    try:
        async with asyncio.timeout(check.within):
            rows = await check.rows(daemon, config)
    except TimeoutError:
        state = f"no response within {check.within:.0f} s"
        rows = [fail(name, state, "find out what hangs: a file system, the driver or the controller")]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        rows = [
            fail(
                name, f"the check failed: {type(error).__name__}: {error}", "file an issue: this is a bug in gpuwarden"
            )
        ]
    return [replace(row, area=check.area) for row in rows]
