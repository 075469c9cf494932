"""The running daemon, if there is one: is it this version and configured as it is now, is its port its own, does anybody scrape it?"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from gpuwarden.base.durations import format_duration
from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn

SCRAPED_WITHIN = 300.0
"""Seconds: five times the longest interval that Prometheus is usually given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the daemon says of itself, {} if none answers, and who it is as the kernel says; `why`: none does."""

    folder: Path
    status: Mapping[str, Any]
    pid: int = 0
    uid: int = 0
    why: str = ""


def daemon(running: Running, config: Config) -> Row:
    said = running.status
    if not said:
        return warn("host", "daemon", running.why, "start it: systemctl start gpuwarden")
    found = f"answers at {running.folder}: {said.get('status', 'unknown')}, mode {said.get('mode', 'unknown')}"
    if said.get("version") != __version__:
        found += f"; it is version {said.get('version')}, installed is {__version__}"
        return warn("host", "daemon", found, "restart it: systemctl restart gpuwarden")
    if said.get("mode") != config.mode or said.get("node") != config.node:
        found += f"; the configuration says mode {config.mode}, node {config.node}"
        return warn("host", "daemon", found, "if it is to be so: systemctl restart gpuwarden")
    troubles = "; ".join(map(str, said.get("trouble", ())))
    if troubles:
        return warn("host", "daemon", f"{found}; in trouble: {troubles}", "see journalctl -u gpuwarden")
    return ok("host", "daemon", found)


def port(running: Running, config: Config) -> Iterator[Row]:
    """Bound for a moment, and not listened on."""
    listen = config.publish.listen
    if listen.port == 0:
        yield ok("host", "port", f"{listen}: any that is free")
        return
    try:
        error = _bound(listen.host, listen.port)
    except OSError as trouble:  # a name that nothing resolves
        yield fail("host", "port", f"{listen}: {trouble}", "correct publish.listen")
        return
    if error == 0:
        where = "is free" if not running.status else "is free: the daemon that runs listens elsewhere"
        yield ok("host", "port", f"{listen} {where}")
    elif error == errno.EADDRINUSE:
        yield _taken(running, config)
    elif error == errno.EACCES:
        yield fail("host", "port", f"{listen}: not for this user", "choose a port from 1024 on, or run as root")
    else:
        to_do = "set publish.listen to an address of this host, or to 0.0.0.0"
        yield fail("host", "port", f"{listen}: {os.strerror(error)}", to_do)


def _bound(host: str, number: int) -> int:
    """0, or why it cannot be. Raises OSError if `host` is no address."""
    (family, kind, _, _, address), *_ = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
    with socket.socket(family, kind) as talk:
        talk.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            talk.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            talk.bind(address)
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def _taken(running: Running, config: Config) -> Row:
    listen = config.publish.listen
    holders = dict(_listening(listen.port))
    if running.pid in holders or (running.pid and not holders):
        return ok("host", "port", f"{listen} is the daemon's")
    who = ", ".join(f"{name} (pid {pid})" for pid, name in sorted(holders.items())) or "another program"
    to_do = (
        f"see ss -ltnp 'sport = :{listen.port}'; end it, or set publish.listen: the daemon does not start without it"
    )
    return fail("host", "port", f"{listen} is taken by {who}", to_do)


def _listening(number: int) -> Iterator[tuple[int, str]]:
    """Who listens on a TCP port, as far as this user may see; sockets of our own network namespace."""
    inodes = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        inodes |= {
            f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == number
        }
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                yield int(process.name), (process / "comm").read_text().strip()[:40]
        except OSError:
            continue


def scraped(running: Running, _: Config) -> Iterator[Row]:
    """Whether anybody asks for /metrics. A person's curl counts too, so that the name of the program is told."""
    if not running.status:
        yield ok("host", "scrapes", "not known while no daemon answers")
        return
    last = running.status.get("scraped")
    to_do = "let Prometheus scrape this node: see grafana/prometheus/README.md; a firewall may be in its way"
    if not isinstance(last, Mapping):
        yield warn("host", "scrapes", "nobody has asked for /metrics since the daemon started", to_do)
        return
    age, by = float(last.get("age_seconds", 0.0)), str(last.get("by") or "a program without a name")
    found = f"/metrics was asked for {format_duration(round(age, 0))} ago by {by}"
    yield ok("host", "scrapes", found) if age <= SCRAPED_WITHIN else warn("host", "scrapes", found, to_do)
