"""The process of `gpuwarden dstack-interposer`."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket

from gpuwarden.base import log
from gpuwarden.base.addresses import Address
from gpuwarden.base.paths import run_dir
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.features.dstack.interposer import Interposer
from gpuwarden.features.dstack.node_health import NAME
from gpuwarden.features.dstack.options import SERVED, SHIM
from gpuwarden.integrations.process import Settings, handed_over, live
from gpuwarden.integrations.published import Reader, this_boot


def main(options: argparse.Namespace) -> int:

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


def _configured(setting: object) -> Address | None:
    """Parse the configured address; None for an invalid value, which the daemon reports."""
    try:
        return Address.parse(setting) if isinstance(setting, str) else None
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
