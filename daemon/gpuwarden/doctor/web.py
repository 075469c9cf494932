"""Checks of the HTTP server: which clients it accepts, its TLS certificate, and when that expires."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.publish.times import rfc3339
from gpuwarden.publish.web.config import read
from gpuwarden.publish.web.guard import expiry
from gpuwarden.publish.web.rules import WebConfigError


def web(config: Config) -> Iterator[Row]:
    listen, path = config.publish.listen, config.publish.web_config
    if path is None:
        yield ok(
            "web", f"{listen}, plain HTTP for every client that can connect; publish.web_config adds TLS and users"
        )
        return
    try:
        web_config = read(path)
    except WebConfigError as error:
        for fault in error.faults:
            yield fail(
                "web",
                str(fault),
                "correct it: a running daemon keeps what it read before; a new one serves nothing, or does not start",
            )
        return
    users = f"{len(web_config.users)} with a password" if web_config.users else "no passwords"
    if web_config.tls is None:
        yield ok("web", f"{listen}, {path}: no TLS, {users}")
    else:
        clients = ", client certificates required" if web_config.tls.verifies else ""
        yield ok("web", f"{listen}, {path}: TLS{clients}, {users}")
        yield _certificate(expiry(web_config.tls, time.time()), rfc3339(web_config.tls.ends))
    for warning in web_config.warnings:
        yield warn("web", warning, f"change it in {path}, if that is not intended")


def _certificate(fault: str, until: str) -> Row:
    if fault:
        return warn(
            "certificate", fault.partition(":")[0], "replace it; the daemon reads the new one without a restart"
        )
    return ok("certificate", f"valid until {until}")
