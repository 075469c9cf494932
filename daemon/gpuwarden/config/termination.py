"""The keys of `[termination]`: the sources of termination notices, and when a notice becomes imminent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwarden.policy.model import HORIZON
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.cloud.spec import CloudSpec, Options
from gpuwarden_collectors.cloud.system_bus import SYSTEM_BUS
from gpuwarden_collectors.cloud.times import TimeError, parse_time
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded, with_tables

if TYPE_CHECKING:
    SourceName = str
else:
    SourceName = Literal["auto", *CLOUDS, "shutdown", "container"]


@dataclass(frozen=True, slots=True)
class ShutdownOptions:
    """A shutdown or reboot of this host, as announced by logind."""

    bus: Path = Path(SYSTEM_BUS)
    """The socket of the system bus (D-Bus)."""
    hold: float = bounded(4.0, 0.0, 600.0, "the machine will not wait longer")
    """How long gpuwarden delays a shutdown, so that jobs can save. logind limits it to InhibitDelayMaxSec."""
    stop: float = bounded(0.0, 0.0, 600.0, "the machine will not wait longer")
    """Time for jobs after `hold`, while systemd stops this daemon. Set it only if the daemon's unit is stopped before the services that jobs run in, to
    a little less than the unit's TimeoutStopSec ([systemd.md](../use/systemd.md#termination)).
    """


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """SIGTERM to this daemon as a termination notice, if its container or pod ends with the machine."""

    window: float = bounded(8.0, 2.0, 3_600.0, "RunPod gives 5s, Docker 10s, Kubernetes 30s")
    """Time from SIGTERM until the container ends."""


@dataclass(frozen=True, slots=True)
@with_tables({name: cloud.options for name, cloud in CLOUDS.items()})
class TerminationOptions:
    """Notices that this machine is about to end ([termination.md](../use/termination.md))."""

    sources: tuple[SourceName, ...] = ("auto",)
    """Sources of notices. `auto`: the metadata service of the cloud that the firmware names, or `shutdown` on clouds that announce an end in no other
    way; no source on other machines. An empty list: no source.
    """
    horizon: float = bounded(HORIZON, 5.0, 7 * 86_400.0, "an end that is further away is only shown")
    """How long before an announced end gpuwarden acts on it: excludes the node and signals jobs. Until then the notice is only shown."""
    planned_end: str = ""
    """A known end of this machine, in RFC 3339, such as `2026-12-01T11:30:00Z`. Empty: none."""
    shutdown: ShutdownOptions = field(default_factory=ShutdownOptions)
    container: ContainerOptions = field(default_factory=ContainerOptions)

    def of(self, cloud: CloudSpec[Options]) -> Options:
        """The table of a cloud."""
        options: Options = getattr(self, cloud.name)
        return options

    @property
    def end(self) -> float | None:
        """The `planned_end` as Unix time; None if there is none."""
        return parse_time(self.planned_end) if self.planned_end else None


_ENDPOINT = re.compile(r"http://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?", re.ASCII)


def termination_misfits(termination: TerminationOptions) -> Iterator[Misfit]:
    """Yield values that have the right type but are invalid, by their keys."""
    names = termination.sources
    if len(set(names)) != len(names):
        yield ("termination.sources",), f"expected each source once, found {', '.join(names[:12])}"
    if termination.planned_end:
        try:
            parse_time(termination.planned_end)
        except TimeError:
            shown = repr(termination.planned_end[:40])
            expected = 'expected a time with its zone, such as "2026-12-01T11:30:00Z"'
            yield ("termination.planned_end",), f"{expected}, found {shown}"
    for name, cloud in CLOUDS.items():
        options = termination.of(cloud)
        if options.endpoint and not _is_endpoint(options.endpoint):
            shown = repr(options.endpoint[:60])
            message = f'expected http, a host and perhaps a port, such as "http://169.254.169.254", found {shown}'
            yield (f"termination.{name}.endpoint",), message


def _is_endpoint(text: str) -> bool:
    match = _ENDPOINT.fullmatch(text)
    return match is not None and int(match[1] or 80) in range(1, 65_536)
