"""Signs in the records of lines of the kernel log besides Xids.

A record is seen for `SEEN_FOR` after its newest line. What remains then is the latch of a failure, or the fall time of a
warning. Lines from before the first start of the daemon are not judged: nothing here can confirm them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwarden.health.detection import Detection, tracked_detection
from gpuwarden.health.host.ports import other_roles
from gpuwarden.health.kernel_lines.records import lasted, signs
from gpuwarden.health.memory import Record, State, buried, counts
from gpuwarden.health.model import Advice, Evidence, Latch, Severity, Sighting
from gpuwarden.health.view import Sight
from gpuwarden_collectors.event_facts import LineKind

SEEN_FOR = 45.0
"""Seconds: longer than the pause between two lines of one lockup, and than the driver of an adapter has to recover it."""
GOES_ON = 60.0
"""Seconds of lines after which they are no single event: a resume from suspend, a pause of the hypervisor, a long interrupt."""
STUCK = 300.0
"""Seconds of lines after which a driver is stuck for good: as long as a process in D state (`process_hung`) has."""
BOOTING = 300.0
"""Seconds of uptime in which memory and devices are set up, which takes a CPU for long."""
AFTER_PCIE = 600.0
"""Seconds for which lockups are taken for the consequence of a fatal PCIe error: they came after minutes on two DGX Sparks."""
UNANSWERED = 120.0
"""Seconds of commands without an answer, each of which is given up after 60, that a firmware which works again does not reach."""
RECOVERS = 30.0
"""Seconds for which a driver that recovers an adapter has not reported that yet (`adapter_failed`, rise)."""
FATAL = (LineKind.ADAPTER_SILENT, LineKind.ADAPTER_HARDWARE)


def gsp_not_answering(state: State, sight: Sight) -> Detection:
    sightings = [
        _sighting(record, Severity.WARNING)
        for record in _recent(state, sight, "gsp_not_answering")
        if LineKind.GPU_RESET_ADVISED in signs(record) or lasted(record) >= GOES_ON
    ]
    return tracked_detection("gsp_not_answering", state, sightings)


def soft_lockup(state: State, sight: Sight) -> Detection:
    """Soft lockups, by the module that the lines name. Lines that name none are about the same lockups, and are used only if no line names one."""
    recent = _recent(state, sight, "soft_lockup", since=sight.now.boottime - SEEN_FOR)
    goes_on = [r for r in recent if _stuck_for(r) >= GOES_ON]
    named = [record for record in goes_on if record.key.detail]
    after_pcie = _after_pcie_error(state, goes_on)
    lockups = [record for record in named or goes_on if not _latched(state, record)]
    return tracked_detection("soft_lockup", state, [_lockup(record, after_pcie=after_pcie) for record in lockups])


def _stuck_for(record: Record) -> float:
    """Seconds of these lines, without those of the first minutes after the boot."""
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
    """The fatal PCIe error that came before one of these lockups; "" for none."""
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
    """Evidence of which ports of the adapter in `slot` were ever active here, and whether one of them is of the job fabric.

    A port whose adapter sysfs does not name may be one of its ports.
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
    """Records that are seen. Lines that came while no daemon ran are seen in the step that brings them, unless they are from before `since`.

    `rising`: also those that rise, however long ago their line came: what one line is enough for must not be lost in a restart.
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
