"""`gpuwarden dstack-interposer`: a proxy between dstack's server and dstack's agent of this host."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket

from gpuwarden.base.addresses import Address
from gpuwarden.base.paths import run_dir
from gpuwarden.cli.parser import UNAVAILABLE, CommandError, Parser

HELP = """
Answers dstack's server in place of dstack's agent of this host (the shim): forwards every request to the shim, and replaces
the health of the instance by the daemon's verdict: an excluded node reports failure, so that dstack places no job here.

Reads the files that the daemon publishes, and works while the daemon is stopped. In mode observe everything passes
unchanged. systemd holds its socket, so that no request is refused while it restarts.

exit code: 0 after SIGTERM or SIGINT, 64 for bad usage, 69 when its address is taken

examples:
  systemctl enable --now gpuwarden-dstack.socket
  gpuwarden dstack-interposer --listen 127.0.0.1:10998 --shim 127.0.0.1:10996
"""


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--listen", metavar="H:P", type=_address, help="address to listen on, if systemd passes no socket"
    )
    parser.add_argument(
        "--shim", metavar="H:P", type=_address, help="address of dstack's agent (default: [dstack] shim)"
    )


def main(options: argparse.Namespace) -> int:
    from gpuwarden.base import log  # noqa: PLC0415 - what the process needs, and not its --help
    from gpuwarden.features.dstack.interposer import Interposer  # noqa: PLC0415
    from gpuwarden.features.dstack.node_health import NAME  # noqa: PLC0415
    from gpuwarden.features.dstack.options import SERVED, SHIM  # noqa: PLC0415
    from gpuwarden.integrations.process import Settings, handed_over, live  # noqa: PLC0415
    from gpuwarden.integrations.published import Reader, this_boot  # noqa: PLC0415

    settings = Settings.read(options.config, os.environ)
    listener = handed_over(os.environ) or _listening(options.listen or SERVED)
    shim = options.shim or _configured(settings.value("dstack", "shim")) or SHIM
    where = options.run_dir or settings.run_dir(run_dir(os.environ))
    reader = Reader(where, NAME, boot_id=this_boot())
    logger = log.get_logger()

    async def serve(stop: asyncio.Event) -> None:
        interposer = Interposer(
            shim=shim, reader=reader, enabled=settings.enabled("dstack"), mode=settings.mode, log=logger
        )
        logger.info(
            "dstack interposer listening", shim=str(shim), run_dir=str(where), enabled=settings.enabled("dstack")
        )
        await interposer.serve(listener, stop)

    live(settings, serve)
    return 0


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _configured(found: object) -> Address | None:
    """Parse the configured address; None for an invalid value, which the daemon reports."""
    try:
        return Address.parse(found) if isinstance(found, str) else None
    except ValueError:
        return None


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family, backlog=1024)
    except OSError as error:
        why = f"cannot listen on {address}: {error.strerror or error}"
        raise CommandError(
            f"{why}; does dstack's agent still listen there? Move it: see docs/use/dstack.md", UNAVAILABLE
        ) from error
    listener.setblocking(False)
    return listener
