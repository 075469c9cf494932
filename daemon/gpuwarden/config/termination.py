"""The keys of `[termination]`: who is asked whether this machine is about to end, and from when that counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration
from gpuwarden.policy.model import HORIZON
from gpuwarden_collectors.cloud.system_bus import SYSTEM_BUS
from gpuwarden_collectors.cloud.times import TimeError, parse_time

Misfit = tuple[tuple[str, ...], str]
SourceName = Literal["auto", "aws", "gcp", "azure", "alibaba", "tencent", "shutdown", "container"]
METADATA = ("aws", "gcp", "azure", "alibaba", "tencent")


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """One cloud's metadata service. `endpoint` empty: the cloud's own. `enabled` False: not asked, whoever names it.

    Times in seconds; `interval` is that of the question that counts, `timeout` for a whole answer.
    """

    enabled: bool = True
    endpoint: str = ""
    interval: float = 1.0
    timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class AzureOptions(MetadataOptions):
    """`approve`: once all jobs have saved, Azure is told to begin the event of this machine now, not at its NotBefore."""

    approve: bool = False


@dataclass(frozen=True, slots=True)
class ShutdownOptions:
    """`bus`: the socket of the system bus. `hold`: how long a shutdown is held up, within what logind allows. `stop`: how long this
    daemon may take to stop after that, if its unit is stopped before what jobs run in: a little less than its TimeoutStopSec.
    """

    enabled: bool = True
    bus: Path = Path(SYSTEM_BUS)
    hold: float = 4.0
    stop: float = 0.0


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """SIGTERM is a notice, where `sources` names container: this daemon's container or pod ends `window` after it, in seconds."""

    enabled: bool = True
    window: float = 8.0


@dataclass(frozen=True, slots=True)
class TerminationOptions:
    """`sources`: auto for that of the cloud that the firmware names, if any; empty for none. shutdown is part of auto only on
    clouds that announce nothing else.

    `planned_end`: RFC 3339; empty if there is none. An announced end counts from `horizon` (seconds) before it.
    """

    sources: tuple[SourceName, ...] = ("auto",)
    horizon: float = HORIZON
    planned_end: str = ""
    aws: MetadataOptions = field(default_factory=MetadataOptions)
    gcp: MetadataOptions = field(default_factory=MetadataOptions)
    azure: AzureOptions = field(default_factory=AzureOptions)
    alibaba: MetadataOptions = field(default_factory=MetadataOptions)
    tencent: MetadataOptions = field(default_factory=MetadataOptions)
    shutdown: ShutdownOptions = field(default_factory=ShutdownOptions)
    container: ContainerOptions = field(default_factory=ContainerOptions)

    @property
    def end(self) -> float | None:
        """`planned_end` in Unix time."""
        return parse_time(self.planned_end) if self.planned_end else None


_ENDPOINT = re.compile(r"http://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?", re.ASCII)
_HORIZON = (5.0, 7 * 86_400.0)
_TIMES = (
    ("interval", 0.2, 5.0, "a window of 30s cannot pay for more, and the address is shared with DNS and time"),
    ("timeout", 0.1, 5.0, "a service on the same host answers in milliseconds"),
)


def termination_misfits(termination: TerminationOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    names = termination.sources
    if len(set(names)) != len(names):
        yield ("termination.sources",), f"expected each source once, found {', '.join(names[:12])}"
    hold = (0.0, 600.0)
    yield from _outside(
        "termination.shutdown.hold", termination.shutdown.hold, hold, "the machine will not wait longer"
    )
    yield from _outside(
        "termination.shutdown.stop", termination.shutdown.stop, hold, "the machine will not wait longer"
    )
    window = (2.0, 3_600.0)
    yield from _outside(
        "termination.container.window",
        termination.container.window,
        window,
        "RunPod gives 5s, Docker 10s, Kubernetes 30s",
    )
    yield from _outside("termination.horizon", termination.horizon, _HORIZON, "what ends later is shown, no more")
    if termination.planned_end:
        try:
            parse_time(termination.planned_end)
        except TimeError:
            found = repr(termination.planned_end[:40])
            expected = 'expected a time with its zone, such as "2026-12-01T11:30:00Z"'
            yield ("termination.planned_end",), f"{expected}, found {found}"
    for name in METADATA:
        options: MetadataOptions = getattr(termination, name)
        for key, least, most, why in _TIMES:
            yield from _outside(f"termination.{name}.{key}", getattr(options, key), (least, most), why)
        if options.endpoint and not _is_endpoint(options.endpoint):
            found = repr(options.endpoint[:60])
            yield (
                (f"termination.{name}.endpoint",),
                f'expected http, a host and perhaps a port, such as "http://169.254.169.254", found {found}',
            )


def _is_endpoint(text: str) -> bool:
    match = _ENDPOINT.fullmatch(text)
    return match is not None and int(match[1] or 80) in range(1, 65_536)


def _outside(key: str, value: float, bounds: tuple[float, float], why: str) -> Iterator[Misfit]:
    if not bounds[0] <= value <= bounds[1]:
        allowed = f"{format_duration(bounds[0])} to {format_duration(bounds[1])}"
        yield (key,), f"expected {allowed}, found {format_duration(value)}: {why}"
