"""`gpuwarden run` as a process: from its configuration to its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from gpuwarden.base.files import replace_file
from gpuwarden.base.log import LogOutput, configure, get_logger
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.config.model import Config
from gpuwarden.publish.sockets.control import ControlError
from gpuwarden.publish.web.listener import ListenError
from gpuwarden.runtime.app import Daemon
from gpuwarden.runtime.wiring import Site

LEAVES = 1.5
"""Seconds before the end that are reserved for the daemon's own shutdown."""
POLL = 0.1


class Stopping:
    """Handles signals from now on. A second SIGTERM, or SIGINT, stops at once, whatever is still to be done."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stop = asyncio.Event()
        self._lingering: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, daemon.reload_soon)

    async def wait(self, other: asyncio.Event | None = None) -> bool:
        """Wait until the daemon must stop, and return False; or until `other` is set, and return True."""
        both = [asyncio.create_task(event.wait()) for event in (self._stop, other) if event is not None]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        if not self._stop.is_set():
            return True
        if self._lingering is not None:
            self._lingering.cancel()
        return False

    def _terminated(self) -> None:
        window = 0.0 if self._lingering is not None else self._daemon.ends_in()
        if window <= 0.0:
            self._stop.set()
            return
        log.warning("SIGTERM treated as termination notice; notifying jobs before exit", seconds=window)
        self._lingering = asyncio.create_task(self._linger(window))

    async def _linger(self, window: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + max(window - LEAVES, 0.0)
        while loop.time() < end and not self._daemon.jobs_settled():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(POLL)
        self._stop.set()


CANNOT_LISTEN = 69  # EX_UNAVAILABLE of sysexits.h
AGAIN = 75  # EX_TEMPFAIL: systemd starts the unit again and does not count a failure
STARTED_AGAIN = "started-again"
"""File in the run directory with the boot id in which the daemon has already exited once to be restarted."""

log = get_logger()


def serve(config: Config, load: Callable[[], Config]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. `load` reads the configuration, or raises ReloadError."""
    manager = ServiceManager.of(os.environ)
    output = configure(config.log.level, config.log.format)
    try:
        return asyncio.run(_serve(config, load, output, manager))
    finally:
        output.close(timeout=1.0)


async def _serve(config: Config, load: Callable[[], Config], output: LogOutput, manager: ServiceManager) -> int:
    site = Site.of(config)
    daemon = Daemon(site, output, load, manager=manager)
    stopping = Stopping(daemon)
    try:
        await daemon.start()
    except (ListenError, ControlError, OSError) as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400 - a traceback adds nothing
        return CANNOT_LISTEN
    else:
        if await stopping.wait(daemon.manager.restart):
            if _first_of_boot(config.run.dir / STARTED_AGAIN, site.boot_id):
                log.warning("the driver came after the start and may not be opened: ending, to be started again")
                return AGAIN
            await stopping.wait()
        return 0
    finally:
        await daemon.stop()


def _first_of_boot(mark: Path, boot_id: str) -> bool:
    """Return True once per boot, so that a driver that appears and disappears does not keep the daemon restarting."""
    try:
        if mark.exists() and mark.read_text() == boot_id:
            return False
        replace_file(mark, boot_id, mode=0o600)
    except (OSError, ValueError):
        return False
    return True
