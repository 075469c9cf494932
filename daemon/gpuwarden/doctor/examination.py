"""All looks of the doctor, each with a time of its own: one that hangs is a row that says so, and keeps none of the others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

from gpuwarden.config import Config
from gpuwarden.doctor import host, job_side, termination, web
from gpuwarden.doctor.row import Row, fail
from gpuwarden.doctor.slurm import SlurmDoctor
from gpuwarden.schedule import detached

HOST_WITHIN = 10.0
NVML_WITHIN = 45.0
METADATA_WITHIN = 20.0
"""Two questions and two tokens, of `termination.<cloud>.timeout` (5 s at most) and 1 s."""
SLURM_WITHIN = 90.0

_HOST: dict[str, Callable[[Config], Iterator[Row]]] = {
    "driver": host.driver,
    "kernel log": host.kernel_log,
    "places": host.places,
    "dcgm": host.dcgm,
    "web": web.web,
    "job socket": job_side.job_socket,
    "job signals": job_side.job_signals,
}


async def examine(config: Config) -> list[Row]:
    """Everything at once, in the order of the table. Takes at most `SLURM_WITHIN`."""
    looks = [_in_time(name, HOST_WITHIN, _threaded(name, look, config)) for name, look in _HOST.items()]
    looks.insert(1, _in_time("nvml", NVML_WITHIN, host.nvml(config)))
    looks.append(_in_time("metadata service", METADATA_WITHIN, termination.metadata(config)))
    looks.append(_in_time("shutdown budget", HOST_WITHIN, termination.shutdown_budget(config)))
    slurm = SlurmDoctor(config.slurm, os.uname().nodename, config.state.dir)
    looks.append(_in_time("slurm", SLURM_WITHIN, slurm.rows()))
    return [row for rows in await asyncio.gather(*looks) for row in rows]


async def _threaded(name: str, look: Callable[[Config], Iterator[Row]], config: Config) -> list[Row]:
    return await detached(f"doctor {name}", lambda: list(look(config)))


async def _in_time(name: str, seconds: float, look: Awaitable[list[Row]]) -> list[Row]:
    area = "slurm" if name == "slurm" else "host"
    try:
        async with asyncio.timeout(seconds):
            return await look
    except TimeoutError:
        return [
            fail(
                area,
                name,
                f"no answer within {seconds:.0f} s",
                "see what hangs: a file system, the driver, the controller",
            )
        ]
    except Exception as error:  # noqa: BLE001 - a fault of one look must not hide what the others found
        return [fail(area, name, f"the look failed: {type(error).__name__}: {error}", "report this")]
