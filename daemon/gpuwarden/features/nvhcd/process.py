"""The process of `gpuwarden nvhcd`."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from gpuwarden.base import log
from gpuwarden.base.paths import run_dir
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.integrations.process import Settings, handed_over, live
from gpuwarden.integrations.published import Reader, this_boot
from gpuwarden.publish.sockets.unix_socket import SocketError, SocketFile

_MODE = 0o666  # jobs of any user connect


_BACKLOG = 256


def main(options: argparse.Namespace) -> int:
    try:
        from gpuwarden.features.nvhcd.server import NAME, HealthCheckService, Service  # noqa: PLC0415 - of an extra, which may be missing
    except ModuleNotFoundError as error:
        raise CommandError(f"{error}: install gpuwarden[nvhcd]", UNAVAILABLE) from error

    settings = Settings.read(options.config, os.environ)
    where = options.run_dir or settings.run_dir(run_dir(os.environ))
    listener = handed_over(os.environ) or _listening(options.socket or where / "nvhcd.sock")
    reader = Reader(where, NAME, boot_id=this_boot())
    logger = log.get_logger()

    async def serve(stop: asyncio.Event) -> None:
        logger.info("node health check listening", run_dir=str(where))
        await Service(HealthCheckService(reader=reader, mode=settings.mode, log=logger)).serve(listener, stop)

    live(settings, serve)
    return 0


def _listening(path: Path) -> socket.socket:

    try:
        return SocketFile(path, ".nvhcd.new", _MODE).make(_BACKLOG)
    except SocketError as error:
        raise CommandError(str(error), UNAVAILABLE) from error
