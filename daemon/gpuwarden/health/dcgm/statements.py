"""Converts DCGM's newest pass into statements, one for each fault and subject.

The entity of an incident identifies the GPU, never the text, which can name another one. Incidents from an Xid are not
statements: the engine keeps them through resets of the GPU, so only their first appearance counts, as an event (see
xids.py). An entity without a known PCI slot is reported for the node, with its kind and number as the detail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.health.dcgm.catalogue import DCGM_CODES, dcgm_row, incident_health, own_code
from gpuwarden.health.gpu.detectors import RECOVERY_ACTIONS
from gpuwarden.health.model import NODE, Advice, Health, Key, Severity, Subject, gpu
from gpuwarden.health.nvlink.imex import imex_fault, imex_used
from gpuwarden.health.state import State, counts
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmIncident, DcgmProblemKind

FRESH = 600.0
"""Seconds for which an incident whose beginning was observed is new, for codes where only the beginning counts."""
STATEMENTS_MOST = 256
"""More faults than any host has at once. The excess becomes one statement, so a broken engine cannot fill memory."""

_POWER_UNREADABLE, _XID_ERROR, _TOO_MANY = 11, 101, 69
_SWITCH_ERRORS = (15, 16)
_CONNECTX = 9
_ENTITIES = {1: "gpu", 3: "switch", 7: "cpu", _CONNECTX: "connectx"}  # dcgm_fields.h: dcgm_field_entity_group_t


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A report of DCGM about one subject."""

    key: Key
    """Condition and subject."""
    text: str
    """Quoted as evidence."""
    severity: Severity | None
    """None: only quoted, no finding."""
    advice: Advice
    """The next step."""
    lasts: float
    """Seconds, as in the table of codes."""
    fresh: bool
    """It began within the last `FRESH` seconds, observed by this connection."""


def statements(state: State, sight: Sight, condition: str = "") -> dict[Key, Statement]:
    """Return the statements of `condition` ("": of none) by key. Several incidents of one fault are one statement."""
    by_key: dict[Key, Statement] = {}
    facts = sight.dcgm
    if facts is None or not (facts.incidents or condition in _OF_READINGS):
        return by_key
    mine = [incident for incident in facts.incidents if _home(incident) == condition]
    for statement in (*_of_incidents(mine, state, sight, facts), *_of_readings(condition, sight, facts)):
        if statement.key.subject.slot in state.given_up:
            continue
        if statement.key not in by_key and len(by_key) >= STATEMENTS_MOST:
            row = dcgm_row(_TOO_MANY)
            statement = replace(statement, key=Key(own_code(row), NODE), text=row.meaning, severity=Severity.WARNING)  # noqa: PLW2901
        earlier = by_key.get(statement.key)
        by_key[statement.key] = statement if earlier is None else _together(earlier, statement)
    return by_key


def _together(statement: Statement, other: Statement) -> Statement:
    worse = statement if statement.severity is Severity.FAILURE or other.severity is None else other
    text = (
        statement.text
        if other.text in statement.text or len(statement.text) > 300
        else f"{statement.text}; {other.text}"
    )
    return replace(worse, text=text, lasts=min(statement.lasts, other.lasts), fresh=statement.fresh or other.fresh)


# --- incidents


def _home(incident: DcgmIncident) -> str:
    """Return the gpuwarden condition of an incident, or "". Never xid or sxid, which need a number it does not have."""
    agrees = dcgm_row(incident.code).agrees if incident.slot else ""
    return "" if agrees in ("xid", "sxid") else agrees


def _of_incidents(
    incidents: Sequence[DcgmIncident], state: State, sight: Sight, facts: DcgmFacts
) -> Iterator[Statement]:
    if not incidents:
        return
    blind = any(problem.kind is DcgmProblemKind.BLIND for problem in facts.problems)
    numbers = {g.id for g in facts.gpus if g.readings.last_xid is not None}
    for incident in incidents:
        if incident.xid is not None or (incident.code == _XID_ERROR and incident.entity_id in numbers):
            continue
        if blind and incident.code == _POWER_UNREADABLE:
            continue  # reported for every GPU at once: the engine reads nothing
        if incident.code in _SWITCH_ERRORS and _reported_by_driver(state):
            continue
        if incident.code == _IMEX and not imex_used(sight):
            continue
        yield _statement(incident, sight)


def _reported_by_driver(state: State) -> bool:
    """Return True if the kernel log has an NVSwitch error of this boot. It has the number, which DCGM lacks."""
    return any(record.key.code == "sxid" and counts(state, record) for record in state.records.values())


def _statement(incident: DcgmIncident, sight: Sight) -> Statement:
    row = dcgm_row(incident.code)
    health = incident_health(incident.code, incident.health)
    severity = None if health is Health.HEALTHY else Severity(health.value)
    fresh = not incident.preexisting and sight.now.boottime - incident.first_seen.boottime <= FRESH
    if incident.preexisting and incident.code in _SWITCH_ERRORS:
        severity = severity and Severity.WARNING  # counted since driver load, so of any age
    if incident.latched:  # an Xid without its number, which the engine keeps even after a reset of the GPU
        severity = Severity.WARNING if fresh else None
    return Statement(
        key=_key(incident),
        text=_quoted(incident),
        severity=severity,
        advice=Advice.INSPECT_HARDWARE if incident.entity_kind == _CONNECTX else row.advice,
        lasts=row.lasts,
        fresh=fresh,
    )


def _key(incident: DcgmIncident) -> Key:
    row, home = dcgm_row(incident.code), _home(incident)
    if not incident.slot:
        kind = _ENTITIES.get(incident.entity_kind, f"kind_{incident.entity_kind}")
        return Key(own_code(row), NODE, f"{kind}_{incident.entity_id}" if incident.entity_kind else "")
    if home == "nvlink_down" and incident.link is not None:
        return Key(home, Subject("link", incident.slot, str(incident.link)))
    return Key(home or own_code(row), gpu(incident.slot))


def _quoted(incident: DcgmIncident) -> str:
    """Return the table's meaning of the code, since DCGM's text can name another GPU; its text for an unknown code."""
    row = dcgm_row(incident.code)
    status = {0: "pass", 10: "warn", 20: "fail"}.get(incident.health, str(incident.health))
    meaning = row.meaning if incident.code in DCGM_CODES else incident.message[:200] or row.meaning
    return f"{status}, code {incident.code}: {meaning}"


# --- readings


_FAULTY_MEMORY, _IMEX = 52, 122
_UNKNOWN_ACTION = ("unknown", Severity.FAILURE, Advice.CONTACT_SUPPORT)


_OF_READINGS = ("", "gpu_recovery_action")
"""Conditions for which a reading alone can be a statement."""


def _of_readings(condition: str, sight: Sight, facts: DcgmFacts) -> Iterator[Statement]:
    if condition == "gpu_recovery_action":
        yield from _recovery_actions(facts)
    if condition:
        return
    for each in facts.gpus:
        if each.slot and (bad := each.readings.memory_unrepairable):
            yield _read(_FAULTY_MEMORY, gpu(each.slot), f"field 1507 (memory beyond repair) is {bad}")
    if (text := imex_fault(facts)) and imex_used(sight):
        yield _read(_IMEX, NODE, text)


def _recovery_actions(facts: DcgmFacts) -> Iterator[Statement]:
    for each in facts.gpus:
        if each.slot and (action := each.readings.recovery_action):
            name, severity, advice = RECOVERY_ACTIONS.get(action, _UNKNOWN_ACTION)
            yield Statement(
                key=Key("gpu_recovery_action", gpu(each.slot)),
                text=f"field 1523 (recovery action) is {action}, {name}",
                severity=severity,
                advice=advice,
                lasts=60.0,
                fresh=True,
            )


def _read(code: int, subject: Subject, text: str) -> Statement:
    row = dcgm_row(code)
    key = Key(own_code(row), subject)
    return Statement(
        key=key,
        text=text,
        severity=Severity(row.worst.value),
        advice=row.advice,
        lasts=row.lasts,
        fresh=True,
    )
