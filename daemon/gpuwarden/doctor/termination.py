"""Checks that gpuwarden would detect the machine's termination, and how long a shutdown would be delayed. Reads only.

No inhibitor lock is taken, since it would delay a shutdown. Azure's Scheduled Events are not requested, since the first
request enables them. Only the machine's name is read there, which the daemon does first too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from gpuwarden.base.durations import format_duration
from gpuwarden.collect.termination_sources import chosen
from gpuwarden.config.model import Config
from gpuwarden.config.termination import TerminationOptions
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.cloud.detect import ONLY_SHUTS_DOWN, recognise
from gpuwarden_collectors.cloud.logind import longest_delay
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.cloud.shutdown import NAME as SHUTDOWN
from gpuwarden_collectors.cloud.source import CloudSource
from gpuwarden_collectors.cloud.system_bus import BusError

LOGIND_WITHIN = 2.0
ENOUGH = 30.0
"""Seconds that a shutdown should leave for a checkpoint: the shortest documented notice (Compute Engine, Azure)."""
_LONGEST = 86_400.0
_RAISE = (
    r"mkdir -p /etc/systemd/logind.conf.d; printf '[Login]\nInhibitDelayMaxSec=30\n' > "
    "/etc/systemd/logind.conf.d/gpuwarden.conf; systemctl restart systemd-logind gpuwarden"
)
_HOLD = 'set termination.shutdown.hold = "29s"'


# --- the shutdown


async def shutdown_budget(config: Config, within: float = LOGIND_WITHIN) -> list[Row]:
    """Check how long logind delays a shutdown for the daemon. `within`: total seconds for the D-Bus calls."""
    options = config.termination.shutdown
    enabled = SHUTDOWN in (source.name for source in _chosen(config))
    if not options.bus.exists():
        state = f"not read: there is no system bus at {options.bus}"
        to_do = "check that dbus and systemd-logind run, and that the daemon can open this socket: until then no shutdown is detected"
        return [warn("shutdown budget", state, to_do) if enabled else ok("shutdown budget", state)]
    try:
        delay = await longest_delay(str(options.bus), within / 3.0)  # it takes three steps
    except BusError as error:
        state = f"logind: {error}"
        to_do = "see systemctl status systemd-logind, and check that the daemon may use the bus: until then no shutdown is detected"
        return [fail("shutdown budget", state, to_do) if enabled else ok("shutdown budget", state)]
    return [_budget(delay, options.hold) if enabled else _not_enabled(delay, config)]


def _budget(delay: float, hold: float) -> Row:
    """Return the row about the delay: the shorter of logind's and ours. The permission to delay is not tested."""
    if os.geteuid() != 0:
        right = (
            "; this command is not root: polkit decides whether it may delay a shutdown (login1.inhibit-delay-shutdown)"
        )
    else:
        right = "; root may delay it"
    state = f"{format_duration(min(delay, hold))}: logind waits {_shown(delay)}, gpuwarden delays it {format_duration(hold)}"
    to_do = [text for text, seconds in ((_RAISE, delay), (_HOLD, hold + 1.0)) if seconds < ENOUGH]
    if to_do:
        return warn("shutdown budget", state + right, "if a save takes longer: " + "; and ".join(to_do))
    return ok("shutdown budget", state + right)


def _not_enabled(delay: float, config: Config) -> Row:
    cloud = recognise(config.paths.sysfs)
    state = f"logind would wait {_shown(delay)}; the source shutdown is not used"
    if cloud in ONLY_SHUTS_DOWN and config.termination.sources:
        to_do = 'add "shutdown" to termination.sources'
        return warn("shutdown budget", f"{state}, and {cloud} announces an end in no other way", to_do)
    return ok("shutdown budget", state)


def _shown(delay: float) -> str:
    """Return the delay as text; "for ever" above a day, since logind reports `infinity` as the largest integer."""
    return format_duration(delay) if delay <= _LONGEST else "for ever"


# --- the metadata services


async def metadata(config: Config) -> list[Row]:
    """Check each metadata service that the daemon would poll, concurrently, each with its own timeout."""
    cloud = recognise(config.paths.sysfs)
    sources = [source for source in _chosen(config) if source.name in CLOUDS]
    if not sources:
        return list(_no_source(cloud, config.termination))
    return list(await asyncio.gather(*(_metadata(source, cloud, config.termination) for source in sources)))


async def _metadata(source: CloudSource, here: str, options: TerminationOptions) -> Row:
    cloud = CLOUDS[source.name]
    try:
        why = await source.confirm()
    finally:
        await source.close()
    if not why:
        state = f"{cloud.name} answers at {options.of(cloud).endpoint or cloud.endpoint}"
        return ok("metadata service", f"{state}; {cloud.unread}" if cloud.unread else state)
    if here and here != cloud.name:
        to_do = f'the firmware names {here}: set termination.sources = ["auto"], or to that name'
    else:
        to_do = cloud.unreachable
    return fail("metadata service", f"{cloud.name}: {why}", to_do)


def _no_source(cloud: str, options: TerminationOptions) -> Iterator[Row]:
    if cloud in CLOUDS:
        state = f"none is read; the firmware names {cloud}"
        if options.sources:
            yield warn("metadata service", state, 'set termination.sources = ["auto"]; to use no source, set []')
        else:
            yield ok("metadata service", f"{state}, and termination.sources is []")
    elif cloud:
        yield ok("metadata service", f"none is read: the firmware names {cloud}, which only shuts down")
    else:
        yield ok("metadata service", "none is read: the firmware names no known cloud")


def _chosen(config: Config) -> tuple[CloudSource, ...]:
    return chosen(config.termination, config.paths.sysfs, host_clock)
