"""`gpuwarden nvhcd`: the node health check for ft_launcher."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from gpuwarden.base.paths import run_dir
from gpuwarden.cli.parser import UNAVAILABLE, CommandError, Parser

HELP = """
Answers the node health check of NVIDIA's ft_launcher (nvidia-resiliency-ext): a node that gpuwarden excludes fails the check.

Reads the files that the daemon publishes, and works while the daemon is stopped. Unknown health, a warning and mode observe
pass the check. systemd holds its socket, which must exist before jobs start: a client that finds none never tries again.

exit code: 0 after SIGTERM or SIGINT, 64 for bad usage, 69 when it cannot listen or h2 is not installed

examples:
  systemctl enable --now gpuwarden-nvhcd.socket
  gpuwarden nvhcd --socket /tmp/nvhcd.sock --run-dir .run/run
  ft_launcher --ft-node-health-check-endpoint unix:///run/gpuwarden/nvhcd.sock …
"""

_MODE = 0o666  # jobs of any user connect
_BACKLOG = 256


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        help="socket to listen on, if systemd passes none (default: nvhcd.sock in the run directory)",
    )


def main(options: argparse.Namespace) -> int:
    from gpuwarden.base import log  # noqa: PLC0415 - what the process needs, and not its --help
    from gpuwarden.integrations.process import Settings, handed_over, live  # noqa: PLC0415
    from gpuwarden.integrations.published import Reader, this_boot  # noqa: PLC0415

    try:
        from gpuwarden.features.nvhcd.server import NAME, HealthCheckService, Service  # noqa: PLC0415
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
    from gpuwarden.publish.sockets.unix_socket import SocketError, SocketFile  # noqa: PLC0415 - as above

    try:
        return SocketFile(path, ".nvhcd.new", _MODE).make(_BACKLOG)
    except SocketError as error:
        raise CommandError(str(error), UNAVAILABLE) from error
