"""The life cycle of a small server process: settings, listening socket, log, and SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.base import log
from gpuwarden.base.paths import CONFIG_FILE
from gpuwarden.config.sources import Fault, Sources, Tree, merge

FIRST_HANDED_OVER = 3  # sd_listen_fds(3)
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS = ("auto", "text", "json")
_ON_THE_WAY = 0.05  # seconds; starting a connection takes three iterations of the event loop
_LOG_LAST = 2.0  # seconds at exit to write buffered log lines


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of the configuration that such a process needs. Invalid values are replaced by defaults: for clients a
    response based on defaults is better than none. `faults` are logged; the daemon reports all faults.
    """

    tree: Tree
    faults: tuple[Fault, ...]

    @classmethod
    def read(cls, file: Path | None, environment: Mapping[str, str]) -> Settings:
        """Read the configuration. `file` None: the host's default file, which may be missing."""
        sources = Sources(file=file or CONFIG_FILE, required=file is not None, environment=environment)
        layers, faults = sources.read()
        return cls(merge(layers)[0], tuple(faults))

    def value(self, *keys: str) -> Any:
        """Value of the key at this path; None if it is not set."""
        branch: Any = self.tree
        for key in keys:
            branch = branch.get(key) if isinstance(branch, Mapping) else None
        return branch

    def run_dir(self, default: Path) -> Path:
        configured = self.value("run", "dir")
        return Path(configured) if isinstance(configured, str) and configured.startswith("/") else default

    @property
    def mode(self) -> str:
        return "enforce" if self.value("mode") == "enforce" else "observe"

    def enabled(self, table: str) -> bool:
        """Return True if the table is enabled or if the configuration is faulty: no response would end exclusions."""
        return bool(self.faults) or self.value(table, "enabled") is True

    @property
    def log_level(self) -> str:
        level = self.value("log", "level")
        return level if level in _LOG_LEVELS else "info"

    @property
    def log_format(self) -> str:
        form = self.value("log", "format")
        return form if form in _LOG_FORMATS else "auto"


def handed_over(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the listening socket passed by systemd, in which clients wait during a restart; None without one."""
    if environment.get("LISTEN_PID") != str(os.getpid()) or environment.get("LISTEN_FDS") in (None, "", "0"):
        return None
    listener = socket.socket(fileno=FIRST_HANDED_OVER)
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


async def let_in(listener: socket.socket) -> None:
    """Stop accepting, and let accepted connections start: asyncio drops them if its server is closed first."""
    asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(_ON_THE_WAY)


async def left(clients: Sized, within: float) -> None:
    """Wait until all clients have disconnected, at most `within` seconds."""
    end = time.monotonic() + within
    while clients and time.monotonic() < end:  # noqa: ASYNC110 - once, at the end
        await asyncio.sleep(0.02)


def live(settings: Settings, serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `serve`, whose event is set by SIGTERM or SIGINT, and write the rest of the log."""
    output = log.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_lived(settings, serve))
    finally:
        output.close(_LOG_LAST)


async def _lived(settings: Settings, serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    for fault in settings.faults:
        log.get_logger().error("configuration has a fault; its value is ignored", fault=str(fault))
    await serve(stop)
