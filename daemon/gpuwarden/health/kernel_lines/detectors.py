"""Detectors for kernel log lines other than Xids.

A record is sighted for `SEEN_FOR` after its newest line. After that the latch of a failure, or the fall time of a
warning, keeps the finding. Lines from before the first start of the daemon are not judged: no reading confirms them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.detection import Detection, tracked_detection
from gpuwarden.health.host.ports import other_roles
from gpuwarden.health.kernel_lines.records import lasted, signs
from gpuwarden.health.memory import Record, State, buried, counts
from gpuwarden.health.model import Advice, Evidence, Latch, Severity, Sighting
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.event_facts import LineKind

SEEN_FOR = 45.0
"""Seconds: longer than the interval between two lines of one lockup, and than `RECOVERS`."""
GOES_ON = 60.0
"""Seconds of lines beyond a single event: a resume from suspend, a pause of the hypervisor, a long interrupt."""
STUCK = 300.0
"""Seconds of lines after which a driver counts as permanently stuck: the same as for `process_hung`."""
BOOTING = 300.0
"""Seconds of uptime in which the setup of memory and devices can occupy a CPU for long."""
AFTER_PCIE = 600.0
"""Seconds after a fatal PCIe error in which lockups count as its consequence. On two DGX Sparks it took minutes."""
UNANSWERED = 120.0
"""Seconds of unanswered commands, each of which times out after 60 s. Firmware that recovers does not reach this."""
RECOVERS = 30.0
"""Seconds that a driver may take to report the recovery of an adapter (`adapter_failed`, rise)."""
FATAL = (LineKind.ADAPTER_SILENT, LineKind.ADAPTER_HARDWARE)


def gsp_not_answering(state: State, sight: Sight) -> Detection:
    sightings = [
        _sighting(record, Severity.WARNING)
        for record in _recent(state, sight, "gsp_not_answering")
        if LineKind.GPU_RESET_ADVISED in signs(record) or lasted(record) >= GOES_ON
    ]
    return tracked_detection("gsp_not_answering", state, sightings)


def soft_lockup(state: State, sight: Sight) -> Detection:
    """Detect soft lockups by the module in the lines. Lines without a module are used only if no line names one."""
    recent = _recent(state, sight, "soft_lockup", since=sight.now.boottime - SEEN_FOR)
    goes_on = [r for r in recent if _stuck_for(r) >= GOES_ON]
    named = [record for record in goes_on if record.key.detail]
    after_pcie = _after_pcie_error(state, goes_on)
    lockups = [record for record in named or goes_on if not _latched(state, record)]
    return tracked_detection("soft_lockup", state, [_lockup(record, after_pcie=after_pcie) for record in lockups])


def _stuck_for(record: Record) -> float:
    """Return the duration of the lines in seconds, without the first minutes after a boot."""
    return record.bursts[-1].ended - max(record.bursts[-1].began, BOOTING) if record.bursts else 0.0


def _lockup(record: Record, *, after_pcie: str) -> Sighting:
    stuck = after_pcie or (record.key.detail and _stuck_for(record) >= STUCK)
    more: Evidence = {"seconds": round(_stuck_for(record))}
    if record.key.detail:
        more = {**more, "module": record.key.detail}
    if after_pcie:
        more = {**more, "after": after_pcie}
    return _sighting(record, Severity.FAILURE if stuck else Severity.WARNING, more)


def _after_pcie_error(state: State, lockups: list[Record]) -> str:
    """Return the fatal PCIe error that preceded one of these lockups; "" for none."""
    for error in state.records.values():
        if error.key.code == "pcie_aer_fatal" and counts(state, error):
            since = (record.bursts[-1].began - error.last.boottime for record in lockups)
            if any(-GOES_ON <= seconds <= AFTER_PCIE for seconds in since):
                return f"a fatal PCIe error at {error.key.subject.slot or 'a device without an address'}"
    return ""


def nvme_failed(state: State, sight: Sight) -> Detection:
    sightings = [
        _sighting(record, Severity.WARNING) for record in _recent(state, sight, "nvme_failed") if signs(record)
    ]
    return tracked_detection("nvme_failed", state, sightings)


def adapter_failed(state: State, sight: Sight) -> Detection:
    sightings = []
    for record in _recent(state, sight, "adapter_failed", rising=True):
        reported = signs(record)
        if not reported or _latched(state, record):
            continue
        dead = any(sign in FATAL for sign in reported) or lasted(record) >= UNANSWERED
        why, fabric = _of_job_fabric(state, record.key.subject.slot)
        severity = Severity.FAILURE if dead and fabric else Severity.WARNING
        sighting = _sighting(record, severity, why, None if dead else Advice.OBSERVE)
        not_recovered_in_time = sight.now.boottime - record.last.boottime >= RECOVERS
        sightings.append(replace(sighting, rise=0.0) if not_recovered_in_time else sighting)
    return tracked_detection("adapter_failed", state, sightings)


def _of_job_fabric(state: State, slot: str) -> tuple[Evidence, bool]:
    """Return evidence on the known ports of the adapter in `slot`, and whether one of them is in the job fabric.

    A port whose adapter sysfs does not name may belong to it.
    """
    known_ports = state.host.ports
    ports = [name for name, port in known_ports.items() if port.slot in (slot, "")]
    if not ports:
        return {"ports": "none that was ever active"}, False
    roles = other_roles(known_ports)
    if all(name in roles for name in ports):
        return {"ports": ", ".join(ports), "role": roles[ports[0]]}, False
    return {"ports": ", ".join(ports)}, True


def _latched(state: State, record: Record) -> bool:
    track = state.tracks.get(record.key)
    return track is not None and track.latch is not Latch.NONE and track.latched and track.released is None


def _recent(state: State, sight: Sight, code: str, *, since: float = 0.0, rising: bool = False) -> Iterator[Record]:
    """Yield records with recent lines, and records new in this step whose newest line is not from before `since`.

    `rising`: also records whose finding is not raised yet, so that a restart does not lose one with a single line.
    """
    for record in state.records.values():
        if record.key.code != code or record.history or not counts(state, record) or buried(state, record.key):
            continue
        new = record.key in state.moments.news and record.last.boottime >= since
        track = state.tracks.get(record.key) if rising else None
        pending = track is not None and not track.raised
        if new or pending or sight.now.boottime - record.last.boottime <= SEEN_FOR:
            yield record


def _sighting(
    record: Record, severity: Severity, more: Evidence | None = None, advice: Advice | None = None
) -> Sighting:
    return Sighting(record.key, {**(more or {}), "text": record.text}, severity, advice, count=record.batch)
