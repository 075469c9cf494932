"""The judge's state: tracks, records and pins, and queries that many modules use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from gpuwarden.health.flaps import Raises
from gpuwarden.health.gpu.remaps import RemapHistory
from gpuwarden.health.host.memory import HostMemory
from gpuwarden.health.host.port_downs import Downs
from gpuwarden.health.lemons.memory import Lemons
from gpuwarden.health.model import Advice, Evidence, Health, Incident, Key, Latch, Pin, Severity
from gpuwarden.health.nvlink.link_counters import Links
from gpuwarden.health.repair_history import Case, RepairHistory
from gpuwarden.health.windows import Windows
from gpuwarden.health.xid.bursts import Bursts
from gpuwarden.health.xid.sxid_ports import Ports
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.facts import Stamp

LEMON_NODE = "lemon_node"
"""Code of the condition that is derived only from days with faults; an acknowledgement clears them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One condition on one subject, from its first sighting on. It is a finding once `raised`."""

    key: Key
    """Condition and subject."""
    severity: Severity
    """Severity of the newest sighting."""
    advice: Advice
    """Advice of the newest sighting."""
    latch: Latch
    """What ends it once it is no longer seen."""
    evidence: Evidence
    """Evidence of the newest sighting."""
    first_seen: Stamp
    """First sighting."""
    last_seen: Stamp
    """Newest sighting."""
    raised: bool = False
    """It is a finding."""
    latched: bool = False
    """It is no longer seen and is kept by its latch."""
    clean_since: Stamp | None = None
    """Since when it has been examined and not seen; None while it is seen."""
    released: Stamp | None = None
    """When a reset, reboot or replacement released its latch. It ends with a later pass that does not observe it."""
    count: int = 1
    """Number of events it stands for."""
    counters: str = ""
    """The GPU's counters since driver load when the latch was raised, by which a reset is recognised."""

    def seen(self, severity: Severity, advice: Advice, evidence: Evidence, now: Stamp) -> Track:
        """Return the track with one more sighting. `replace` would take three times as long, in every pass."""
        return Track(
            key=self.key,
            severity=severity,
            advice=advice,
            latch=self.latch,
            evidence=evidence,
            first_seen=self.first_seen,
            last_seen=now,
            raised=self.raised,
            latched=self.latched,
            released=self.released,
            count=self.count,
            counters=self.counters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Momentary events of one kind on one subject (`xid.79@gpu/…`)."""

    key: Key
    """Kind and subject."""
    count: int = 0
    """Number of events, ever."""
    batch: int = 0
    """Number of lines of the newest event: those of a step, unless they name several processes or span seconds."""
    last: Stamp
    """Time of the newest event."""
    boot_id: str
    """Boot of the newest event."""
    history: bool = False
    """All events of this boot are history (see the kernel log reader); they need confirmation, once."""
    fatal: bool = False
    """NVSwitch errors: a line of the newest step was fatal."""
    nonfatal: bool = False
    """NVSwitch errors: all lines of the newest step were non-fatal."""
    text: str = ""
    """The newest line."""
    sequence: int = -1
    """Number of the newest line in the kernel log of that boot; -1: it has none."""
    acknowledged: Stamp | None = None
    """Events up to this time no longer raise a finding."""
    bursts: Bursts = ()
    """Bursts of lines in this boot."""
    ports: Ports = field(default_factory=dict)
    """NVSwitch errors: times of the lines of each port in this boot."""
    nvml: float | None = None
    """Xid 79: when NVML last reported it in this boot, seconds of CLOCK_BOOTTIME."""


Follows = Mapping[Key, tuple[Key, bool]]
"""By consequence: the first cause of its incident, and whether it ends with that cause (`incidents.py`)."""


class Vital(NamedTuple):
    """Vital readings of a GPU in this boot (`gpu/readings_lost.py`), by name."""

    answered: frozenset[str]
    """Readings that ever answered."""
    failing: tuple[tuple[str, float], ...] = ()
    """Readings with an unknown error, and the boottime since which every pass had it."""
    silent: int = -1
    """Number of readings without a value if none is failing; else -1."""


class ReadingTime(NamedTuple):
    """Duration of a pass over the GPUs in this boot (`gpu/reading_time.py`), in seconds."""

    at: float = -1.0
    """Boottime of the end of the newest learned pass."""
    passes: tuple[float, ...] = ()
    """Durations, while there are too few."""
    usual: float | None = None
    """Median duration; None while there are too few."""


Unpaired = Mapping[tuple[Key, str], tuple[float, int]]
"""By (record, sources joined by `+`): time of their last report, and number of reports outstanding from others."""


class LinksSeen(NamedTuple):
    """Bit masks of the NVLinks of a GPU in the last pass."""

    active: int
    lost_in_use: int = 0
    """Links that went down while a process had the GPU open, and are still down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """State derived from readings of this boot rather than from events; empty after a restart or a reboot."""

    news: frozenset[Key] = frozenset()
    """Keys of the records of this step."""
    windows: Windows = field(default_factory=dict)
    """Windows of GPU counters."""
    unpaired: Unpaired = field(default_factory=dict)
    """Reports of Xids that other sources have not made yet."""
    slots: frozenset[str] = frozenset()
    """Slots in which a GPU or another NVIDIA function was seen in this boot."""
    ports_above: frozenset[str] = frozenset()
    """PCIe ports above GPUs that were seen in this boot."""
    fabrics: Mapping[str, str] = field(default_factory=dict)
    """By slot of a GPU or switch: its NVLink fabric, if read in this boot."""
    bus_observed: bool = False
    """`slots` were also seen on the bus."""
    asked: Mapping[Key, float] = field(default_factory=dict)
    """By Xid 79: when its line was read, seconds of CLOCK_BOOTTIME (`witnesses.py`)."""
    ports_followed: frozenset[str] = frozenset()
    """Ports that were read."""
    host_windows: Windows = field(default_factory=dict)
    """Windows of the host's counters."""
    links_seen: Mapping[str, LinksSeen] = field(default_factory=dict)
    """By slot: NVLinks of the GPUs that answered in the last pass."""
    vital: Mapping[str, Vital] = field(default_factory=dict)
    """By slot: vital readings that answer or fail."""
    reading_time: ReadingTime = field(default_factory=ReadingTime)
    """Duration of a pass over the GPUs."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """By feature: its data of this boot."""
    unconfirmed: Mapping[Key, float | None] = field(default_factory=dict)
    """Findings from before the daemon's start that were not confirmed yet (`confirmation.py`)."""
    follows: Follows = field(default_factory=dict, compare=False)
    """Consequences and their causes, as of the last step."""
    incidents: tuple[Incident, ...] = field(default=(), compare=False)
    """Incidents by `follows`, worst first."""
    follows_of: tuple[Any, ...] = field(default=(), compare=False)
    """Inputs of `follows`, to detect changes (`incidents.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The judge's state: the fold of events, and `moments`, which events hardly change."""

    boot_id: str = ""
    """The boot that is judged."""
    booted: Stamp | None = None
    """When the boot was first judged."""
    health: Health = Health.UNKNOWN
    """Health of the node, as of the last step."""
    pins: Mapping[str, Pin] = field(default_factory=dict)
    """By slot: the expected GPUs."""
    tracks: Mapping[Key, Track] = field(default_factory=dict)
    """Conditions that are seen, or that have not ended."""
    records: Mapping[Key, Record] = field(default_factory=dict)
    """Momentary events by kind and subject."""
    resets: Mapping[str, Stamp] = field(default_factory=dict)
    """By slot: last reset of the GPU."""
    given_up: frozenset[str] = frozenset()
    """Slots whose GPU an operator no longer expects."""
    raises: Raises = field(default_factory=dict)
    """Recent times at which each condition was raised (`flaps.py`)."""
    repairs: RepairHistory = field(default_factory=dict)
    """Repairs by board and kind of failure (`repair_history.py`)."""
    lemons: Lemons = field(default_factory=dict)
    """Days with each kind of fault (`lemons/memory.py`)."""
    remaps: RemapHistory = field(default_factory=dict)
    """Rows remapped by each board (`gpu/remaps.py`)."""
    host: HostMemory = field(default_factory=HostMemory)
    """Ports, mounts and counters of the host (`host/memory.py`)."""
    port_downs: Downs = field(default_factory=dict)
    """Outages of each port in this boot (`host/port_downs.py`)."""
    links: Links = field(default_factory=dict)
    """Errors of each NVLink (`nvlink/link_counters.py`)."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """By feature: its memory."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """By feature: its first error since the daemon started. Not in the ledger, like `moments`."""
    moments: Moments = field(default_factory=Moments)
    """Values that are not in the ledger."""

    def tracks_of(self, code: str) -> Sequence[Track]:
        """Return the tracks of one condition."""
        return [track for track in self.tracks.values() if track.key.code == code]


def with_error(state: State, feature: str, error: Exception) -> State:
    """Return the state with an error of a feature, which is reported until the daemon starts again."""
    return replace(state, broken={feature: f"{type(error).__name__}: {error}"[:120], **state.broken})


def counts(state: State, record: Record) -> bool:
    """Return True if a record still applies to its GPU: it is from this boot, and the GPU was not reset since."""
    reset = state.resets.get(record.key.subject.slot)
    return record.boot_id == state.boot_id and (reset is None or record.last > reset)


def buried(state: State, key: Key) -> bool:
    """Return True if an operator acknowledged this, and no newer kernel line reports it. Re-read lines do not count."""
    record = state.records.get(key)
    if record is None or record.acknowledged is None or record.boot_id != state.boot_id:
        return False
    return record.last.boottime <= record.acknowledged.boottime


def board(state: State, slot: str) -> str:
    """Return the key of a GPU in long-term memory: its UUID, or its slot until a UUID is known."""
    pin = state.pins.get(slot)
    return (pin.uuid if pin is not None else "") or slot


def case(state: State, key: Key) -> Case:
    return board(state, key.subject.slot), f"{key.code}.{key.detail}" if key.detail else key.code


def failures(state: State, slot: str | None = None, before: float | None = None) -> Iterator[Track]:
    """Yield active failures of the GPU in `slot` or of all; with `before`, those first seen until then (wall time)."""
    for track in state.tracks.values():
        subject = track.key.subject
        of_gpu = subject.slot in state.pins and (slot is None or subject.slot == slot)
        in_time = before is None or track.first_seen.wall <= before
        if track.raised and track.severity is Severity.FAILURE and of_gpu and in_time:
            yield track
