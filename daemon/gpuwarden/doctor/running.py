"""Checks of the running daemon: version, agreement with the current configuration, its port, and scrapes."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from gpuwarden.base.addresses import ABSENT
from gpuwarden.base.durations import format_duration
from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.health.components import Component
from gpuwarden.publish.metrics.enforcement import NOT_READ
from gpuwarden_collectors.dataclass import dataclass

SCRAPED_WITHIN = 300.0
"""Seconds: five times the longest usual scrape interval (1 min)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The running daemon: its status ({} if none answers), and the listener's pid and uid as the kernel reports them.

    `why`: the reason why no daemon answers. `refused`: the reason is that this user may not connect.
    """

    folder: Path
    status: Mapping[str, Any]
    pid: int = 0
    uid: int = 0
    why: str = ""
    refused: bool = False


def daemon(running: Running, config: Config) -> Row:
    status = running.status
    if not status:
        return warn("daemon", running.why, _to_do(running))
    state = f"answers at {running.folder}: {status.get('status', 'unknown')}, mode {status.get('mode', 'unknown')}"
    if status.get("version") != __version__:
        state += f"; it is version {status.get('version')}, installed is {__version__}"
        return warn("daemon", state, "systemctl restart gpuwarden")
    if status.get("mode") != config.mode or status.get("node") != config.node:
        state += f"; the configuration has mode {config.mode}, node {config.node}"
        return warn("daemon", state, "if that is intended: systemctl restart gpuwarden")
    errors = "; ".join(map(str, status.get("errors", ())))
    if errors:
        log = "kubectl logs of this pod" if in_pod() else "journalctl -u gpuwarden"
        return warn("daemon", f"{state}; errors: {errors}", f"see {log}")
    return ok("daemon", state)


def _to_do(running: Running) -> str:
    if running.refused:
        return "run the doctor as root or as the daemon's user: whether the daemon works is not known"
    if in_pod():
        return "see kubectl logs of this pod"
    if running.pid:
        return f"it is process {running.pid}: see journalctl -u gpuwarden; if it does not recover, systemctl restart gpuwarden"
    return "systemctl start gpuwarden"


def actuators(running: Running, config: Config) -> Iterator[Row]:
    """Report each actuator that the daemon cannot read, such as a marker in a folder that does not exist, or a program
    that is not installed. Until the node fails, only `gpuwarden status` shows it otherwise.
    """
    enforcement = running.status.get("actions")
    schedulers = enforcement.get("schedulers", ()) if isinstance(enforcement, Mapping) else ()
    for actuator in schedulers:
        if actuator["reachable"] or actuator["error"] == NOT_READ:
            continue
        state = f"the daemon cannot exclude the node there: {actuator['error']}"
        to_do = "correct the cause, or its table in the configuration: until then a failed node stays in service"
        name = f"actuator {actuator['actuator']}"
        yield fail(name, state, to_do) if config.mode == "enforce" else warn(name, state, to_do)


def port(running: Running, config: Config) -> Iterator[Row]:
    """Check that the daemon's port is its own or free, by binding to it briefly without listening."""
    listen = config.publish.listen
    if listen.port == 0:
        yield ok("port", f"{listen}: any free port")
        return
    try:
        error = _bound(listen.host, listen.port)
    except OSError as unresolved:  # a name that cannot be resolved
        yield fail("port", f"{listen}: {unresolved}", "correct publish.listen")
        return
    if error == 0:
        where = "is free" if not running.status else "is free: the running daemon listens elsewhere"
        yield ok("port", f"{listen} {where}")
    elif error == errno.EADDRINUSE:
        yield _taken(running, config)
    elif error == errno.EACCES:
        yield fail("port", f"{listen}: not permitted for this user", "choose a port of 1024 or higher, or run as root")
    else:
        to_do = "set publish.listen to an address of this host, or to 0.0.0.0"
        yield fail("port", f"{listen}: {os.strerror(error)}", to_do)


def _bound(host: str, number: int) -> int:
    """Return 0 if the port can be bound, else the errno. Like the daemon, skip addresses that this host lacks.

    Raises OSError if `host` cannot be resolved.
    """
    error = 0
    for family, kind, _, _, address in socket.getaddrinfo(host, number, type=socket.SOCK_STREAM):
        error = _bound_to(family, kind, address)
        if error not in ABSENT:
            return error
    return error


def _bound_to(family: int, kind: int, address: Any) -> int:
    try:
        with socket.socket(family, kind) as talk:
            talk.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                talk.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            talk.bind(address)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _taken(running: Running, config: Config) -> Row:
    listen = config.publish.listen
    listeners = dict(_listening(listen.port))
    lacks_it = any(str(error).startswith(f"{Component.PORT.value}: ") for error in running.status.get("errors", ()))
    if running.pid in listeners or (running.pid and not listeners and not lacks_it):
        return ok("port", f"{listen} is the daemon's")
    if running.refused and not listeners:
        return ok("port", f"{listen} is in use; this user may not see by which program")
    who = ", ".join(f"{name} (pid {pid})" for pid, name in sorted(listeners.items())) or "another program"
    to_do = (
        f"see ss -ltnp 'sport = :{listen.port}'; end that program, or set publish.listen: heartbeat and metrics need it"
    )
    return fail("port", f"{listen} is taken by {who}", to_do)


def _listening(number: int) -> Iterator[tuple[int, str]]:
    """Yield pid and name of the processes visible to this user that listen on a TCP port in this network namespace."""
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
                yield int(process.name), (process / "comm").read_text(errors="replace").strip()[:40]
        except OSError:
            continue


def scraped(running: Running, _: Config) -> Iterator[Row]:
    """Check whether a client reads /metrics. A manual curl counts too, so the row names the client program."""
    if not running.status:
        yield ok("scrapes", "unknown while no daemon responds")
        return
    last = running.status.get("scraped")
    to_do = "let Prometheus scrape this node: see grafana/prometheus/README.md; a firewall may block it"
    if not isinstance(last, Mapping):
        yield warn("scrapes", "no client has read /metrics since the daemon started", to_do)
        return
    age, by = float(last.get("age_seconds", 0.0)), str(last.get("by") or "a program without a name")
    state = f"/metrics was read {format_duration(round(age, 0))} ago by {by}"
    yield ok("scrapes", state) if age <= SCRAPED_WITHIN else warn("scrapes", state, to_do)
