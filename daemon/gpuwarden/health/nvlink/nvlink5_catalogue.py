"""Catalogue of NVLink 5 errors (Xids 144 to 150): the effect of each unit, sub-code and error status on the GPU.

The vendor's decode sheet has one row for each combination; equal rows are merged here. If it gives two alternatives for
the next step (`Non-fatal*` with a reset as second action), the row has the first and the note names the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.model import Advice
from gpuwarden.health.xid.catalogue import XidClass
from gpuwarden_collectors.dataclass import dataclass

NON_FATAL, FATAL, LINK_FATAL = "non-fatal", "fatal", "fatal to the link"
IGNORE, RESET, SEE_154 = "IGNORE", "RESET_GPU", "XID_154_EVAL"

_FOLLOW_UP: dict[str, tuple[str, Advice]] = {
    "": ("nothing", Advice.NONE),
    "support": ("ask the vendor", Advice.CONTACT_SUPPORT),
    "solo": ("a consequence of another error; ask the vendor if it comes alone", Advice.CONTACT_SUPPORT),
    "daily": ("ask the vendor if it comes more than once a day", Advice.CONTACT_SUPPORT),
    "flow": ("look at the NVLink of this GPU: cables, seating, the other end", Advice.INSPECT_HARDWARE),
    "link": ("look at the signal integrity of the link", Advice.INSPECT_HARDWARE),
    "cables": ("look at the signal integrity of the link and at its cables", Advice.INSPECT_HARDWARE),
    "peer": ("look at the device at the other end of the link", Advice.INSPECT_HARDWARE),
    "host": ("look at the host", Advice.INSPECT_HARDWARE),
    "software": ("look at what software and users did: resets, reloads, link control", Advice.UPDATE_SOFTWARE),
    "software, link": ("look at what software and users did, then at the signal integrity", Advice.UPDATE_SOFTWARE),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink5Rule:
    """A row of the vendor's decode sheet.

    `units`: names of the unit in a line. `before`, `since`: the unit's number in the first register word, with drivers
    before R575 and from R575 on. `wide`: the number has one bit more. `action` is the vendor's term.
    """

    xid: int
    units: tuple[str, ...]
    before: int
    since: int
    wide: bool
    sub_code: int
    status: int
    action: str
    severity: str
    follow_up: str
    escalation: Advice
    note: str = ""

    @property
    def klass(self) -> XidClass:
        """Class of the event. The vendor ignores two fatal events; they are warnings here, since they stop work."""
        if self.action == RESET:
            return XidClass.FAILURE
        return XidClass.RECORD if self.severity == NON_FATAL else XidClass.WARNING

    @property
    def advice(self) -> Advice:
        if self.action == IGNORE and self.severity != NON_FATAL:
            return Advice.OBSERVE
        return {RESET: Advice.RESET_GPU, SEE_154: Advice.RESTART_APP}.get(self.action, Advice.NONE)


_TWO_STEPS = "the vendor's second action, if it continues, is a reset"
_ONE, _HIGH = "0x1", "0x80000000"

# Xid, names, the unit's number before R575 and since; then statuses, action, severity, follow-up for sub-code 0.
_UNITS: tuple[tuple[int, str, int, int, tuple[tuple[str, str, str, str], ...]], ...] = (
    (144, "SAW_MVB", 1, 1, (
        ("0x1 0x8", IGNORE, NON_FATAL, "support"), ("0x4 0x20", IGNORE, NON_FATAL, ""), ("0x2 0x10", RESET, FATAL, "support"))),
    (145, "RLW_CTRL", 3, 3, ((_HIGH, IGNORE, NON_FATAL, "support"),)),
    (145, "RLW_REMAP", 4, 4, (
        ("0x1 0x2", SEE_154, NON_FATAL, "support"), ("0x4 0x8 0x10 0x20", SEE_154, NON_FATAL, "flow"),
        ("0x40 0x80", RESET, FATAL, "support"), ("0x100 0x200", IGNORE, NON_FATAL, ""), (_HIGH, IGNORE, NON_FATAL, "support"))),
    (145, "RLW_RSPCOL", 5, 5, (
        (_ONE, IGNORE, NON_FATAL, ""), ("0x2", RESET, FATAL, "support"), (_HIGH, IGNORE, NON_FATAL, "support"))),
    (145, "RLW_RXPIPE", 6, 6, (("0x8", IGNORE, NON_FATAL, "support"), (_HIGH, IGNORE, NON_FATAL, "support"))),
    (145, "RLW_SRC_TRACK", 7, 7, (
        ("0x1 0x10 0x20", RESET, FATAL, "support"), ("0x2", IGNORE, NON_FATAL, ""), ("0x4 0x8", SEE_154, NON_FATAL, ""),
        (_HIGH, IGNORE, NON_FATAL, "support"))),
    (145, "RLW_TAGSTATE", 8, 8, (
        ("0x1 0x10000", IGNORE, NON_FATAL, ""), ("0x2 0x20000 0x100000", RESET, FATAL, "support"), (_HIGH, IGNORE, NON_FATAL, "support"))),
    *((146, name, before, since, (
        (_ONE, IGNORE, NON_FATAL, ""), ("0x2", IGNORE, NON_FATAL, "support"), ("0x4", RESET, FATAL, "support"),
        (_HIGH, IGNORE, NON_FATAL, "support")))
      for name, before, since in (
        ("TLW_CTRL", 9, 9), ("TLW_RX TLW_RX_PIPE0", 10, 10), ("TLW_RX TLW_RX_PIPE1", 10, 11),
        ("TLW_TX TLW_TX_PIPE0", 11, 12), ("TLW_TX TLW_TX_PIPE1", 11, 13))),
    (147, "TREX", 12, 14, ((f"{_ONE} {_HIGH}", IGNORE, NON_FATAL, "support"),)),
    (148, "NVLPW_CTRL NVLPW", 0, 15, ((_HIGH, IGNORE, NON_FATAL, "support"),)),
    (149, "NETIR NETIR_INT", 0, 24, (("0x0", RESET, LINK_FATAL, "solo"),)),
    (149, "NETIR_BER_EVENT", 17, 19, (("0x0 0x1 0x2 0x3", IGNORE, NON_FATAL, "cables"),)),
    (149, "NETIR_MFDE_EVENT", 18, 20, (("0x1 0x4 0x5 0x7", RESET, FATAL, "support"), ("0x3", IGNORE, NON_FATAL, ""))),
    (150, "MSE_WATCHDOG", 0, 0, (("0x0", RESET, FATAL, "support"),)),
)  # fmt: skip

# A link went down (149, error status 0): sub-codes, action, severity, follow-up.
_LINK_DOWN: tuple[tuple[str, str, str, str], ...] = (
    ("0", RESET, LINK_FATAL, "solo"),
    ("1", RESET, LINK_FATAL, "daily"),
    ("2 4 10", RESET, LINK_FATAL, "link"),
    ("15 17 22", RESET, LINK_FATAL, "software"),
    ("16 18", RESET, LINK_FATAL, "software, link"),
    ("21 32 33 34 35 36 37", RESET, LINK_FATAL, "peer"),
    ("38", IGNORE, LINK_FATAL, "software"),
    ("40", IGNORE, FATAL, "host"),
    ("42 43", RESET, LINK_FATAL, "cables"),
)


def _rule(
    xid: int,
    names: str,
    before: int,
    since: int,
    does: tuple[str, str, str],
    *,
    status: int = 0,
    sub_code: int = 0,
    wide: bool = False,
    note: str = "",
) -> Nvlink5Rule:
    action, severity, follow_up = does
    text, escalation = _FOLLOW_UP[follow_up]
    return Nvlink5Rule(
        xid=xid,
        units=tuple(names.split()),
        before=before,
        since=since,
        wide=wide,
        sub_code=sub_code,
        status=status,
        action=action,
        severity=severity,
        follow_up=text,
        escalation=escalation,
        note=note,
    )


def _rules() -> Iterator[Nvlink5Rule]:
    for xid, names, before, since, rows in _UNITS:
        for statuses, action, severity, follow_up in rows:
            for status in _numbers(statuses, 16):
                yield _rule(xid, names, before, since, (action, severity, follow_up), status=status)
    for status in (1, 2, 4):
        yield _rule(145, "RLW_RXPIPE", 6, 6, (IGNORE, NON_FATAL, "support"), status=status, wide=True, note=_TWO_STEPS)
    for sub_codes, action, severity, follow_up in _LINK_DOWN:
        for sub_code in _numbers(sub_codes, 10):
            yield _rule(149, "NETIR_LINK_EVT NETIR_LINK_DOWN", 14, 17, (action, severity, follow_up), sub_code=sub_code)


def _numbers(text: str, base: int) -> list[int]:
    return [int(item, base) for item in text.split()]


NVLINK5_RULES: tuple[Nvlink5Rule, ...] = tuple(_rules())
PROVENANCE = "NVIDIA Xid catalogue, decode sheet for Xids 144 to 150"
